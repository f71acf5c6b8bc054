"""Decide how many items a second a service ends when it has all the work it can use.  Pure: it is told the time.

Contract
--------
* Only the time counts in which work waited for workers that were all busy.  So a quiet hour, or items that wait for
  company, make nobody slow.
* The last few seconds of such time decide, however long ago they were.
* Before there was a second of it, the runs that were seen decide, and before those a modest guess.
* It is never less than one item in a quarter of an hour: a worker that hangs for an hour makes no rate of nothing, by
  which nobody could divide.
"""

from __future__ import annotations

from typing import Final

SPAN_SECONDS: Final = 5.0
"""What is measured beyond so many seconds counts for half: a model that has become slower is soon believed."""
LEAST_SECONDS: Final = 1.0
"""So much must be measured before it is believed: a single batch may come at any time."""
GUESSED_RATE: Final = 100.0
"""The items a second of a service that has not run anything.

A guess that is too high costs its callers a second try; one that is too low lets the workers idle.
"""
LEAST_RATE: Final = 1 / 900
"""Who is refused is told a minute at most, so a slower rate would say nothing more."""


class Pace:
    """How fast one service ends items under load.

    `looked_at` is when `look` was called last: call it when `saturated` changes, and now and then while it is true.
    """

    def __init__(self) -> None:
        self.saturated = False
        self.looked_at = 0.0
        self._ended = 0
        self._seconds = 0.0
        self._items = 0.0

    def look(self, now: float, ended: int, saturated: bool) -> None:
        """Note that work has ended `ended` items so far, and whether any waits for busy workers from now on."""
        if self.saturated:
            self._seconds += now - self.looked_at
            self._items += ended - self._ended
            while self._seconds > 2 * SPAN_SECONDS:
                self._seconds /= 2
                self._items /= 2
        self.saturated = saturated
        self.looked_at = now
        self._ended = ended

    def rate(self, known: float) -> float:
        """Items a second; `known` is what follows from the runs of the stages, 0 where some stage has run nothing."""
        if self._seconds >= LEAST_SECONDS and self._items > 0:
            known = self._items / self._seconds
        return max(known, LEAST_RATE) if known > 0 else GUESSED_RATE
