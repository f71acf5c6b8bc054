"""A column of lists, one behind the other, so that their values are read like those of any column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.features.columns import Array, Column, Faults, column_values
from penstock.features.values import plain, shown_value


@dataclass(slots=True)
class Lists:
    """The values of all lists, and which of them belong to which row."""

    flat: list[Any]
    lengths: npt.NDArray[np.intp]
    missing: list[int]
    """The rows without a list."""
    faults: Faults

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """The row of each value."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """The place of each value in its list."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.flat)) - np.repeat(starts, self.lengths)


def read_lists(column: Column, most: int, *, instead: tuple[Any, ...] = ()) -> Lists:
    """A column of lists of at most `most` values.

    A row without a list has the values `instead`; a row that is refused has none.
    """
    flat: list[Any] = []
    lengths = np.zeros(len(column), dtype=np.intp)
    missing: list[int] = []
    faults: Faults = {}
    for row, value in enumerate(column_values(column)):
        elements = as_list(value)
        if elements is None and plain(value) is None:
            missing.append(row)
            elements = list(instead)
        if elements is None:
            faults[row] = f"expected a list, got {type(value).__name__} {shown_value(value)}"
        elif len(elements) > most:
            faults[row] = f"expected a list of at most {most} values, got {len(elements)}"
        else:
            flat.extend(elements)
            lengths[row] = len(elements)
    return Lists(flat, lengths, missing, faults)


def as_list(value: Any) -> list[Any] | None:
    """The list that a value is, or None: a string is none."""
    if isinstance(value, np.ndarray):
        return column_values(value) if value.ndim == 1 else None
    return list(value) if isinstance(value, (list, tuple)) else None


def scatter(lists: Lists, values: Array, most: int) -> Array:
    """Values of lists as rows of `most`, with 0 behind the end of each list."""
    padded = np.zeros((len(lists.lengths), most), dtype=values.dtype)
    padded[lists.rows, lists.places] = values
    return padded
