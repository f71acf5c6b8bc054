"""The id of each category: its place among known ones, or a bucket of its hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.features.hashing import bucket_of, check_can_hash, hash_words
from penstock.features.kinds import FillValue, Hashed, Vocabulary


class WordPlaces(Protocol):
    """Gives the ids of categories."""

    size: int
    unknown_id: int | FillValue | None
    """What becomes of a category that has no id: this one, nothing, or None where it is refused."""

    def find(self, words: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The ids of the words, and the places in `words` of those that have none."""
        ...


class HashPlaces:
    """Buckets of the hash: every category has one."""

    unknown_id: int | FillValue | None = None

    def __init__(self, kind: Hashed) -> None:
        check_can_hash()
        self.size = kind.buckets

    def find(self, words: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The bucket of each word."""
        return bucket_of(hash_words(words), self.size), []


class KnownPlaces:
    """Known values first, then buckets of the hash for all others, or none."""

    def __init__(self, kind: Vocabulary, values: Sequence[str]) -> None:
        self._places = {value: place for place, value in enumerate(values)}
        self._buckets = kind.num_oov_indices
        if self._buckets:
            check_can_hash()
        self.size = len(values) + kind.num_oov_indices
        unknown = kind.unknown
        self.unknown_id: int | FillValue | None = self._places[unknown] if isinstance(unknown, str) else unknown

    def find(self, words: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The place of each word, or the bucket behind them."""
        places = [self._places.get(word, -1) for word in words]
        ids = np.array(places, dtype=np.int64)
        unknown = [place for place, found in enumerate(places) if found < 0]
        if not unknown:
            return ids, []
        if self._buckets:
            ids[unknown] = len(self._places) + bucket_of(hash_words(words[place] for place in unknown), self._buckets)
            return ids, []
        ids[unknown] = self.unknown_id if isinstance(self.unknown_id, int) else 0
        return ids, [] if isinstance(self.unknown_id, int) else unknown
