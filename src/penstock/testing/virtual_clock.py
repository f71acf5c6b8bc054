"""A clock that stands still until a test moves it.

    clock = VirtualClock()
    clock.call_later(30.0, restart)
    await clock.advance(30.0)  # `restart` has been called, at its moment, and took no time

It implements `penstock.core.clock.Clock`, on whatever event loop runs.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from itertools import count

from penstock.core.alarm import LaterTimer

TURNS_TO_REST = 100
"""Turns of the event loop after which it counts as being at rest.

An event loop does not say when it has nothing to do.  A chain of callbacks, each scheduled by the one before it, may be
so many turns long.  The longest chain in Penstock, the start of a worker, is about ten turns long.
"""


class VirtualTimer:
    """A call that is due at `due`; `cancel` forgets it."""

    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self._callback: Callable[[], object] | None = callback

    @property
    def waiting(self) -> bool:
        """Whether the call is still to come."""
        return self._callback is not None

    def cancel(self) -> None:
        """Make no call any more."""
        self._callback = None

    def ring(self) -> None:
        """Make the call, if it was not cancelled; at most once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class VirtualClock:
    """Time that only `advance` moves.  `start` is the first moment, in seconds; it means nothing by itself."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._order = count()
        self._timers: list[tuple[float, int, VirtualTimer]] = []

    def now(self) -> float:
        """The time, in seconds."""
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> VirtualTimer:
        """Call `callback` when the time has advanced by `delay` seconds."""
        assert 0 <= delay < math.inf, f"a timer of {delay} seconds"
        timer = VirtualTimer(self._now + delay, callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    @property
    def fine_step(self) -> float:
        """A microsecond: it keeps every delay."""
        return 1e-6

    def fine_timer(self, callback: Callable[[], object]) -> LaterTimer:
        """A timer that is set again and again."""
        return LaterTimer(self, callback)

    @property
    def waiting(self) -> list[float]:
        """In how many seconds each timer is due, the next one first; to the microsecond, without the cancelled ones."""
        return [round(due - self._now, 6) for due, _, timer in sorted(self._timers) if timer.waiting]

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass: what comes due runs in order, each at its moment, and the loop comes to rest after each.

        Timers due at one moment run in the order they were set.  ``advance(0)`` runs what is due now.
        """
        end = self._now + seconds
        await rest()
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            if timer.waiting:
                timer.ring()
                await rest()
        self._now = end


async def rest() -> None:
    """Let the event loop run until only timers are left."""
    for _ in range(TURNS_TO_REST):
        await asyncio.sleep(0)
