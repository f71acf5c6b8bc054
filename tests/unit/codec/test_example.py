"""Examples with answers: which answers pass for the one that is wanted, and how another one is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import numpy as np
import pydantic
import pytest

import penstock as ps
from penstock.codec.example import WrongAnswer, check_answer, difference, input_of, inputs_of
from penstock.errors import ConfigError


@dataclass
class Box:
    score: float
    took: float = field(default=0.0, compare=False)


class Point(msgspec.Struct):
    x: float


class Model(pydantic.BaseModel):
    x: float


class Pair(NamedTuple):
    x: float
    y: str


class Tensor:
    """As TensorFlow's: it has `numpy` and no `tolist`."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def numpy(self):
        return np.array(self.numbers, dtype=np.float32)


class Attrs:
    """As a class that attrs has made."""

    __attrs_attrs__ = (SimpleNamespace(name="x"),)

    def __init__(self, x):
        self.x = x


NEAR = 1.0 + 0.9e-5
FAR = 1.0 + 1.1e-5
HUGE = 10**400


@pytest.mark.parametrize(
    ("wanted", "came"),
    [
        (1.0, NEAR),
        (-1e30, -1e30 * NEAR),
        (1, 1.0),
        (1.0, 1),
        (True, True),
        (math.nan, math.nan),
        (math.inf, math.inf),
        ("a", "a"),
        (None, None),
        (b"a", bytearray(b"a")),
        (memoryview(b"a"), b"a"),
        ([1.0, "a"], (NEAR, "a")),
        ({"a": [1.0]}, {"a": [NEAR]}),
        ({3, 4}, {4, 3}),
        (Box(1.0), Box(NEAR, took=7.0)),
        (Point(1.0), Point(NEAR)),
        (Model(x=1.0), Model(x=NEAR)),
        (Pair(1.0, "y"), Pair(NEAR, "y")),
        (Attrs(1.0), Attrs(NEAR)),
        ([0.1, 0.2], np.array([0.1, 0.2], dtype=np.float32)),
        (np.array([[1], [2]]), [[1], [2]]),
        (0.1, np.float32(0.1)),
        ([0.1], Tensor(0.1)),
        (HUGE, HUGE),
    ],
)
def test_what_differs_by_rounding_or_by_its_container_is_right(wanted, came):
    assert difference(wanted, came, None) == ""


SAYS = "; floats may differ by 1e-05 of their value; set `tolerance=` of the Example to change it"


@pytest.mark.parametrize(
    ("wanted", "came", "words"),
    [
        (1.0, FAR, f"expected 1.0, got {FAR}{SAYS}"),
        (0.0, 1e-12, f"expected 0.0, got 1e-12{SAYS}"),
        (1.0, math.inf, f"expected 1.0, got inf{SAYS}"),
        (math.inf, 1.0, f"expected inf, got 1.0{SAYS}"),
        (math.nan, 1.0, f"expected nan, got 1.0{SAYS}"),
        (1, 2, "expected 1, got 2"),
        ("a", 1.0, "expected 'a', got 1.0"),
        (None, 0, "expected None, got 0"),
        ([1.0, {"a": [3]}], [1.0, {"a": [4]}], "expected 3, got 4 at `$[1].a[0]`"),
        ([1], [1, 2], "expected [1], got [1, 2]"),
        ({"a": 1}, {"b": 1}, "expected {'a': 1}, got {'b': 1}"),
        (Box(1.0), Box(2.0), f"expected 1.0, got 2.0 at `$.score`{SAYS}"),
        (Point(1.0), {"x": 1.0}, "expected Point(x=1.0), got {'x': 1.0}"),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0]), f"expected 2.0, got 3.0 at `$[1]`{SAYS}"),
        (np.zeros((1, 2)), np.zeros(2), "expected [[0.0, 0.0]], got [0.0, 0.0]"),
    ],
)
def test_another_answer_is_told_with_what_was_wanted_and_what_came(wanted, came, words):
    assert difference(wanted, came, None) == words


def test_an_integer_that_no_float_can_be_is_far_from_every_float():
    assert difference(1.0, HUGE, None).startswith("expected 1.0, got 1000")
    assert difference(float("inf"), HUGE, 5.0) != ""


@pytest.mark.parametrize(
    ("tolerance", "wanted", "came", "is_right"),
    [
        (0.01, 0.0, 0.0099, True),
        (0.01, 0.0, 0.011, False),
        (0.01, 100.0, 100.99, True),
        (0.01, 100.0, 101.1, False),
        (0, 1.0, 1.0, True),
        (0, 1.0, math.nextafter(1.0, 2.0), False),
        (5.0, 1, 2, False),
    ],
)
def test_a_tolerance_is_absolute_or_a_part_of_the_value_whichever_is_more_and_for_floats_alone(
    tolerance, wanted, came, is_right
):
    assert (difference(wanted, came, tolerance) == "") is is_right


def test_large_values_are_shown_without_their_middle():
    words = difference("a" * 1_000_000, "b", None)
    assert len(words) < 1000
    assert "got 'b'" in words


@pytest.mark.parametrize("tolerance", [-1, -0.5, math.nan, math.inf, "0.1", True])
def test_a_tolerance_is_a_number_of_at_least_0(tolerance):
    with pytest.raises(ConfigError, match="the tolerance of an Example must be None or a number of at least 0, got "):
        ps.Example(1, 2, tolerance=tolerance)


def test_an_unknown_argument_of_an_example_is_named():
    with pytest.raises(ConfigError, match="there is no 'outputs' here"):
        ps.Example(1, outputs=2)


def test_a_plain_example_has_no_wrong_answer():
    examples = [5, ps.Example(1, 2)]
    assert inputs_of(examples) == [5, 1]
    assert input_of(5) == 5
    check_answer(5, "anything", "examples[0]")
    check_answer(examples[1], 2, "examples[1]")
    with pytest.raises(WrongAnswer, match=r"examples\[1\]: expected 2, got 3"):
        check_answer(examples[1], 3, "examples[1]")
