"""Timers made of the calls of a clock: one that is set again and again, and one that keeps the earliest moment."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.clock import Clock, FineTimer, Timer


class LaterTimer:
    """A timer made of a clock's `call_later`, and as fine as that is; implements `core.clock.FineTimer`."""

    def __init__(self, clock: Clock, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None

    def set(self, delay: float) -> None:  # see `FineTimer`
        self.close()
        self._timer = self._clock.call_later(delay, self._ring)

    def close(self) -> None:  # see `FineTimer`
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Alarm:
    """Calls `ring` at the earliest moment it was set to.  Then it is set to none.

    A `fine` one has a fine timer of the clock.
    """

    def __init__(self, clock: Clock, ring: Callable[[], object], *, fine: bool = False) -> None:
        self._timer: FineTimer = clock.fine_timer(self._rang) if fine else LaterTimer(clock, self._rang)
        self._now = clock.now
        self._ring = ring
        self._due = math.inf

    def set(self, moment: float | None) -> None:
        """Ring at `moment`, or now if that has passed.  No change for None, and where the alarm is due by then."""
        if moment is None or moment >= self._due:
            return
        self._due = moment
        self._timer.set(max(moment - self._now(), 0.0))

    def cancel(self) -> None:
        """Set it to no moment."""
        self._timer.close()
        self._due = math.inf

    def _rang(self) -> None:
        self._due = math.inf
        self._ring()
