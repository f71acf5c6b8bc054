"""The clock of a running process: the host's monotonic clock, and timers of the event loop that runs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Final

from penstock.core.alarm import LaterTimer
from penstock.core.clock import Clock, FineTimer
from penstock.hosting.fine_timer import FINE_STEP_SECONDS, KernelTimer, TimerCalls, find_timer_calls

TIMER_TICK_SECONDS: Final = 0.001
"""The resolution of an event loop's timers.

Delays are rounded up to it, because a timer that rings a little too early would have to be set again.
"""


class LoopClock:
    """Implements `core.clock.Clock`."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.monotonic

    @cached_property
    def _timer_calls(self) -> TimerCalls | None:
        return find_timer_calls()

    @property
    def fine_step(self) -> float:  # see `Clock`
        return TIMER_TICK_SECONDS if self._timer_calls is None else FINE_STEP_SECONDS

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:  # see `Clock`
        whole_ticks = math.ceil(max(delay, 0.0) / TIMER_TICK_SECONDS)
        return asyncio.get_running_loop().call_later(whole_ticks * TIMER_TICK_SECONDS, callback)

    def fine_timer(self, callback: Callable[[], object]) -> FineTimer:  # see `Clock`
        later = LaterTimer(self, callback)
        return later if self._timer_calls is None else KernelTimer(self._timer_calls, callback, later)


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
