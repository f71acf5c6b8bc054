"""Decide who of those that wait for a place goes next: the most urgent, and of one urgency who came first.

Who comes again for a further try has its old place in the order of coming.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """Those that wait.  `arrival` is a number of each, of which no two have the same."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._waiting: set[int] = set()
        """The arrivals of those in the line; the heap may have some that have left it."""

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, who: T, urgency: int, arrival: int) -> None:
        """Let `who` wait; 0 is the best urgency."""
        self._waiting.add(arrival)
        heapq.heappush(self._heap, (urgency, arrival, who))

    def leave(self, arrival: int) -> None:
        """Forget who has this arrival, if it waits."""
        self._waiting.discard(arrival)

    def next(self) -> T | None:
        """Take who goes next out of the line; None where nobody waits."""
        while self._heap:
            _, arrival, who = heapq.heappop(self._heap)
            if arrival in self._waiting:
                self._waiting.remove(arrival)
                return who
        return None
