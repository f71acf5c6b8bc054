"""What is learnt from a table, and what cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock import features as f
from penstock.errors import ConfigError, InvalidItem


def learnt(kind, values):
    return f.Features({"a": kind}).fit({"a": values}).statistics["a"]


def test_a_standard_scale_takes_the_mean_and_the_populations_deviation():
    found = learnt(f.Numeric(scale="standard"), [1, 2, 3, 6, None, math.nan])
    assert (found.offset, found.divisor, found.mean) == (3.0, math.sqrt(3.5), None)


def test_a_minmax_scale_makes_the_ends_0_and_1():
    features = f.Features({"a": f.Numeric(scale="minmax")}).fit({"a": [2, 4, 10]})
    assert features.encode({"a": [2, 4, 10, 18]})["a"].tolist() == [0, 0.25, 1, 2]


def test_a_scale_is_a_product_with_the_reciprocal_rounded_once():
    numbers = np.random.default_rng(0).normal(40, 13, 1000)
    features = f.Features({"a": f.Numeric(scale="standard")}).fit({"a": numbers})
    found = features.statistics["a"]
    expected = ((numbers - found.offset) * (1.0 / found.divisor)).astype(np.float32)
    assert features.encode({"a": numbers})["a"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("scale", ["standard", "minmax"])
@pytest.mark.parametrize("values", [[3], [0.1] * 7, [0.0, 1e-200]])
def test_a_column_without_spread_is_divided_by_1(scale, values):
    assert learnt(f.Numeric(scale=scale), values).divisor == 1.0


def test_an_offset_that_tensorflow_takes_for_0_is_0():
    assert learnt(f.Numeric(scale="minmax"), [1e-310, 1.0]).offset == 0.0


def test_the_mean_stands_for_what_is_missing():
    features = f.Features(
        {"a": f.Numeric(scale="standard", fill_value=f.MEAN), "b": f.Bucketized([2], fill_value=f.MEAN)}
    )
    fitted = features.fit({"a": [1, 3, None], "b": [1, 5, None]})
    assert fitted.statistics["a"].mean == 2.0
    found = fitted.encode([{}])
    assert (found["a"].tolist(), found["b"].tolist()) == ([0.0], [1])


def test_quantiles_cut_a_column_into_buckets_of_as_many_rows():
    features = f.Features({"a": f.Bucketized(quantiles=4)}).fit({"a": np.arange(100)})
    assert features.sizes == {"a": 4}
    assert np.bincount(features.encode({"a": np.arange(100)})["a"]).tolist() == [25, 25, 25, 25]
    assert learnt(f.Bucketized(quantiles=4), [1, 1, 1, 1, 1, 9]).boundaries == (1.0,)


def test_a_vocabulary_is_by_count_and_then_by_value():
    values = ["b", "b", "a", "a", 9, 9.0, "9", "c", "é", None]
    assert learnt(f.Vocabulary(max_size=10), values).values == ("9", "a", "b", "c", "é")
    assert learnt(f.Vocabulary(max_size=2), values).values == ("9", "a")
    assert learnt(f.Vocabulary(max_size=10, min_count=2), values).values == ("9", "a", "b")
    assert learnt(f.Vocabulary(max_size=10, missing_values=[9]), values).values == ("a", "b", "c", "é")
    assert learnt(f.Vocabulary(max_size=10), np.array([1.0, 1, math.nan, 2])).values == ("1", "2")


def test_a_vocabulary_of_lists_counts_every_value():
    features = f.Features({"a": f.Vocabulary(max_size=2, max_length=3)}).fit(
        [{"a": ["x", "y"]}, {"a": ["y", None]}, {"a": None}]
    )
    assert features.statistics["a"].values == ("y", "x")
    assert features.sizes == {"a": 3}


def test_numbers_of_lists_are_learnt_from_too():
    features = f.Features({"a": f.Bucketized(quantiles=2, max_length=3, fill_value=f.MEAN)}).fit(
        [{"a": [1, 3]}, {"a": [5, None]}]
    )
    assert features.statistics["a"] == f.Statistics(mean=3.0, boundaries=(3.0,))


def test_a_vocabulary_without_frequent_values_has_only_the_buckets():
    features = f.Features({"a": f.Vocabulary(max_size=2, min_count=3, num_oov_indices=2)}).fit({"a": ["x", "y"]})
    assert features.statistics["a"].values == ()
    assert features.sizes == {"a": 2}
    assert f.Features.from_json(features.to_json()) == features


@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        (f.Numeric(scale="standard"), [None, math.nan], "there is no value to fit on"),
        (f.Numeric(fill_value=f.MEAN), [], "there is no value to fit on"),
        (f.Vocabulary(max_size=2), [None], "there is no value to fit on"),
        (f.Bucketized(quantiles=2), [], "there is no value to fit on"),
        (f.Vocabulary(max_size=2, min_count=2, num_oov_indices=0), ["a"], "no value occurs 2 times"),
        (
            f.Vocabulary(max_size=2, num_oov_indices=0, unknown="z"),
            ["a"],
            "unknown='z' is not one of the 1 fitted values",
        ),
        (f.Numeric(scale="standard"), [1e300, -1e300], "the numbers are too large"),
        (f.Numeric(scale="minmax"), [1.7e308, -1.7e308], "the numbers are too large"),
        (f.Numeric(fill_value=f.MEAN), [1.7e308, 1.7e308], "the numbers are too large"),
        (f.Bucketized(quantiles=4), [1.7e308, -1.7e308], "the numbers are too large"),
    ],
)
def test_a_column_that_nothing_can_be_learnt_from_is_refused(kind, values, why):
    with pytest.raises(ConfigError, match=r"^the feature 'a' cannot be fitted on the column 'a': ") as caught:
        learnt(kind, values)
    assert why in str(caught.value)


def test_a_value_that_is_not_of_the_kind_is_refused_with_its_path():
    with pytest.raises(InvalidItem) as caught:
        learnt(f.Numeric(scale="standard"), [1, 2, "x"])
    assert str(caught.value) == "expected a number, got str 'x' at `$[2].a`"
    with pytest.raises(InvalidItem) as caught:
        learnt(f.Vocabulary(max_size=3, max_length=3), [["a"], [], ["a", "b", 0.5]])
    assert caught.value.path == "$[2].a[2]"
    with pytest.raises(InvalidItem) as caught:
        learnt(f.Vocabulary(max_size=3, max_length=3), [["a"], "b"])
    assert caught.value.path == "$[1].a"
    with pytest.raises(InvalidItem) as caught:
        f.Features({"a": f.Vocabulary(max_size=3)}).fit([{"a": "x"}, 3])
    assert caught.value.path == "$[1]"


def test_an_integer_that_serving_would_refuse_is_refused_in_training():
    for kind in (f.Numeric(scale="minmax"), f.Bucketized(quantiles=2)):
        with pytest.raises(
            InvalidItem, match=r"9007199254740993 cannot be represented exactly as float64: .* at `\$\[1\]\.a`"
        ):
            learnt(kind, [1, 2**53 + 1])
    assert learnt(f.Bucketized(quantiles=2), [1, 2**24 + 1]).boundaries == (2.0**23 + 1,)


@pytest.mark.parametrize(
    "kind", [f.Numeric(scale="standard"), f.Numeric(scale="minmax", fill_value=f.MEAN), f.Bucketized(quantiles=4)]
)
def test_a_column_of_large_integers_is_fitted_as_that_of_the_same_floats(kind):
    prices = np.array([25_000_001, 2**31 + 5, 7, 2**40 + 1, 2**53])
    expected = learnt(kind, prices.astype(np.float64))
    for column in (prices, prices.astype(np.uint64), prices.tolist(), list(prices), prices.astype(object)):
        assert learnt(kind, column) == expected


def test_mean_and_deviation_of_a_narrow_column_are_those_of_its_decimals():
    decimals = [0.1, 0.2, 0.7]
    for dtype in (np.float16, np.float32):
        column = np.array([*decimals, -99.9, math.nan], dtype=dtype)
        for kind in (f.Numeric(scale="standard", fill_value=f.MEAN, missing_values=[-99.9]), f.Bucketized(quantiles=3)):
            given = [*decimals] if isinstance(kind, f.Numeric) else [*decimals, -99.9]
            assert learnt(kind, column) == learnt(kind, list(column)) == learnt(kind, given)


def test_only_the_columns_that_are_learnt_from_are_read():
    features = f.Features({"a": f.Numeric(scale="standard"), "b": f.Hashed(3)})
    assert features.fit([{"a": 1}, {"a": 2}]).fitted
    with pytest.raises(ConfigError, match="no column 'a', which the feature 'a' needs; it has"):
        features.fit({"A": [1]})


def test_a_spec_may_be_fitted_again():
    features = f.Features({"a": f.Vocabulary(max_size=3)}).fit({"a": ["x"]})
    assert features.fit({"a": ["y"]}).statistics["a"].values == ("y",)
    assert features.statistics["a"].values == ("x",)
    assert f.Features({"a": f.Hashed(3)}).fit([]).fitted


def test_every_feature_has_statistics():
    features = f.Features({"a": f.Hashed(3), "b": f.Hashed(3), "c": f.Crossed(["a", "b"], 9)})
    assert dict(features.statistics) == dict.fromkeys("abc", f.Statistics())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: f.Statistics(divisor=0), "divisor must be between 2**-500 and 2**500, got 0.0"),
        (lambda: f.Statistics(divisor=-1), "divisor must be between"),
        (lambda: f.Statistics(divisor=1e300), "divisor must be between"),
        (lambda: f.Statistics(offset=math.inf), "offset: expected a finite number, got inf"),
        (lambda: f.Statistics(offset=1e-310), "offset must be 0 or at least 2**-1022 from 0"),
        (lambda: f.Statistics(mean="3"), "mean: expected a number"),
        (lambda: f.Statistics(boundaries=(2, 1)), "boundaries must rise"),
        (lambda: f.Statistics(values=("a", "a")), "values has 'a' twice"),
    ],
)
def test_statistics_are_checked_at_birth(make, why):
    with pytest.raises(ConfigError) as caught:
        make()
    assert why in str(caught.value)
