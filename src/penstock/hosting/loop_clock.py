"""The clock of a running process: the host's monotonic clock, and timers of the event loop that runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock.core.clock import Clock
from penstock.hosting.fine_timer import (
    FINE_STEP_SECONDS,
    TIMER_TICK_SECONDS,
    KernelTimer,
    find_timer_calls,
    whole_ticks,
)


class LoopClock:
    """Implements `core.clock.Clock`."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.monotonic
        self._kernel = find_timer_calls()
        self.fine_step = TIMER_TICK_SECONDS if self._kernel is None else FINE_STEP_SECONDS

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:  # noqa: D102  # see `Clock`
        return asyncio.get_running_loop().call_later(whole_ticks(delay), callback)

    def fine_timer(self, callback: Callable[[], object]) -> KernelTimer:  # noqa: D102  # see `Clock`
        return KernelTimer(self._kernel, callback)


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
