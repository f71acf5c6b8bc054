"""A timer that is set to the earliest of several moments."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.clock import Clock, FineTimer, Timer


class Alarm:
    """Calls `ring` at the earliest moment it was set to.  Then it is set to none.

    A `fine` one has a fine timer of the clock.
    """

    def __init__(self, clock: Clock, ring: Callable[[], object], *, fine: bool = False) -> None:
        self._clock = clock
        self._fine: FineTimer | None = clock.fine_timer(self._rang) if fine else None
        self._now = clock.now
        self._ring = ring
        self._timer: Timer | None = None
        self._due = math.inf

    def set(self, moment: float | None) -> None:
        """Ring at `moment`, or now if that has passed.  No change for None, and where the alarm is due by then."""
        if moment is None or moment >= self._due:
            return
        self._due = moment
        if self._fine is not None:
            self._fine.set(max(moment - self._now(), 0.0))
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(max(moment - self._now(), 0.0), self._rang)

    def cancel(self) -> None:
        """Set it to no moment."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fine is not None:
            self._fine.close()
        self._due = math.inf

    def _rang(self) -> None:
        self._timer = None
        self._due = math.inf
        self._ring()
