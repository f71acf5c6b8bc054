"""A spec as text, exactly; and every text that is none is refused."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import features as f
from penstock.errors import ConfigError
from rows import each

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
normal = finite.filter(lambda number: number == 0 or abs(number) >= 2.0**-1022)
values = words | finite | st.integers(-(10**40), 10**40) | st.sampled_from([math.inf, -math.inf])
boundaries = st.lists(normal, min_size=1, max_size=6, unique=True).map(sorted)


@given(
    names=st.lists(words.filter(bool), min_size=6, max_size=6, unique=True),
    missing_values=st.lists(values, max_size=4),
    fill_value=finite,
    word=words,
    cuts=boundaries,
    known=st.lists(words, min_size=1, max_size=6, unique=True),
    hash_key=st.integers(0, 2**64 - 1),
    size=st.integers(1, 2**63 - 1),
)
def test_every_value_of_an_option_comes_back(names, missing_values, fill_value, word, cuts, known, hash_key, size):
    kinds = dict(
        zip(
            names,
            [
                f.Numeric(fill_value=fill_value, missing_values=missing_values, column=names[0]),
                f.Bucketized(cuts, fill_value=f.MEAN, missing_values=missing_values),
                f.Vocabulary(
                    known, num_oov_indices=0, unknown=known[0], fill_value=word, missing_values=missing_values
                ),
                f.Ids(size, fill_value=size - 1, cross_only=True),
                f.Text(fill_value=word),
                f.Crossed([names[2], names[3]], size, hash_key=hash_key),
            ],
            strict=True,
        )
    )
    spec = f.Features(kinds)
    again = f.Features.from_json(spec.to_json())
    assert again == spec
    assert repr(again) == repr(spec)  # which tells 1 from 1.0, and 0.0 from -0.0
    assert again.to_json() == spec.to_json()


@given(
    offset=normal,
    divisor=st.floats(2.0**-500, 2.0**500),
    mean=finite,
    cuts=boundaries,
    known=st.lists(words, unique=True),
)
def test_every_statistic_comes_back(offset, divisor, mean, cuts, known):
    spec = f.Features(
        {
            "n": f.Numeric(scale="standard", fill_value=f.MEAN),
            "b": f.Bucketized(quantiles=3),
            "v": f.Vocabulary(max_size=99),
        }
    )
    learnt = json.loads(spec.fit([{"n": 1, "b": 2, "v": "a"}]).to_json())
    learnt["statistics"]["n"] |= {"offset": offset, "divisor": divisor, "mean": mean}
    learnt["statistics"]["b"]["boundaries"] = cuts
    learnt["statistics"]["v"]["values"] = known
    features = f.Features.from_json(json.dumps(learnt))
    again = f.Features.from_json(features.to_json())
    assert again.statistics["n"] == f.Statistics(offset=offset, divisor=divisor, mean=mean)
    assert repr(dict(again.statistics)) == repr(dict(features.statistics))
    assert (again.statistics["b"].boundaries, again.statistics["v"].values) == (tuple(cuts), tuple(known))


def spec() -> f.Features:
    kinds = {"n": f.Numeric(scale="minmax", fill_value=f.MEAN, missing_values=[math.inf, "é"]), "h": f.Hashed(3)}
    return f.Features(kinds, concat_into="x").fit([{"n": 1}, {"n": 2.5}])


def test_a_spec_can_be_pickled_and_copied():
    for features in (spec(), f.Features({"n": f.Numeric(scale="minmax")})):
        for again in (pickle.loads(pickle.dumps(features)), copy.copy(features), copy.deepcopy(features)):
            assert again == features
    assert pickle.loads(pickle.dumps(spec())).encode([{"n": 1, "h": 1}])["x"].tolist() == [[0.0]]


def test_text_may_be_bytes():
    assert f.Features.from_json(spec().to_json().encode()) == spec()


def changed(*path, to):
    """The text of a spec with one value changed; `to` may be a function of the value."""
    whole = json.loads(spec().to_json())
    part = whole
    for key in path[:-1]:
        part = part[key]
    if to is None:
        del part[path[-1]]
    else:
        part[path[-1]] = to
    return json.dumps(whole)


WRONG = [
    ("{", "not a valid feature spec"),
    (b"\xff", "not a valid feature spec"),
    ("[" * 100_000, "not a valid feature spec"),
    ("[]", "the text must be an object, got []"),
    ('{"concat_into": NaN}', "NaN is not valid JSON"),
    ('{"schema": 2, "schema": 2}', "a key is given twice in an object with the keys ['schema', 'schema']"),
    (changed("schema", to=3), "the schema of features must be 1 or 2, got 3"),
    (changed("schema", to=True), "the schema of features must be 1 or 2, got True"),
    (changed("schema", to=None), "the text has no 'schema'"),
    (changed("more", to=1), "the text has an unknown key 'more'"),
    (changed("concat_into", to=3), "concat_into must be a name or null, got 3"),
    (changed("features", to=[]), "features must be an object, got []"),
    (changed("features", "n", to=3), "the feature 'n' must be an object, got 3"),
    (changed("features", "n", "kind", to="Number"), "the kind 'Number'; kinds: Numeric, Bucketized"),
    (changed("features", "n", "kind", to=["Numeric"]), "the kind ['Numeric']"),
    (changed("features", "n", "kind", to=None), "the feature 'n' has the kind None"),
    (changed("features", "n", "fil_value", to=3), "an unknown key 'fil_value'; did you mean 'fill_value'?"),
    (changed("features", "n", "column", to=None), "the feature 'n' has no 'column'"),
    (
        changed("features", "n", "fill_value", to={"fill_value": "median"}),
        "the feature 'n': {'fill_value': 'median'} is not a known value",
    ),
    (changed("features", "n", "fill_value", to={"stand_in": "mean"}), "{'stand_in': 'mean'} is not a known value"),
    (changed("features", "n", "missing", to=3), "an unknown key 'missing'"),
    (changed("schema", to=1), "the text has an unknown key 'concat_into'"),
    (changed("features", "n", "fill_value", to={"fill_value": []}), "is not a known value"),
    (changed("features", "n", "fill_value", to={"float": "nan"}), "is not a known value"),
    (changed("features", "n", "fill_value", to=True), "fill_value: expected a number, got bool True"),
    (changed("features", "h", "buckets", to=3.0), "the feature 'h': buckets must be an integer"),
    (changed("features", "n", "scale", to=[1]), "scale must be"),
    (changed("statistics", to=[]), "statistics must be an object, got []"),
    (changed("statistics", "n", to=None), "statistics has no 'n'"),
    (changed("statistics", "z", to={}), "statistics has an unknown key 'z'"),
    (changed("statistics", "n", "mean", to="3"), "mean: expected a number"),
    (changed("statistics", "n", "median", to=3), "the statistics of 'n' has an unknown key 'median'"),
    (changed("statistics", "n", "divisor", to=0), "divisor must be between"),
    (changed("statistics", "n", "boundaries", to=[1]), "Numeric has no boundaries"),
    (changed("statistics", "h", "mean", to=1), "Hashed has no mean"),
    (changed("statistics", "h", "offset", to=1), "Hashed that is not scaled has no offset"),
]


@each(("text", "why"), WRONG)
def test_a_text_that_says_something_else_is_refused(text, why):
    with pytest.raises(ConfigError) as caught:
        f.Features.from_json(text)
    assert why in str(caught.value)


def test_statistics_that_a_kind_needs_must_be_there():
    text = json.loads(spec().to_json())
    text["statistics"]["n"]["mean"] = None
    with pytest.raises(ConfigError, match="Numeric needs mean"):
        f.Features.from_json(json.dumps(text))


def test_the_text_of_a_spec_that_is_not_fitted_says_so():
    features = f.Features({"n": f.Numeric(scale="minmax")})
    assert json.loads(features.to_json())["statistics"] is None
    assert not f.Features.from_json(features.to_json()).fitted
