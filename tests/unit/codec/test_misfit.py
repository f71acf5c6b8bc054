"""Which objects of the author's own cannot be items, and which are left alone."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Protocol, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray

from penstock.codec.type_check import ResultWatch, misfit
from rows import each


@dataclass
class Point:
    x: int
    made: int = field(init=False, default=3)


class House(msgspec.Struct):
    rooms: int


class Model(pydantic.BaseModel):
    x: int


class Fields(TypedDict):
    x: int


class Reads(Protocol):
    def read(self) -> str: ...


class Own: ...


class Below(Own): ...


FLOATS = np.ndarray[Any, np.dtype[np.float32]]


@pytest.mark.parametrize(
    ("type_", "value", "words"),
    [
        (str, 1, "expected `str`, got `int`"),
        (list[float], ["a"], "expected `float`, got `str` at `$[0]`"),
        (House, {"rooms": "a"}, "expected `int`, got `str` at `$.rooms`"),
        (Own, 3, "expected `Own`, got `int`"),
        (str | None, 3, "expected `str | null`, got `int`"),
    ],
)
def test_an_object_that_cannot_be_an_item_is_told_why(type_, value, words):
    assert misfit(type_, value) == words


def test_what_pydantic_says_is_told():
    assert "x" in misfit(Model, {"x": "many"})


@each(
    ("type_", "value"),
    [
        (Any, 1),
        (object, 1),
        (str, "a"),
        (float, 1),
        (float, math.nan),
        (float, np.float32(1)),
        (Annotated[str, msgspec.Meta(min_length=1)], "a"),
        (list[float], [1, 2.0]),
        (Point, Point(1)),
        (Point, {"x": 1}),
        (House, House(rooms=1)),
        (House, {"rooms": 1}),
        (list[House], [House(rooms=1)]),
        (Model, Model(x=1)),
        (Model, {"x": 1}),
        (Fields, {"x": 1}),
        (np.ndarray, np.zeros(2)),
        (FLOATS, np.zeros(2)),
        (FLOATS, [1.0, 2.0]),
        (FLOATS | None, np.zeros(2)),
        (Own, Own()),
        (Own, Below()),
        (list[int] | list[str], "nobody can tell"),
        (Reads, Own()),
        (complex, 1j),
    ],
)
def test_an_object_that_can_be_an_item_is_left_alone(type_, value):
    assert misfit(type_, value) == ""


class Level(Enum):
    LOW = 1


class Named(OrderedDict):
    pass


class Strange(msgspec.Struct):
    x: int

    def __post_init__(self):
        raise KeyboardInterrupt


def watched(type_, value):
    return ResultWatch(type_, 100).look(value)


@each(
    ("type_", "value"),
    [
        (Any, "x"),
        (float, 1),
        (float, np.float32(1)),
        (str | None, None),
        (list[float], np.zeros(2)),
        (np.ndarray, np.zeros(2)),
        (NDArray[np.float32], np.zeros(2, np.float32)),
        (Point, Point(1)),
        (Model, Model(x=1)),
        (Model, {"x": 1}),
        (Level, Level.LOW),
        (list[Level], [Level.LOW]),
        (Named, Named()),
        (list[int] | list[str], ["x"]),  # nothing can be checked against it
        (Strange, {"x": 1}),  # what its own check raises says nothing of the value
    ],
)
def test_a_result_that_is_as_declared_or_of_which_nobody_can_tell_is_no_misfit(type_, value):
    assert watched(type_, value) == ""


@each(
    ("type_", "value", "words"),
    [
        (float, "x", "a result is not `float`: expected `float`, got `str`"),
        (list[float], [1.0, "x"], "a result is not `list[float]`: expected `float`, got `str` at `$[1]`"),
        (Point, Point("x"), "a result is not `Point`: expected `int`, got `str` at `$.x`"),
        (NDArray[np.float32], np.zeros(2), "expected an array of `float32`, got `float64`"),
        (Level, 7, "a result is not `Level`: invalid enum value 7"),
    ],
)
def test_a_result_that_is_not_as_declared_is_told_with_its_place(type_, value, words):
    assert watched(type_, value).endswith(words)


def test_a_watch_is_over_when_it_has_told_or_seen_enough_or_can_check_nothing():
    assert ResultWatch(Any, 3).over
    assert ResultWatch(list[int] | list[str], 3).over
    watch = ResultWatch(float, 2)
    watch.look(1.0, counts=False)
    watch.look(1.0)
    assert not watch.over
    watch.look(1.0)
    assert watch.over
    assert watch.look("x") == ""
    watch = ResultWatch(float, 2)
    assert watch.look("x") != ""
    assert watch.over
