"""Find the places of ids in a list of distinct ones: a hash table with open addressing, over arrays of numpy.

The table holds places alone, 1 more than they are, and 0 where there is none.  It follows from the list of the ids, so
it can be made anew whenever it is in doubt.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.rules import Ids

Places = NDArray[np.int64]
Entries = NDArray[np.int64] | NDArray[np.int32]
"""A table: of 32 bits where there are never more than 2**31 - 1 places."""

LEAST: Final = 64
"""Entries of the smallest table; every number of entries is a power of two."""


def entries_for(count: int) -> int:
    """Entries of a table for so many ids: at least two for each."""
    return max(LEAST, 1 << (2 * count - 1).bit_length())


def find(table: Entries, known: Ids, ids: Ids) -> Places:
    """The place in `known` of each id, -1 where it is not there."""
    mask = len(table) - 1
    found = np.full(len(ids), -1, np.int64)
    asked = np.arange(len(ids))
    at = _first_entry(ids, mask)
    while len(asked):
        places = table[at] - 1
        taken = places >= 0
        asked, at, places = asked[taken], at[taken], places[taken]
        same = known[places] == ids[asked]
        found[asked[same]] = places[same]
        asked, at = asked[~same], (at[~same] + 1) & mask
    return found


def insert(table: Entries, ids: Ids, places: Places) -> None:
    """Note where these ids lie, which are distinct and not in the table yet, and for which it has room."""
    mask = len(table) - 1
    at = _first_entry(ids, mask)
    left = np.arange(len(ids))
    while len(left):
        free = table[at] == 0
        # Of several ids that want one entry the first gets it.
        entries, first = np.unique(at[free], return_index=True)
        chosen = np.flatnonzero(free)[first]
        table[entries] = places[left[chosen]] + 1
        kept = np.ones(len(left), bool)
        kept[chosen] = False
        left, at = left[kept], (at[kept] + 1) & mask


def mixed(ids: Ids) -> NDArray[np.uint64]:
    """The bits of each id, all mixed: the last step of splitmix64.  The low ones say where a search begins."""
    x = ids.view(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _first_entry(ids: Ids, mask: int) -> Places:
    return (mixed(ids) & np.uint64(mask)).astype(np.int64)
