"""Which values a plan may have, and how two plans differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.training.rules.task_plans import plan_difference, plan_texts
from penstock.training.rules.task_states import Phase
from penstock.training.task_store import RunPlan

TRAIN, EVALUATE, PREDICT, SAVE = Phase
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def texts(publish_to=None, **tasks):
    return plan_texts(RunPlan({Phase(kind): payloads for kind, payloads in tasks.items()}, publish_to))


@given(JSON)
def test_what_json_can_carry_can_be_planned(payload):
    assert len(texts(train=[payload])[TRAIN]) == 1


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ((1, 2), r"changes when it is written as JSON and read again: \(1, 2\) becomes \[1,2\]; use lists"),
        ({"a": [(1,)]}, "changes when it is written as JSON and read again"),
        ({1: "a", "1": "b"}, "has a dict with a key of the type int; use strings as the keys of dicts"),
        (math.nan, "cannot be written as JSON: Out of range float values are not JSON compliant"),
    ],
)
def test_what_json_would_change_is_refused_by_kind_and_place(payload, reason):
    with pytest.raises(ConfigError, match=f"the payload of task evaluate 1 {reason}"):
        texts(evaluate=["fine", payload])


def test_a_long_value_is_shown_in_part():
    with pytest.raises(ConfigError) as raised:
        texts(train=[tuple(range(1000))])
    assert len(str(raised.value)) < 400


def test_the_text_of_a_value_does_not_depend_on_the_order_of_its_keys():
    assert texts(train=[{"b": 1, "a": 2}]) == texts(train=[{"a": 2, "b": 1}])


def test_the_save_task_is_there_only_where_the_run_publishes():
    assert texts() == {TRAIN: [], EVALUATE: [], PREDICT: [], SAVE: []}
    assert texts("/models/a", predict=[1]) == {TRAIN: [], EVALUATE: [], PREDICT: ["1"], SAVE: ["null"]}


@pytest.mark.parametrize(
    ("new", "difference"),
    [
        (((("train", [1, 2]),), "/m"), None),
        (((("train", [1, 2, 3]),), "/m"), "it has 2 train tasks, not 3"),
        (((("train", [1, 2]), ("predict", [1])), "/m"), "it has 0 predict tasks, not 1"),
        (((("train", [1, "two"]),), "/m"), 'its task train 1 is 2, not "two"'),
        (((("train", [1, 2]),), "/n"), "it publishes to /m, not to /n"),
        (((("train", [1, 2]),), None), "it publishes to /m, not to no model directory"),
    ],
)
def test_two_plans_are_told_apart(new, difference):
    tasks, publish_to = new
    kept = texts("/m", train=[1, 2])
    assert plan_difference(kept, "/m", texts(publish_to, **dict(tasks)), publish_to) == difference


def test_a_model_directory_that_comes_later_is_told():
    assert plan_difference(texts(), None, texts("/m"), "/m") == "it publishes to no model directory, not to /m"


def test_one_and_one_point_zero_are_two_plans():
    assert plan_difference(texts(train=[1]), None, texts(train=[1.0]), None) == "its task train 0 is 1, not 1.0"
