"""Features that cannot stand in one spec, or are not fitted, are refused."""

from __future__ import annotations

import pytest

from penstock import features as f
from penstock.errors import ConfigError
from rows import each

NUMBER, WORD = f.Numeric(), f.Hashed(3)
WRONG = [
    ([], None, "features must be a dict of features by name, got list"),
    ({}, None, "a spec needs at least one feature"),
    ({"": NUMBER}, None, "the name of a feature must be a name, got ''"),
    ({3: NUMBER}, None, "the name of a feature must be a name, got 3"),
    ({"a": "Numeric"}, None, "the feature 'a' must be a kind, such as penstock.features.Numeric(), got 'Numeric'"),
    ({"a": f.Numeric}, None, "the feature 'a' must be a kind"),
    ({"a": WORD}, "x", "concat_into='x' has nothing to concatenate: no feature is a number or one-hot"),
    ({"a": NUMBER}, "", "concat_into must be a name, got ''"),
    ({"a": NUMBER, "x": WORD}, "x", "the feature 'x' and concat_into='x' would both be the input 'x'"),
    (
        {"a": f.Hashed(3, max_length=2), "a_weight": NUMBER},
        None,
        "the feature 'a_weight' and the weights of 'a' would both be the input 'a_weight'",
    ),
    (
        {"a": f.Hashed(3, max_length=2), "a_weight": NUMBER},
        "x",
        "the feature 'a_weight' and the weights of 'a' would both be the input 'a_weight'",
    ),
    (
        {"a": f.Hashed(3, fill_value=f.EMPTY), "a_weight": NUMBER},
        None,
        "the feature 'a_weight' and the weights of 'a' would both be the input 'a_weight'",
    ),
    (
        {"a": f.Hashed(3, max_length=2), "n": NUMBER},
        "a_weight",
        "the weights of 'a' and concat_into='a_weight' would both be the input 'a_weight'",
    ),
    ({"a": f.Hashed(3, cross_only=True), "n": NUMBER}, None, "'a' has cross_only=True, but no cross has it as a key"),
    (
        {"educ": WORD, "c": f.Crossed(["educ", "edu"], 3)},
        None,
        "'c' is crossed with 'edu', which is not a feature; did you mean 'educ'?",
    ),
    ({"a": WORD, "c": f.Crossed(["a", "zz"], 3)}, None, "'c' is crossed with 'zz', which is not a feature"),
    ({"a": WORD, "n": NUMBER, "c": f.Crossed(["a", "n"], 3)}, None, "cannot be crossed with 'n', which is Numeric"),
    ({"a": WORD, "t": f.Text(), "c": f.Crossed(["a", "t"], 3)}, None, "cannot be crossed with 't', which is Text"),
    (
        {"a": WORD, "b": WORD, "c": f.Crossed(["a", "b"], 3), "d": f.Crossed(["a", "c"], 3)},
        None,
        "'d' cannot be crossed with 'c', which is Crossed",
    ),
    (
        {"a": WORD, "m": f.Hashed(3, max_length=2), "c": f.Crossed(["a", "m"], 3)},
        None,
        "'m', which has many values a row",
    ),
    (
        {"a": WORD, "b": f.Hashed(3, column="a", max_length=2)},
        None,
        "the column 'a' is a value for 'a' and a list for 'b'",
    ),
    (
        {"a": f.Hashed(3, max_length=2, weights="b"), "b": NUMBER},
        None,
        "the column 'b' is weights for 'a' and a value for 'b'",
    ),
]


@each(("kinds", "concat_into", "why"), WRONG)
def test_features_that_cannot_stand_together_are_refused(kinds, concat_into, why):
    with pytest.raises(ConfigError) as caught:
        f.Features(kinds, concat_into=concat_into)
    assert why in str(caught.value)


def test_names_that_are_not_inputs_may_be_used_twice():
    assert f.Features({"x": NUMBER, "y": WORD}, concat_into="x").inputs[0].name == "x"  # `x` itself is joined
    assert f.Features({"a": f.Hashed(3, max_length=2, one_hot=True), "a_weight": NUMBER}).fitted
    keys = {"a": f.Hashed(3, cross_only=True), "b": WORD, "n": NUMBER, "c": f.Crossed(["a", "b"], 9)}
    assert [tensor.name for tensor in f.Features(keys, concat_into="a").inputs] == ["b", "a", "c"]


def test_two_features_may_read_one_column():
    features = f.Features({"age": f.Numeric(), "decade": f.Bucketized([10, 20], column="age")})
    assert features.columns == ("age",)
    assert features.encode([{"age": 15}])["decade"].tolist() == [1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda spec: spec.encode([]),
        lambda spec: spec.encode_rows([]),
        lambda spec: spec.inputs,
        lambda spec: spec.sizes,
        lambda spec: spec.statistics,
        lambda spec: spec.item_type(),
    ],
)
def test_a_spec_that_is_not_fitted_says_so(ask):
    spec = f.Features({"age": f.Numeric(scale="standard"), "job": f.Vocabulary(max_size=3), "n": NUMBER})
    assert not spec.fitted
    with pytest.raises(
        ConfigError, match=r"^the features age, job are not fitted: call `features = features.fit\(table\)`"
    ):
        ask(spec)


def test_a_spec_does_not_change():
    kinds = {"n": f.Numeric(scale="minmax")}
    spec = f.Features(kinds)
    kinds["m"] = NUMBER
    assert list(spec.features) == ["n"]
    with pytest.raises(AttributeError):
        spec.concat_into = "x"
    with pytest.raises(TypeError):
        spec.features["m"] = NUMBER
    fitted = spec.fit([{"n": 1}, {"n": 2}])
    assert (spec.fitted, fitted.fitted) == (False, True)
    with pytest.raises(TypeError):
        fitted.statistics["n"] = f.Statistics()


def test_specs_are_equal_when_everything_is():
    spec = f.Features({"n": f.Numeric(scale="minmax")})
    assert spec == f.Features({"n": f.Numeric(scale="minmax")})
    assert hash(spec) == hash(f.Features({"n": f.Numeric(scale="minmax")}))
    assert spec != f.Features({"n": f.Numeric(scale="minmax")}, concat_into="x")
    assert spec != f.Features({"n": NUMBER})
    one, other = spec.fit([{"n": 1}, {"n": 2}]), spec.fit([{"n": 1}, {"n": 3}])
    assert len({spec, one, other}) == 3
    assert f.Features({"a": WORD, "b": WORD}) != f.Features({"b": WORD, "a": WORD})  # the order is that of the inputs
    assert spec != "spec"


def test_a_spec_shows_what_it_is():
    spec = f.Features({"n": f.Numeric(scale="minmax")}, concat_into="x")
    shown = repr(spec)
    assert "'n': Numeric(scale='minmax'" in shown
    assert "concat_into='x'" in shown
    assert "not fitted" in shown
    assert "not fitted" not in repr(spec.fit([{"n": 1}]))
    assert "concat_into" not in repr(f.Features({"n": NUMBER}))
