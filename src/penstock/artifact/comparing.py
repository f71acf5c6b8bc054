"""Compare what a graph answered with what the model answered.  Pure.

Contract
--------
* Numbers are within tolerance where |got - expected| <= absolute + relative * |expected|, computed in float64.
* A NaN is never within tolerance, on whichever side.  Infinity is within tolerance of itself alone.
* Integers, booleans and text have to be equal.
* Another dtype or another shape is outside of every tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

EXACT: Final = "biuOU"
"""The kinds of dtypes that have no tolerance: booleans, integers, text."""


@dataclass(frozen=True)
class Deviation:
    """How far the answers to some rows are from the expected ones, for one output."""

    output: str
    row: int
    """The worst row, from 0: the farthest outside of the tolerance, or else the nearest to its edge."""
    expected: object
    """What the model answered in that row, at the worst place in it; a plain Python value."""
    got: object
    """What the graph answered there."""
    difference: float
    """The greatest |got - expected| of all rows; infinite where values that are no numbers differ, or at a NaN."""
    outside: int
    """How many rows are outside of the tolerance."""
    problem: str = ""
    """What is wrong with the worst row, or with the whole array; "" where all is within the tolerance."""


def compare_output(
    output: str,
    expected: np.ndarray[Any, Any],
    got: np.ndarray[Any, Any],
    *,
    tolerance: tuple[float, float],
    first_row: int = 0,
) -> Deviation:
    """How far `got` is from `expected`, whose first row has the number `first_row`.

    Args:
        output: its name.
        expected: what the model answered; the first axis is the rows.
        got: what the graph answered.
        tolerance: absolute and relative.
        first_row: counted where the rows are a part of more.
    """
    if problem := mismatch(expected, got):
        return Deviation(output, first_row, _kind(expected), _kind(got), math.inf, len(expected), problem)
    if not expected.size:
        return Deviation(output, first_row, None, None, 0.0, 0)
    differences, beyond = _differences(expected, got, tolerance)
    place = np.unravel_index(np.argmax(beyond), beyond.shape)
    is_outside = (beyond > 0).reshape(len(expected), -1).any(axis=1)
    return Deviation(
        output=output,
        row=first_row + int(place[0]),
        expected=_plain(expected[place]),
        got=_plain(got[place]),
        difference=float(differences.max()),
        outside=int(is_outside.sum()),
        problem=_problem(expected[place], got[place], tolerance) if is_outside.any() else "",
    )


def worst_of(deviations: Iterable[Deviation]) -> Deviation:
    """Several comparisons of one output as one: the worst of them, with the greatest difference of all."""
    found = list(deviations)
    worst = max(found, key=lambda one: (bool(one.problem), one.difference))
    return replace(worst, difference=max(one.difference for one in found), outside=max(one.outside for one in found))


def mismatch(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> str:
    """Why no value of `got` can be compared; "" where they can."""
    if _dtype(expected) != _dtype(got):
        return f"the graph returned {_dtype(got)}, the model returned {_dtype(expected)}"
    if expected.shape != got.shape:
        return f"the output of the graph has the shape {got.shape}, that of the model {expected.shape}"
    return ""


def _kind(array: np.ndarray[Any, Any]) -> str:
    return f"{_dtype(array)} {array.shape}"


def _dtype(array: np.ndarray[Any, Any]) -> str:
    return "str" if array.dtype.kind in "OU" else array.dtype.name


def _differences(
    expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any], tolerance: tuple[float, float]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """|got - expected| of each value, and how far that is beyond the tolerance: above 0 is outside."""
    if expected.dtype.kind in EXACT:
        # A difference of integers as a float may be 0 for two that differ, so it does not decide.
        wrong = np.asarray(expected != got, dtype=bool)
        gaps = _gaps(expected, got, wrong)
        return gaps, np.where(wrong, np.maximum(gaps, np.finfo(np.float64).tiny), 0.0)
    wanted, found = expected.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.where(wanted == found, 0.0, np.abs(found - wanted))
        gaps = np.where(np.isnan(gaps), math.inf, gaps)
        allowed = tolerance[0] + tolerance[1] * np.abs(wanted)
        beyond = np.where(np.isinf(gaps), math.inf, gaps - allowed)
    return gaps, np.where(np.isnan(beyond), -math.inf, beyond)  # NaN: infinity on both sides, with no gap


def _gaps(
    expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    if expected.dtype.kind not in "iu":
        return np.where(wrong, math.inf, 0.0)
    return np.where(wrong, np.abs(got.astype(np.float64) - expected.astype(np.float64)), 0.0)


def _plain(value: Any) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _problem(expected: Any, got: Any, tolerance: tuple[float, float]) -> str:
    wanted, found = _plain(expected), _plain(got)
    if not isinstance(wanted, float) or not isinstance(found, float):
        return f"the graph returned {found!r}, the model returned {wanted!r}"
    if math.isnan(wanted) or math.isnan(found):
        return f"the graph returned {found!r}, the model returned {wanted!r}: NaN is not a valid output"
    return (
        f"the graph returned {found!r}, the model returned {wanted!r}: they differ by "
        f"{abs(found - wanted):.3g}, and the tolerance allows "
        f"{tolerance[0] + tolerance[1] * abs(wanted):.3g}"
    )
