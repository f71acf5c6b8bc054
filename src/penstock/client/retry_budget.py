"""Bound the tries that no server has asked for, so that a failing server is not sent several times its load.

Contract
--------
* Of the last `SPAN_SECONDS`, at most `SHARE` of the requests, and `ALWAYS` more, are tries that nobody asked for.
* A request counts once, however often it is tried.  A try counts when it is decided on.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SPAN_SECONDS: Final = 10.0
SHARE: Final = 0.1
ALWAYS: Final = 10


class RetryBudget:
    """The budget of one client."""

    def __init__(self) -> None:
        self._requests: deque[float] = deque()
        self._taken: deque[float] = deque()

    def count_request(self, now: float) -> None:
        """Note that a request begins."""
        self._requests.append(now)
        _forget(self._requests, now)

    def left(self, now: float) -> int:
        """How many tries there may be now."""
        _forget(self._requests, now)
        _forget(self._taken, now)
        return max(0, ALWAYS + int(SHARE * len(self._requests)) - len(self._taken))

    def take(self, now: float) -> bool:
        """Whether there may be one more try; it counts then."""
        if not self.left(now):
            return False
        self._taken.append(now)
        return True


def _forget(moments: deque[float], now: float) -> None:
    while moments and moments[0] <= now - SPAN_SECONDS:
        moments.popleft()
