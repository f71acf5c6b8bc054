"""One raw column, read as a whole: what its values stand for, which are missing, and which are refused.

A column is a list of Python values or a numpy array.  What is usual is read by numpy at once: an array of numbers, a
list of one type.  Everything else is read value by value, with the same readers and the same answers.

A value that is missing or refused leaves something harmless in its place, so no bad row harms another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.codec.numpy_ import is_narrow
from penstock.features.narrow_floats import largest_whole, widen_all
from penstock.features.values import (
    FLOAT_BITS,
    IdReader,
    NumberReader,
    ValueReader,
    ValueRefused,
)

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Column: TypeAlias = "list[Any] | Array"
Faults: TypeAlias = dict[int, str]
"""Why the value at a place is refused."""


@dataclass(slots=True)
class Numbers:
    """A column of float64 or int64."""

    array: Array
    """Finite; what stands at a missing or refused value means nothing."""
    missing: Mask | None = None
    """None: no value is missing."""
    faults: Faults = field(default_factory=dict)


@dataclass(slots=True)
class Tokens:
    """A column as what its distinct values stand for, and the place of each row's value among them."""

    found: list[str]
    """What the values stand for; the same may be there twice, as for 9 and "9"."""
    codes: npt.NDArray[np.intp]
    """-1 where the value is missing or refused."""
    missing: Mask | None = None
    faults: Faults = field(default_factory=dict)


def read_numbers(column: Column, reader: NumberReader) -> Numbers:
    """A column of finite float64."""
    floats = _as_floats(column)
    if floats is None:
        return _read_each(column, reader, np.float64)
    missing = None
    if reader.ignored_floats.size:
        ignored = np.isin(floats, reader.ignored_floats)
        if ignored.any():
            missing, floats = ignored, np.where(ignored, 0.0, floats)
    if np.isfinite(floats).all():
        return Numbers(floats, missing)
    gone = np.isnan(floats)
    infinite = np.flatnonzero(np.isinf(floats))
    faults = {int(row): f"expected a finite number, got {float(floats[row])!r}" for row in infinite}
    finite = np.where(np.isfinite(floats), floats, 0.0)
    missing = gone if missing is None else missing | gone
    return Numbers(finite, missing if missing.any() else None, faults)


def _as_floats(column: Column) -> npt.NDArray[np.float64] | None:
    """The column as float64, with NaN for None; None where a value needs a closer look."""
    if isinstance(column, list):
        types = set(map(type, column))
        if types <= {float, int, type(None)}:
            integers = [value for value in column if type(value) is int] if int in types else []
            if integers and (max(integers) > 2**FLOAT_BITS or min(integers) < -(2**FLOAT_BITS)):
                return None
            return np.array(column, dtype=np.float64)
        scalars = _as_array(column)
        if scalars is None:
            return None
        column = scalars
    if column.dtype.kind == "f" and column.dtype.itemsize <= 8:
        return widen_all(column) if is_narrow(column.dtype) else column.astype(np.float64)
    if column.dtype.kind in "iu" and (not column.size or _within(column)):
        return column.astype(np.float64)
    return None


def _as_array(column: list[Any]) -> Array | None:
    """A list of one type of numpy's numbers as an array, which is read at once; None of any other list."""
    types = set(map(type, column))
    kind = next(iter(types)) if len(types) == 1 else object
    return np.array(column, dtype=kind) if issubclass(kind, np.generic) and _is_number(np.dtype(kind)) else None


def _is_number(dtype: np.dtype[Any]) -> bool:
    """Whether values of a dtype are integers, or floats of at most float64."""
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize <= 8)


def _within(column: Array) -> bool:
    """Whether each integer lies where every integer is a float."""
    greatest, least = int(column.max()), int(column.min())
    return -(1 << FLOAT_BITS) <= least <= greatest <= 1 << FLOAT_BITS


def read_ids(column: Column, reader: IdReader) -> Numbers:
    """A column of int64."""
    numbers = _as_integers(column)
    if numbers is None:
        return _read_each(column, reader, np.int64)
    if reader.ignored:
        ignored = np.isin(numbers.array, np.array(list(reader.ignored), dtype=np.int64))
        numbers.missing = ignored if numbers.missing is None else numbers.missing | ignored
    return numbers


def _as_integers(column: Column) -> Numbers | None:
    """The column as int64; None where a value needs a closer look."""
    if isinstance(column, list):
        if set(map(type, column)) == {int}:
            try:
                return Numbers(np.array(column, dtype=np.int64))
            except OverflowError:
                return None
        scalars = _as_array(column)
        if scalars is None:
            return None
        column = scalars
    if column.dtype.kind in "iu":
        if column.dtype.type is np.uint64 and column.size and int(column.max()) >= 2**63:
            return None
        return Numbers(column.astype(np.int64))
    if column.dtype.kind != "f" or column.dtype.itemsize > 8:
        return None
    missing = np.isnan(column)
    floats = np.where(missing, 0.0, column.astype(np.float64))
    if not ((np.abs(floats) <= largest_whole(column.dtype)) & (np.floor(floats) == floats)).all():
        return None
    return Numbers(floats.astype(np.int64), missing)


def read_tokens(column: Column, reader: ValueReader[str]) -> Tokens:
    """A column of categories or texts, each distinct value read once."""
    distinct, codes = _distinct(column)
    found, missing, reasons = _read_distinct(distinct, reader)
    if not missing and not reasons:
        return Tokens(found, codes)
    faults = {row: reasons[code] for row, code in enumerate(codes.tolist()) if code in reasons} if reasons else {}
    gone = np.isin(codes, missing) if missing else None
    places = np.arange(len(distinct), dtype=np.intp)
    places[[*missing, *reasons]] = -1
    return Tokens(found, places[codes], gone, faults)


def _read_distinct(distinct: Sequence[Any], reader: ValueReader[str]) -> tuple[list[str], list[int], dict[int, str]]:
    """What each value stands for, which are missing, and why which are refused."""
    if _are_tokens(distinct, reader):
        return list(distinct), [], {}
    found: list[Any] = []
    missing: list[int] = []
    reasons: dict[int, str] = {}
    for place, value in enumerate(distinct):
        try:
            token = reader.read(value)
        except ValueRefused as exc:
            reasons[place] = str(exc)
            token = None
        else:
            if token is None:
                missing.append(place)
        found.append(token)
    if missing or reasons:  # a token at a place that no code names; any one serves
        filler = next((token for token in found if token is not None), "")
        found = [filler if token is None else token for token in found]
    return found, missing, reasons


def _are_tokens(distinct: Sequence[Any], reader: ValueReader[Any]) -> bool:
    """Whether the values are plain strings that stand for themselves, as the usual column's are."""
    return (
        set(map(type, distinct)) == {str}
        and all(map(str.isascii, distinct))
        and reader.ignored.isdisjoint(distinct)
        and reader.ignored_values.isdisjoint(distinct)
    )


def _distinct(column: Column) -> tuple[Sequence[Any], npt.NDArray[np.intp]]:
    """The distinct values, and the place of each row's value among them.

    1, 1.0 and True are equal and do not stand for the same, so values of several types are told apart by their type.
    """
    if not isinstance(column, list):
        if _is_number(column.dtype):
            values, codes = np.unique(column, return_inverse=True)
            return column_values(values), codes.astype(np.intp)
        column = column_values(column)
    try:
        distinct, codes = _numbered(column)
        if set(map(type, distinct)) == {str} or _is_of_one_number_type(column):  # what equals a string is one
            return distinct, codes
        scalars = _as_array(column)
        if scalars is not None:
            return _distinct(scalars)
        keys = [value if type(value) is str else (type(value), value) for value in column]
        distinct, codes = _numbered(keys)
    except (TypeError, ValueError):  # a value that cannot be a key, as a list: it will be refused, at its own place
        return column, np.arange(len(column), dtype=np.intp)
    return [key if type(key) is str else key[1] for key in distinct], codes


def _numbered(keys: Sequence[Any]) -> tuple[list[Any], npt.NDArray[np.intp]]:
    """The distinct keys in the order in which they appear, and the number of each key."""
    numbers: defaultdict[Any, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new key gets the next number
    codes = np.fromiter(map(numbers.__getitem__, keys), dtype=np.intp, count=len(keys))
    return list(numbers), codes


def _is_of_one_number_type(column: Sequence[Any]) -> bool:
    types = set(map(type, column))
    return len(types) == 1 and types <= {int, float}


def _read_each(column: Column, reader: ValueReader[Any], dtype: Any) -> Numbers:
    """A column of numbers, value by value."""
    values = column_values(column)
    array = np.zeros(len(values), dtype=dtype)
    gone: list[int] = []
    faults: Faults = {}
    for row, value in enumerate(values):
        try:
            number = reader.read(value)
        except ValueRefused as exc:
            faults[row] = str(exc)
        else:
            if number is None:
                gone.append(row)
            else:
                array[row] = number
    return Numbers(array, _mask(gone, len(values)), faults)


def column_values(column: Column) -> list[Any]:
    """The values of a column as a list."""
    if isinstance(column, list):
        return column
    # `tolist` makes integers of times in nanoseconds, cuts long doubles, and leaves no word of a float32
    return column.tolist() if column.dtype.kind in "iubUO" or column.dtype.type is np.float64 else list(column)


def _mask(places: list[int], size: int) -> Mask | None:
    if not places:
        return None
    mask = np.zeros(size, dtype=np.bool_)
    mask[places] = True
    return mask
