"""A column of values as a column of ids: one class for each kind of feature with ids.

Each is made once, for one fitted feature.  A missing value gets the fill value, becomes an empty
id, or is rejected.  An empty id is 0, and its users give it no weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock.errors import ConfigError
from penstock.features.columns import Array, Column, Faults, Mask, Numbers, read_ids, read_numbers, read_tokens
from penstock.features.hashing import Hashes, check_can_hash, hash_words
from penstock.features.kinds import EMPTY, MEAN, SMALLEST_NORMAL, Bucketized, FillValue, Hashed, Ids, Vocabulary
from penstock.features.learnt import Statistics
from penstock.features.values import CategoryReader, IdReader, NumberReader, shown_value
from penstock.features.word_places import WordPlaces

IS_MISSING = "is missing"
"""Why a row without a value is refused."""


@dataclass(slots=True)
class IdColumn:
    """Ids of one column."""

    ids: Array
    """int64; 0 where the value is empty or refused."""
    empty: Mask | None
    faults: Faults
    keys: Hashes | None = None
    """What the values count as in a cross; None where no cross asks."""


class IdSource(Protocol):
    """Gives the ids of a column."""

    size: int | None
    """How many ids there are; None where that is not known."""

    def read(self, column: Column) -> IdColumn:
        """The ids of the column's values."""
        ...


def fill_missing(numbers: Numbers, fill_value: float | FillValue | None) -> tuple[Array, Mask | None, Faults]:
    """The numbers with the fill value at those that are missing; which are empty, and which are refused."""
    if numbers.missing is None:
        return numbers.array, None, numbers.faults
    if fill_value is None:
        for row in np.flatnonzero(numbers.missing).tolist():
            numbers.faults.setdefault(row, IS_MISSING)
    if fill_value is None or isinstance(fill_value, FillValue):
        return np.where(numbers.missing, 0, numbers.array), numbers.missing, numbers.faults
    return np.where(numbers.missing, fill_value, numbers.array), None, numbers.faults


def number_fill_value(kind: Any, statistics: Statistics) -> float | FillValue | None:
    """What stands for a missing number: the mean is known by now."""
    return statistics.mean if kind.fill_value is MEAN else kind.fill_value


class BucketSource:
    """The ids of a `Bucketized` feature."""

    def __init__(self, kind: Bucketized, statistics: Statistics) -> None:
        boundaries = kind.boundaries if kind.boundaries is not None else statistics.boundaries
        assert boundaries is not None
        self._boundaries = np.array(boundaries)
        self._reader = NumberReader(kind.missing_values)
        self._fill_value = number_fill_value(kind, statistics)
        self.size: int | None = len(boundaries) + 1

    def read(self, column: Column) -> IdColumn:
        """The bucket of each number."""
        numbers, empty, faults = fill_missing(read_numbers(column, self._reader), self._fill_value)
        # TensorFlow takes a subnormal number for 0, where it compares
        numbers = np.where(np.abs(numbers) < SMALLEST_NORMAL, 0.0, numbers)
        ids = np.searchsorted(self._boundaries, numbers, side="right").astype(np.int64)
        if empty is not None:
            ids[empty] = 0
        return IdColumn(ids, empty, faults, ids.view(np.uint64))


class IntegerSource:
    """The ids of an `Ids` feature."""

    def __init__(self, kind: Ids) -> None:
        self._reader = IdReader(kind.missing_values)
        self._fill_value = kind.fill_value
        self._unknown = kind.unknown
        self.size = kind.size

    def read(self, column: Column) -> IdColumn:
        """The integers, each within its limits."""
        ids, empty, faults = fill_missing(read_ids(column, self._reader), self._fill_value)
        if self.size is None:
            return IdColumn(ids, empty, faults, ids.view(np.uint64))
        outside = (ids < 0) | (ids >= self.size)
        if outside.any():
            if self._unknown is None:
                for row in np.flatnonzero(outside).tolist():
                    faults.setdefault(row, f"{ids[row]} is not an id of 0 to {self.size - 1}")
            elif self._unknown is EMPTY:
                empty = outside if empty is None else empty | outside
            ids = np.where(outside, self._unknown if isinstance(self._unknown, int) else 0, ids)
        return IdColumn(ids, empty, faults, ids.view(np.uint64))


class WordSource:
    """The ids of a feature whose values are categories."""

    def __init__(self, kind: Hashed | Vocabulary, places: WordPlaces, *, with_keys: bool) -> None:
        self._reader = CategoryReader(kind.missing_values)
        self._places = places
        self._with_keys = with_keys
        if with_keys:
            check_can_hash()
        self._missing = kind.fill_value
        self._fill_value = kind.fill_value if isinstance(kind.fill_value, str) else None
        self._fill_value_id = self._id_of_fill_value()
        self.size: int | None = places.size

    def _id_of_fill_value(self) -> int:
        if self._fill_value is None:
            return 0
        ids, unknown = self._places.find([self._fill_value])
        if unknown and not isinstance(self._places.unknown_id, int):
            raise ConfigError(
                f"fill_value={shown_value(self._fill_value)} is not one of the known values, "
                "and there is no id for others"
            )
        return int(ids[0])

    def read(self, column: Column) -> IdColumn:
        """The id of each category."""
        tokens = read_tokens(column, self._reader)
        codes, faults = tokens.codes, tokens.faults
        table, unknown = self._places.find(tokens.found)
        ids = np.append(table, self._fill_value_id)[codes]  # code -1 is the last one
        empty = None
        if tokens.missing is not None and self._fill_value is None:
            empty = tokens.missing
            if self._missing is None:
                for row in np.flatnonzero(empty).tolist():
                    faults.setdefault(row, IS_MISSING)
        keys = self._keys(tokens.found)[codes] if self._with_keys else None
        if unknown and self._places.unknown_id is None:
            for row in np.flatnonzero(np.isin(codes, unknown)).tolist():
                faults.setdefault(row, self._refusal(tokens.found[codes[row]]))
        elif unknown and self._places.unknown_id is EMPTY:
            strange = np.isin(codes, unknown)
            empty = strange if empty is None else empty | strange
        return IdColumn(ids, empty, faults, keys)

    def _refusal(self, word: str) -> str:
        return f"{shown_value(word)} is not one of the {self.size} known values"

    def _keys(self, words: list[str]) -> Hashes:
        return hash_words([*words, self._fill_value or ""])
