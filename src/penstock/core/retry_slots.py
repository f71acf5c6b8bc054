"""Decide when a caller that is refused should come again.  Pure: it is told the time.

Contract
--------
* A slot is a moment at which there is room for one more item.  They follow each other at the rate at which the service
  ends items.
* Each refusal takes the next slot that nobody has taken.  So those who come back as they were told find room, one after
  the other, and the workers have something to do.
* A request takes one slot, however many items it has: it comes again as a whole.
* Slots pass with time, taken or not: who does not come back keeps nobody waiting.
* Nobody is told more than a minute.  Beyond it no slots are taken, so a crowd that never returns is soon forgotten; and
  no slot takes more than a minute, so that what was told while nothing moved is soon forgotten too.
"""

from __future__ import annotations

import math
from typing import Final

LONGEST_SECONDS: Final = 60
"""The longest time that a caller is told to wait."""
LEAST_MILLISECONDS: Final = 50
"""The shortest one: who came back at once would find the service as it is."""


def whole_seconds(seconds: float) -> int:
    """What a caller is told who should come again in `seconds`: rounded up, from 1 to 60."""
    return max(1, min(LONGEST_SECONDS, math.ceil(seconds)))


def whole_milliseconds(seconds: float) -> int:
    """The same in milliseconds: rounded up, from 50 to 60 000."""
    return max(LEAST_MILLISECONDS, min(1000 * LONGEST_SECONDS, math.ceil(1000 * seconds)))


class RetrySlots:
    """The slots of one service."""

    def __init__(self) -> None:
        self._next = 0.0
        """The first slot that nobody has taken, unless it has passed."""

    def look(self, now: float, lead: float) -> float:
        """In how many seconds the next caller should come, 60 at most; the slot stays free."""
        return min(max(self._next, now + lead) - now, float(LONGEST_SECONDS))

    def take(self, now: float, lead: float, rate: float) -> float:
        """In how many seconds the next caller should come, 60 at most.

        The first slot is `lead` seconds away, the others follow at `rate` a second.
        """
        wait = self.look(now, lead)
        if wait >= LONGEST_SECONDS:
            return wait
        self._next = max(self._next, now + lead) + min(1 / rate, LONGEST_SECONDS)
        return wait
