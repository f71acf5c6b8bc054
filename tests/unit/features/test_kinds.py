"""Each kind is checked at birth, and says what is wrong with which option."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock import features as f
from penstock.errors import ConfigError
from rows import each

WRONG = [
    (lambda: f.Numeric(scale="log"), 'scale must be "standard", "minmax" or None, got \'log\''),
    (lambda: f.Numeric(fill_value=f.EMPTY), "fill_value=EMPTY is for features with ids"),
    (lambda: f.Numeric(fill_value="3"), "fill_value: expected a number, got str '3'"),
    (lambda: f.Numeric(fill_value=True), "fill_value: expected a number, got bool True"),
    (lambda: f.Numeric(fill_value=math.nan), "fill_value must be a value, but nan is a missing one"),
    (lambda: f.Numeric(fill_value=math.inf), "fill_value: expected a finite number, got inf"),
    (lambda: f.Numeric(fill_value=2**53 + 1), "fill_value: 9007199254740993 cannot be represented exactly as float64"),
    (lambda: f.Numeric(missing_values="ab"), "missing_values must be a sequence"),
    (lambda: f.Numeric(missing_values={1}), "missing_values must be a sequence"),
    (lambda: f.Numeric(missing_values=[None]), "missing_values must have strings and numbers, got None"),
    (lambda: f.Numeric(missing_values=[True]), "missing_values must have strings and numbers, got True"),
    (lambda: f.Numeric(missing_values=["\ud800"]), "missing_values has half of a surrogate pair"),
    (lambda: f.Numeric(column=""), "column must be a name, got ''"),
    (lambda: f.Numeric(column=3), "column must be a name, got 3"),
    (lambda: f.Bucketized(), "give either boundaries= or quantiles="),
    (lambda: f.Bucketized([1], quantiles=2), "give either boundaries= or quantiles="),
    (lambda: f.Bucketized([]), "boundaries must have at least one number"),
    (lambda: f.Bucketized([1, 1]), "boundaries must rise, got (1.0, 1.0)"),
    (lambda: f.Bucketized([2, 1]), "boundaries must rise"),
    (lambda: f.Bucketized([math.nan]), "boundaries must be a value, but nan is a missing one"),
    (lambda: f.Bucketized([2**53 + 1]), "cannot be represented exactly as float64"),
    (lambda: f.Bucketized([1e-310]), "boundaries must be 0 or at least 2**-1022 from 0"),
    (lambda: f.Bucketized(3), "boundaries must be a sequence"),
    (lambda: f.Bucketized(quantiles=1), "quantiles must be an integer of at least 2"),
    (lambda: f.Bucketized(quantiles=2**31), "quantiles must be an integer of at least 2 and at most 2147483647"),
    (lambda: f.Hashed(0), "buckets must be an integer of at least 1"),
    (lambda: f.Hashed(2.0), "buckets must be an integer of at least 1 and at most 9223372036854775807, got 2.0"),
    (lambda: f.Hashed(True), "buckets must be an integer"),
    (lambda: f.Hashed(2**63), "buckets must be an integer"),
    (lambda: f.Hashed(2, one_hot=1), "one_hot must be True or False, got 1"),
    (lambda: f.Hashed(2, max_length=0), "max_length must be an integer of at least 1"),
    (lambda: f.Hashed(2, max_length=2**31), "max_length must be an integer of at least 1 and at most 2147483647"),
    (lambda: f.Hashed(2, weights="w"), "weights='w' needs max_length="),
    (lambda: f.Hashed(2, max_length=2, weights=""), "weights must be a name"),
    (lambda: f.Hashed(2, max_length=2, weights="w", column="w"), "cannot both be in the column 'w'"),
    (lambda: f.Hashed(2, cross_only=True, one_hot=True), "cross_only=True creates no input of the model"),
    (lambda: f.Hashed(2, cross_only=True, max_length=2), "cross_only=True creates no input of the model"),
    (lambda: f.Hashed(2, fill_value=f.MEAN), "fill_value=MEAN is for numbers"),
    (lambda: f.Hashed(2, missing_values=[None]), "missing_values must have strings, numbers and booleans, got None"),
    (lambda: f.Ids(2, missing_values=[True]), "missing_values must have strings and numbers, got True"),
    (lambda: f.Hashed(2, fill_value=0.5), "fill_value: a category is a string"),
    (lambda: f.Vocabulary(), "give either values= or max_size="),
    (lambda: f.Vocabulary(["a"], max_size=3), "give either values= or max_size="),
    (lambda: f.Vocabulary([]), "values must have at least one value"),
    (lambda: f.Vocabulary("abc"), "values must be a sequence"),
    (lambda: f.Vocabulary(["a", "b", "a"]), "values has 'a' twice"),
    (lambda: f.Vocabulary([9, "9"]), "values has '9' twice; 9, 9.0 and '9' are one category"),
    (lambda: f.Vocabulary([None]), "values must be a value, but None is a missing one"),
    (lambda: f.Vocabulary(max_size=0), "max_size must be an integer of at least 1"),
    (lambda: f.Vocabulary(max_size=1, min_count=0), "min_count must be an integer of at least 1"),
    (lambda: f.Vocabulary(("a",), min_count=5), "min_count= needs max_size=: values that are given are not counted"),
    (lambda: f.Crossed(("a", "a"), 10), "keys must name each feature once, got ('a', 'a')"),
    (lambda: f.Vocabulary(max_size=1, num_oov_indices=-1), "num_oov_indices must be an integer of at least 0"),
    (lambda: f.Vocabulary(["a"], unknown="a"), "unknown= needs num_oov_indices=0"),
    (lambda: f.Vocabulary(["a"], num_oov_indices=0, unknown="b"), "unknown must be one of the values, got 'b'"),
    (lambda: f.Vocabulary(["a"], num_oov_indices=0, unknown=f.MEAN), "unknown=MEAN is not possible"),
    (lambda: f.Crossed(["a"], 3), "keys must name at least two features"),
    (lambda: f.Crossed("ab", 3), "keys must be a sequence"),
    (lambda: f.Crossed(["a", 1], 3), "keys must be a name, got 1"),
    (lambda: f.Crossed(["a", "b"], 0), "buckets must be an integer"),
    (lambda: f.Crossed(["a", "b"], 3, hash_key=-1), "hash_key must be an integer of at least 0"),
    (lambda: f.Crossed(["a", "b"], 3, hash_key=2**64), "hash_key must be an integer of at least 0 and at most"),
    (lambda: f.Crossed(["a", "b"], 3, fill_value=3), "fill_value of a cross must be EMPTY or None, got 3"),
    (lambda: f.Ids(0), "size must be an integer of at least 1"),
    (lambda: f.Ids(one_hot=True), "one_hot=True needs size="),
    (lambda: f.Ids(unknown=1), "unknown= needs size="),
    (lambda: f.Ids(3, fill_value=3), "fill_value must be an id of 0 to 2, got 3"),
    (lambda: f.Ids(3, unknown=-1), "unknown must be an id of 0 to 2, got -1"),
    (lambda: f.Ids(3, unknown=f.MEAN), "unknown=MEAN is not possible"),
    (lambda: f.Ids(3, fill_value="x"), "fill_value: expected an integer or its decimal string, got str 'x'"),
    (lambda: f.Text(fill_value=3), "fill_value of a text must be a string or None, got 3"),
    (lambda: f.Text(fill_value="\udfff"), "fill_value has half of a surrogate pair"),
]


@each(("make", "why"), WRONG)
def test_a_kind_that_cannot_be_is_refused_at_birth(make, why):
    with pytest.raises(ConfigError) as caught:
        make()
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        (lambda: f.Hashed(1), "buckets", 1),
        (lambda: f.Hashed(2**63 - 1), "buckets", 2**63 - 1),
        (lambda: f.Hashed(1, max_length=1), "max_length", 1),
        (lambda: f.Hashed(1, max_length=2**31 - 1), "max_length", 2**31 - 1),
        (lambda: f.Bucketized(quantiles=2), "quantiles", 2),
        (lambda: f.Bucketized(quantiles=2**31 - 1), "quantiles", 2**31 - 1),
        (lambda: f.Vocabulary(max_size=1, min_count=1, num_oov_indices=0), "num_oov_indices", 0),
        (lambda: f.Crossed(["a", "b"], 1, hash_key=0), "hash_key", 0),
        (lambda: f.Crossed(["a", "b"], 1, hash_key=2**64 - 1), "hash_key", 2**64 - 1),
        (lambda: f.Ids(1, fill_value=0), "fill_value", 0),
        (lambda: f.Ids(2**63 - 1, fill_value=2**63 - 2), "fill_value", 2**63 - 2),
    ],
)
def test_an_option_at_its_limit_is_taken(make, option, value):
    assert getattr(make(), option) == value


def test_options_are_kept_in_one_form():
    assert f.Numeric(fill_value=np.int64(3), missing_values=[np.float32(0.5), np.str_("a")]) == f.Numeric(
        fill_value=3.0, missing_values=(0.5, "a")
    )
    assert type(f.Numeric(fill_value=np.float32(0.5)).fill_value) is float
    assert f.Bucketized(np.array([1, 2])).boundaries == (1.0, 2.0)
    assert f.Bucketized(range(2)).boundaries == (0.0, 1.0)
    assert f.Hashed(np.int64(3), fill_value=9.0).fill_value == "9"
    assert f.Vocabulary(iter([1, 2.0, "x"])).values == ("1", "2", "x")
    assert f.Ids(np.int64(5), fill_value="3").fill_value == 3
    assert f.Crossed(["a", "b"], 3).keys == ("a", "b")
    assert f.Numeric(missing_values=(1, 1.0)).missing_values == (1, 1.0)


def test_fill_values_are_kept():
    assert f.Ids(3, fill_value=f.EMPTY, unknown=f.EMPTY).unknown is f.EMPTY
    assert f.Bucketized([1], fill_value=f.MEAN).fill_value is f.MEAN
    assert f.Vocabulary(max_size=3, num_oov_indices=0, unknown="later").unknown == "later"
    assert f.Crossed(["a", "b"], 3, fill_value=f.EMPTY).fill_value is f.EMPTY
