"""A timerfd by way of the C library, for Pythons whose `os` has none: those before 3.13."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final


class _Span(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Span), ("initial", _Span))


class LibcTimer:
    """Implements `fine_timer.TimerCalls`."""

    FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
    """Both flags of a timerfd are defined as those of a file."""

    def __init__(self) -> None:
        # A `PyDLL` keeps the lock of the interpreter, so no other thread writes to `_setting` during a call.
        libc = ctypes.PyDLL(None, use_errno=True)
        self._create = libc.timerfd_create
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Setting), ctypes.c_void_p)
        # Made once: a new one for each start costs as much as the rest of it.
        self._setting = _Setting()
        self._initial = self._setting.initial

    def open(self) -> int:  # see `TimerCalls`
        descriptor: int = self._create(time.CLOCK_MONOTONIC, self.FLAGS)
        _check(descriptor)
        return descriptor

    def start(self, descriptor: int, nanoseconds: int) -> None:  # see `TimerCalls`
        self._initial.seconds, self._initial.nanoseconds = divmod(nanoseconds, 1_000_000_000)
        _check(self._settime(descriptor, 0, self._setting, None))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
