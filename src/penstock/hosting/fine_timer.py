"""A timer of the kernel, which rings within a tenth of a millisecond where those of an event loop take whole ones.

On Linux it is a timerfd, which the event loop watches as it does a socket.  Where there is none it is a timer of the
event loop.  A timerfd costs a descriptor, so only what has to ring so soon uses one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Final, Protocol

TIMER_TICK_SECONDS: Final = 0.001
"""The resolution of an event loop's timers.

Delays are rounded up to it, because a timer that rings a little too early would have to be set again.
"""
FINE_STEP_SECONDS: Final = 0.0001
"""How late such a timer may ring.  Measured on a busy machine: 22 µs in the median, 2 ms at the 99th percentile."""
NANOSECONDS: Final = 1_000_000_000
LEAST_NANOSECONDS: Final = 1
"""A delay of 0 would stop the timer."""


def whole_ticks(delay: float) -> float:
    """`delay` in seconds, as an event loop can keep it."""
    return math.ceil(max(delay, 0.0) / TIMER_TICK_SECONDS) * TIMER_TICK_SECONDS


class TimerCalls(Protocol):
    """What the system has to offer."""

    def open(self) -> int:
        """A new timer, as a descriptor that does not block, and that no program inherits."""

    def start(self, descriptor: int, nanoseconds: int) -> None:
        """Have it ring once, after so long; a timer that was started before is set anew."""


class _OsTimer:
    """The functions of `os`, from Python 3.13 on."""

    def open(self) -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)  # type: ignore[attr-defined, no-any-return]

    def start(self, descriptor: int, nanoseconds: int) -> None:
        os.timerfd_settime_ns(descriptor, initial=nanoseconds)  # type: ignore[attr-defined]


class _Span(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Span), ("initial", _Span))


class _LibcTimer:
    """The same from the C library."""

    FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
    """Both flags of a timerfd are defined as those of a file."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._create = libc.timerfd_create
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Setting), ctypes.c_void_p)

    def open(self) -> int:
        descriptor: int = self._create(time.CLOCK_MONOTONIC, self.FLAGS)
        _check(descriptor)
        return descriptor

    def start(self, descriptor: int, nanoseconds: int) -> None:
        seconds, rest = divmod(nanoseconds, NANOSECONDS)
        setting = _Setting(_Span(0, 0), _Span(seconds, rest))
        _check(self._settime(descriptor, 0, ctypes.byref(setting), None))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def find_timer_calls() -> TimerCalls | None:
    """What there is here; None where there is no timerfd."""
    if hasattr(os, "timerfd_create"):
        return _OsTimer()
    if sys.platform != "linux":
        return None
    try:
        return _LibcTimer()
    except (OSError, AttributeError):  # a C library without it, or none that can be loaded
        return None


class KernelTimer:
    """Calls `ring` once for each `set`; implements `core.clock.FineTimer`.

    It opens its descriptor when it is first set.  Where it gets none it is a timer of the event loop.
    """

    def __init__(self, kernel: TimerCalls | None, ring: Callable[[], object]) -> None:
        self._kernel = kernel
        self._ring = ring
        self._descriptor = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._later: asyncio.TimerHandle | None = None

    def set(self, delay: float) -> None:  # noqa: D102  # see `core.clock.FineTimer`
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._descriptor < 0 and self._kernel is not None:
            with contextlib.suppress(OSError):  # none is left
                self._descriptor = self._kernel.open()
                self._loop = asyncio.get_running_loop()
                self._loop.add_reader(self._descriptor, self._rang)
        if self._kernel is not None and self._descriptor >= 0:
            self._kernel.start(self._descriptor, max(round(delay * NANOSECONDS), LEAST_NANOSECONDS))
        else:
            self._later = asyncio.get_running_loop().call_later(whole_ticks(delay), self._ring)

    def close(self) -> None:  # noqa: D102  # see `core.clock.FineTimer`
        if self._later is not None:
            self._later.cancel()
            self._later = None
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
