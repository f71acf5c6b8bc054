"""Time small pieces of code inside a larger one, per request.

All that can disturb a piece makes it take longer, so its figure is the lowest of many laps.  What the garbage
collector takes is in few laps and never in the lowest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Watch:
    """The best lap of each piece, in microseconds per request."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}

    @contextmanager
    def lap(self, piece: str, requests: int) -> Iterator[None]:
        """Time the block, in which `requests` requests have `piece` done to them."""
        begin = time.perf_counter()
        yield
        took = (time.perf_counter() - begin) / requests * 1e6
        self.best[piece] = min(took, self.best.get(piece, took))
