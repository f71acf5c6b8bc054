"""Bodies of 600 KB, as of an image, that a stage reads in place, copies, gives back inverted, or passes on.

penstock serve large_services:viewed
"""

from __future__ import annotations

import numpy as np

import penstock as ps

ANSWER_BYTES = 4096
MOST = ps.Batch(max_size=8)


class Viewed(ps.Stage):
    """Give the beginning of each back; it is read in place."""

    batch = MOST

    def predict(self, xs: list[memoryview]) -> list[memoryview]:
        return [x[:ANSWER_BYTES] for x in xs]


class Copied(ps.Stage):
    """The same for a stage that wants bytes of its own."""

    batch = MOST

    def predict(self, xs: list[bytes]) -> list[bytes]:
        return [x[:ANSWER_BYTES] for x in xs]


class Array(ps.Stage):
    """The same for an array, which comes as `.npy`."""

    batch = MOST

    def predict(self, xs: list[np.ndarray]) -> list[memoryview]:
        return [x.data[:ANSWER_BYTES] for x in xs]


class Inverted(ps.Stage):
    """Give as much back: each byte inverted, in an array of its own."""

    batch = MOST

    def predict(self, xs: list[memoryview]) -> list[memoryview]:
        return [np.invert(np.frombuffer(x, np.uint8)).data for x in xs]


class Passed(ps.Stage):
    """Pass each on as an array."""

    batch = MOST

    def predict(self, xs: list[memoryview]) -> list[np.ndarray]:
        return [np.frombuffer(x, np.uint8) for x in xs]


viewed = ps.Service(ps.stage(Viewed), name="viewed")
copied = ps.Service(ps.stage(Copied), name="copied")
array = ps.Service(ps.stage(Array), name="array")
inverted = ps.Service(ps.stage(Inverted), name="inverted")
two_stages = ps.Service(ps.stage(Passed), ps.stage(Array), name="two-stages")
