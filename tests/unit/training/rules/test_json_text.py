"""Which values have a JSON that a run keeps, and how the others are refused."""

from __future__ import annotations

import enum
import json
import math

import pytest

from penstock.errors import ConfigError
from penstock.training.rules import json_text as module
from penstock.training.rules.json_text import DEEPEST, MOST_BYTES, json_text


class Colour(enum.StrEnum):
    RED = "red"


def nested(deep, make=lambda inner: [inner]):
    value = make(1)
    for _ in range(deep - 1):
        value = make(value)
    return value


def test_one_value_has_one_text():
    assert json_text({"b": [1, (None, True)], "a": "é"}, "it") == '{"a":"\\u00e9","b":[1,[null,true]]}'
    assert json_text({Colour.RED: Colour.RED}, "it") == '{"red":"red"}'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "cannot be written as JSON: Out of range float values are not JSON compliant"),
        ([math.inf], "cannot be written as JSON: Out of range float"),
        ({"a": {1, 2}}, "cannot be written as JSON: Object of type set is not JSON serializable"),
        ([-(10**4300)], "has an integer of more than 4300 digits; write it as a string"),
        (b"bytes", "cannot be written as JSON: Object of type bytes"),
        ({1: "a"}, "has a dict with a key of the type int; use strings as the keys of dicts"),
        ([{"a": ({True: 1},)}], "has a dict with a key of the type bool"),
        ({None: 1}, "has a dict with a key of the type NoneType"),
    ],
)
def test_what_json_cannot_carry_or_would_change_without_a_word_is_refused(value, reason):
    with pytest.raises(ConfigError, match=f"it {reason}"):
        json_text(value, "it")


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: (1, inner), lambda inner: {"a": 1, "b": inner}])
def test_a_value_may_be_nested_a_hundred_deep(make):
    assert json.loads(json_text(nested(DEEPEST, make), "it"))
    for deep in (DEEPEST + 1, 10_000):
        with pytest.raises(ConfigError, match="it is nested more than 100 deep, or contains itself; make it flat"):
            json_text(nested(deep, make), "it")


def test_a_value_may_be_wide():
    assert json_text([[1], [[2], []], {}, {"a": []}] * 1000, "it")


def test_a_value_that_holds_itself_is_refused():
    value = []
    value.extend([value] * 1000)
    with pytest.raises(ConfigError, match="or contains itself"):
        json_text(value, "it")


def test_a_text_may_have_64_mib():
    assert len(json_text("x" * (MOST_BYTES - 2), "it")) == MOST_BYTES
    with pytest.raises(ConfigError, match="it has more than 64 MiB as JSON; write it to a file and pass the path"):
        json_text("x" * (MOST_BYTES - 1), "it")


@pytest.mark.parametrize("value", [["x" * 500, "x" * 501], {"x": {"y": list(range(1001))}}, [[]] * 1001])
def test_what_must_be_too_long_is_refused_before_it_is_written(monkeypatch, value):
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    monkeypatch.setattr(module, "_ENCODER", None)
    with pytest.raises(ConfigError, match="it has more than"):
        json_text(value, "it")


def test_a_value_that_is_small_and_has_itself_many_times_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    value = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(ConfigError, match="it has more than"):
        json_text(value, "it")
