"""Find places in an ascending list of distinct ids, by an array that may lie in a file and is never trusted.

Contract
--------
* The ids from the first to the last are cut into buckets of equal length, a power of two; an entry of the index is the
  place of the first id that is in its bucket or a later one.  An index has at most two buckets for an id.
* Asked ids ascend, so the entries and the ids that are read ascend too.  A hash table of the same size is read in no
  order, and takes three times as long.
* A few ids are read from there on.  Where a bucket is crowded, a binary search takes over.
* Every place is held to the list.  A wrong entry can hide an id; it cannot make a search read outside or never end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.rules import Ids

Entries = NDArray[np.int32]
Places = NDArray[np.int64]

_ALIGNED: Final = 16
"""The number of entries is a multiple of it, so what lies behind them in a file is aligned as they are."""
_STEPS: Final = 4
"""Ids that are read from a bucket's begin on, before the rest is left to a binary search."""
_PIECE: Final = 65536
"""Entries that are made at a time."""


class BucketIndex(NamedTuple):
    """An index, and the list that it is of, which is not empty."""

    ids: Ids
    entries: Entries
    first: int
    last: int

    def find(self, asked: Ids) -> tuple[Places, NDArray[np.bool_]]:
        """A place of each asked id, all from `first` to `last`, and whether it is there; else the place means nothing.

        Places are to be clipped to the list where they are used, as `numpy.take` does with mode "clip".
        """
        shift = np.uint64(bucket_shift(self.first, self.last, len(self.ids)))
        buckets = (asked - np.int64(self.first)).view(np.uint64) >> shift
        places = self.entries.take(buckets.view(np.int64), mode="clip").astype(np.int64)
        there = self.ids.take(places, mode="clip")
        left = np.flatnonzero(there < asked)
        for _ in range(_STEPS):
            if not len(left):
                break
            further = places[left] + 1
            places[left] = further
            there[left] = read = self.ids.take(further, mode="clip")
            left = left[read < asked[left]]
        if len(left):
            places[left] = found = np.searchsorted(self.ids, asked[left])
            there[left] = self.ids.take(found, mode="clip")
        return places, there == asked


def bucket_shift(first: int, last: int, count: int) -> int:
    """The binary logarithm of a bucket's length, for so many ids from `first` to `last`."""
    return ((last - first) // (2 * count)).bit_length()


def entries_of(first: int, last: int, count: int) -> int:
    """Entries of an index of so many ids."""
    return _rounded_up(((last - first) >> bucket_shift(first, last, count)) + 1)


def most_entries(count: int) -> int:
    """Entries of the largest index of so many ids."""
    return _rounded_up(2 * count)


def index_of(ids: Ids) -> Iterator[Entries]:
    """The entries for these ids, which are not empty, in order and piece by piece."""
    first, last, count = int(ids[0]), int(ids[-1]), len(ids)
    shift = bucket_shift(first, last, count)
    buckets, entries = ((last - first) >> shift) + 1, entries_of(first, last, count)
    for start in range(0, buckets, _PIECE):
        numbers = np.arange(start, min(start + _PIECE, buckets), dtype=np.uint64)
        begins = (numbers << np.uint64(shift)).view(np.int64) + np.int64(first)  # wraps as the subtraction in find does
        yield np.searchsorted(ids, begins).astype(np.int32)
    yield np.full(entries - buckets, count, np.int32)


def _rounded_up(entries: int) -> int:
    return -(-entries // _ALIGNED) * _ALIGNED
