"""A timer of the kernel, which rings within a tenth of a millisecond where those of an event loop take whole ones.

On Linux it is a timerfd, which the event loop watches as it does a socket.  Where there is none it is a timer of the
event loop.  A timerfd costs a descriptor, so only what has to ring so soon uses one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from penstock.core.clock import FineTimer
from penstock.hosting.libc_timer import LibcTimer

FINE_STEP_SECONDS: Final = 0.0001
"""How late such a timer may ring.  Measured on a busy machine: 22 µs in the median, 2 ms at the 99th percentile."""
NANOSECONDS: Final = 1_000_000_000
LEAST_NANOSECONDS: Final = 1
"""A delay of 0 would stop the timer."""


class TimerCalls(Protocol):
    """What the system has to offer."""

    def open(self) -> int:
        """A new timer, as a descriptor that does not block, and that no program inherits."""

    def start(self, descriptor: int, nanoseconds: int) -> None:
        """Have it ring once, after so long; a timer that was started before is set anew."""


class OsTimer:
    """The functions of `os`, from Python 3.13 on; implements `TimerCalls`."""

    # Untyped: an ignore would be in vain under Python 3.13, whose types have these functions, and that stops mypyc.
    _os: ClassVar[Any] = os

    def open(self) -> int:  # see `TimerCalls`
        descriptor: int = self._os.timerfd_create(
            time.CLOCK_MONOTONIC, flags=self._os.TFD_NONBLOCK | self._os.TFD_CLOEXEC
        )
        return descriptor

    def start(self, descriptor: int, nanoseconds: int) -> None:  # see `TimerCalls`
        self._os.timerfd_settime_ns(descriptor, initial=nanoseconds)


def find_timer_calls() -> TimerCalls | None:
    """What there is here; None where there is no timerfd."""
    if hasattr(os, "timerfd_create"):
        return OsTimer()
    if sys.platform != "linux":
        return None
    try:
        return LibcTimer()
    except (OSError, AttributeError):  # a C library without it, or none that can be loaded
        return None


class KernelTimer:
    """Calls `ring` once for each `set`; implements `core.clock.FineTimer`.

    It opens its descriptor when it is first set.  While it gets none it is the `coarse` timer.
    """

    def __init__(self, calls: TimerCalls, ring: Callable[[], object], coarse: FineTimer) -> None:
        self._calls = calls
        self._ring = ring
        self._coarse = coarse
        self._descriptor = -1
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self, delay: float) -> None:  # see `core.clock.FineTimer`
        self._coarse.close()
        if self._descriptor < 0:
            self._open()
        if self._descriptor >= 0:
            self._calls.start(self._descriptor, max(round(delay * NANOSECONDS), LEAST_NANOSECONDS))
        else:
            self._coarse.set(delay)

    def _open(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # no descriptor is left
            descriptor = self._calls.open()
            try:
                loop.add_reader(descriptor, self._rang)
            except OSError:  # or the kernel watches no more of them
                os.close(descriptor)
                raise
            self._descriptor, self._loop = descriptor, loop

    def close(self) -> None:  # see `core.clock.FineTimer`
        self._coarse.close()
        if self._descriptor >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            self._loop = None
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """Give the descriptor back where an event loop has ended without a stop."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set anew after it had rung
            os.read(self._descriptor, 8)
            self._ring()
