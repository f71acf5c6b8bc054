"""The clock of a running process: the host's monotonic clock, and timers of the event loop that runs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from penstock.core.clock import Clock

TIMER_TICK_SECONDS = 0.001
"""The resolution of an event loop's timers.

Delays are rounded up to it, because a timer that rings a little too early would have to be set again.
"""


class LoopClock:
    """Implements `core.clock.Clock`."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.monotonic

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:  # noqa: D102  # see `Clock`
        ticks = math.ceil(max(delay, 0.0) / TIMER_TICK_SECONDS)
        return asyncio.get_running_loop().call_later(ticks * TIMER_TICK_SECONDS, callback)


async def sleep_on(clock: Clock, seconds: float) -> None:
    """Wait until `seconds` have passed on `clock`."""
    await wait_on(clock, asyncio.Event(), seconds)


async def wait_on(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Wait for `event`, which is set once `seconds` have passed on `clock`."""
    timer = clock.call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
