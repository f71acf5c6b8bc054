"""Which objects of the author's own cannot be items, and which are left alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest

from penstock.codec.type_check import misfit
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
