"""Find places in an ascending list of distinct ids, by an array that may lie in a file and is never trusted.

Contract
--------
* The index has every 16th id.  A binary search in it says between which two an id lies, and four steps say where.
* Asked ids ascend, so the ids that are read ascend too.  A hash table is read in no order, and takes twice as long.
  How ids are spread makes no difference.
* Every place is held to the list, and the number of steps is fixed.  A wrong entry can hide an id; it cannot make a
  search read outside or never end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.rules import Ids

Places = NDArray[np.int64]

_APART: Final = 16
"""Ids from one sample to the next: a power of two.  With 8 and with 64 it takes longer, with 32 as long."""


class SampledIndex(NamedTuple):
    """An index, and the list that it is of, which is not empty."""

    ids: Ids
    samples: Ids

    def find(self, asked: Ids) -> tuple[Places, NDArray[np.bool_]]:
        """A place of each asked id, and whether it is there; else the place means nothing.

        Places are to be clipped to the list where they are used, as `numpy.take` does with mode "clip".
        """
        places: Places = self.samples.searchsorted(asked, "right").astype(np.int64, copy=False)
        places -= 1
        places *= _APART
        step = _APART // 2
        while step:
            places += step * (self.ids.take(places + step, mode="clip") <= asked)
            step //= 2
        return places, self.ids.take(places, mode="clip") == asked


def samples_of(ids: Ids) -> Ids:
    """The index of these ids, contiguous."""
    return np.ascontiguousarray(ids[::_APART])


def count_of_samples(count: int) -> int:
    """The number of entries in an index of so many ids."""
    return -(-count // _APART)
