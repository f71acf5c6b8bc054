"""Find the places of ids in a list of distinct ones, which only grows.

Contract
--------
* An index follows from the list, so one that is in doubt is made anew.
* Ids from 0 to below a number that is not too large have an entry each.
* Others have a hash table with open addressing, over arrays of numpy.  Its number of entries is a power of two.
* An entry is 1 more than a place, and 0 where there is none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.rules import Ids

Places = NDArray[np.int64]
Entries = NDArray[np.int32]

MOST: Final = 2**31 - 1
"""Places that entries of 32 bits can tell apart."""
LARGEST_DIRECT: Final = 2**24
"""Ids that have an entry each: 64 MB of them, of which the system gives no page before it is touched."""
_LEAST: Final = 64
"""Entries of the smallest hash table."""


class IdIndex:
    """The place of each id, as far as it has seen the list."""

    def __init__(self, direct: Entries | None = None) -> None:
        """Begin with no id.

        Args:
            direct: an entry for every id there can be, or None for a hash table.  Indexes of other ids may have it too.
        """
        self._direct = direct
        self._entries = np.zeros(_LEAST, np.int32) if direct is None else direct
        self._count = 0

    def find(self, known: Ids, ids: Ids) -> Places:
        """The place of each id in `known`, the list; -1 where it is not there."""
        if self._direct is not None:
            return self._direct[ids].astype(np.int64) - 1
        return _find(self._entries, known, ids)

    def catch_up(self, known: Ids, count: int) -> None:
        """See the list up to `count`."""
        if count == self._count:
            return
        start, self._count = self._count, 0  # an index that is left in the middle is made anew
        if self._direct is not None:
            self._direct[known[start:count]] = np.arange(start + 1, count + 1, dtype=np.int32)
        else:
            if start == 0 or entries_for(count) > len(self._entries):
                start, self._entries = 0, np.zeros(entries_for(count), np.int32)
            _insert(self._entries, known[start:count], np.arange(start, count))
        self._count = count


def direct_entries(size: int | None) -> Entries | None:
    """Entries for ids from 0 to below `size`, or None where a hash table is to find them."""
    return np.zeros(size, np.int32) if size is not None and size <= LARGEST_DIRECT else None


def entries_for(count: int) -> int:
    """Entries of a hash table for so many ids: at least two for each."""
    return max(_LEAST, 1 << (2 * count - 1).bit_length())


def mixed(ids: Ids) -> NDArray[np.uint64]:
    """The bits of each id, all mixed: the last step of splitmix64.  The low ones say where a search begins."""
    x = ids.view(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _find(entries: Entries, known: Ids, ids: Ids) -> Places:
    mask = len(entries) - 1
    found = np.full(len(ids), -1, np.int64)
    asked = np.arange(len(ids))
    at = _first_entry(ids, mask)
    while len(asked):
        places = entries[at] - 1
        taken = places >= 0
        asked, at, places = asked[taken], at[taken], places[taken]
        same = known[places] == ids[asked]
        found[asked[same]] = places[same]
        asked, at = asked[~same], (at[~same] + 1) & mask
    return found


def _insert(entries: Entries, ids: Ids, places: Places) -> None:
    """Note where these ids lie, which are distinct and not there yet, and for which there is room."""
    mask = len(entries) - 1
    at = _first_entry(ids, mask)
    left = np.arange(len(ids))
    while len(left):
        free = entries[at] == 0
        # Of several ids that want one entry the first gets it.
        wanted, first = np.unique(at[free], return_index=True)
        chosen = np.flatnonzero(free)[first]
        entries[wanted] = places[left[chosen]] + 1
        kept = np.ones(len(left), bool)
        kept[chosen] = False
        left, at = left[kept], (at[kept] + 1) & mask


def _first_entry(ids: Ids, mask: int) -> Places:
    return (mixed(ids) & np.uint64(mask)).astype(np.int64)
