"""Decide who of those that wait for a place goes next: the most urgent, and of one urgency who came first.

Who comes again for a further try has its old place in the order of coming.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

T = TypeVar("T")
SPARE: Final = 8
"""Entries of the heap beyond twice those that wait, so that a short line is not built anew all the time."""


class WaitingLine(Generic[T]):
    """Those that wait.  `arrival` is a number of each, of which no two have the same."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._waiting: set[int] = set()
        """The arrivals of those in the line; the heap may have as many, and a few, that have left it."""

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, who: T, urgency: int, arrival: int) -> None:
        """Let `who` wait; 0 is the best urgency."""
        self._waiting.add(arrival)
        heapq.heappush(self._heap, (urgency, arrival, who))

    def leave(self, arrival: int) -> None:
        """Forget who has this arrival, if it waits."""
        self._waiting.discard(arrival)
        self._forget_gone()

    def next(self) -> T | None:
        """Take who goes next out of the line; None where nobody waits."""
        while self._heap:
            _, arrival, who = heapq.heappop(self._heap)
            if arrival in self._waiting:
                self._waiting.remove(arrival)
                self._forget_gone()
                return who
        return None

    def _forget_gone(self) -> None:
        """Let go of those that have left the line: more urgent ones may keep them from its head for ever."""
        if len(self._heap) > 2 * len(self._waiting) + SPARE:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)
