"""The signals of a worker from outside, which a person or a supervisor has started.

A thread hears of them at once, also while the main thread is in a call that runs no Python, as `predict` may be: the
interpreter writes the number into a pipe before any handler runs.  A library may put a pipe of its own in the place of
ours, as event loops do while they run.  Then our handler writes the number, when the main thread comes to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals that ask the worker to leave."""
ALWAYS_TAKEN: Final = (signal.SIGTERM, signal.SIGINT)
TAKEN_IF_NOT_IGNORED: Final = (signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)
"""What was ignored at the start (`nohup`) stays ignored."""


class AttachedSignals:
    """From `take` on, `told` is called in a thread with the number of each signal that comes; SIGHUP does nothing."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._taken = [
            *ALWAYS_TAKEN,
            *(number for number in TAKEN_IF_NOT_IGNORED if signal.getsignal(number) is not signal.SIG_IGN),
        ]

    def take(self) -> None:
        """Take the signals, for the rest of the process; called in the main thread."""
        threading.Thread(target=self._tell, name="penstock-signals", daemon=True).start()
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in self._taken:
            # A handler and no SIG_IGN, also for SIGHUP: a program that the stage starts would inherit that.
            signal.signal(number, self._arrived)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._taken)
        os.register_at_fork(after_in_child=self._forked)

    def _arrived(self, number: int, _frame: object) -> None:
        there = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if there == self._writer:
            return  # the thread has been told
        if there >= 0:
            signal.set_wakeup_fd(there)
        with contextlib.suppress(BlockingIOError):  # as many signals as a pipe has room for were not heard yet
            os.write(self._writer, bytes([number]))

    def _tell(self) -> None:
        while True:
            (number,) = os.read(self._reader, 1)
            if number in self._taken and number != signal.SIGHUP:
                self._told(number)

    def _forked(self) -> None:
        # What is sent to a child of the stage is not for this worker, and the child has its pipe.
        signal.set_wakeup_fd(-1)
        for number in self._taken:
            if signal.getsignal(number) == self._arrived:
                signal.signal(number, signal.SIG_DFL)
