"""Types that certainly do not fit each other are told from all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import numpy as np
import pydantic

from penstock.codec.fitting import cannot_fit
from rows import each


@dataclass
class Point:
    x: int


@dataclass
class Word(str):  # noqa: SLOT000  # as people write it
    n: int


class House(msgspec.Struct):
    rooms: int


class Model(pydantic.BaseModel):
    x: int


class Fields(TypedDict):
    x: int


class Own: ...


@each(
    ("given", "wanted"),
    [
        (str, list[float]),
        (str, int),
        (float, int),
        (type(None), str),
        (list[str], list[float]),
        (list[list[str]], list[list[float]]),
        (dict[str, int], list[int]),
        (str | int, bytes | list[int]),
        (Annotated[str, 3], bytes),
        (str, House),
        (House, str),
        (Point, dict[str, int]),
        (list, Point),
        (int, Model),
        (list[str], list[House]),
    ],
)
def test_types_that_cannot_fit_are_told(given, wanted):
    assert cannot_fit(given, wanted)


@each(
    ("given", "wanted"),
    [
        (str, str),
        (int, float),
        (bool, int),
        (bool, float),
        (Any, str),
        (str, Any),
        (str, object),
        (Optional[str], str),  # noqa: UP045  # people write it
        (str | int, int),
        (list, list[int]),
        (list[int], list),
        (list[int], list[float]),
        (list[int], Sequence[int]),
        (tuple[int, ...], list[int]),
        (dict[str, int], dict[str, str]),
        (dict, Fields),
        (Fields, dict),
        (House, Point),
        (Model, House),
        (Literal["a"], str),
        (Own, str),
        (str, Own),
        (Word, str),
        (str, Word),
        (np.ndarray, list[float]),
        (list[float], np.ndarray),
        (np.float32, float),
    ],
)
def test_types_that_may_fit_are_left_alone(given, wanted):
    assert not cannot_fit(given, wanted)
