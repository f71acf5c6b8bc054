"""Which signals a host of services takes, and what each of them asks for.

Contract
--------
* SIGTERM and SIGINT are always taken.  SIGHUP, SIGQUIT and SIGUSR1 are taken only where nobody else has them: one that
  was ignored at the start (`nohup`) stays ignored, and one that the program handles itself stays the program's.
* Afterwards each signal that was taken has the handler that it had before.
* A process that only serves holds its signals (`hold_signals`): what comes before the event loop runs waits for it, and
  what comes after the drain does nothing, until the process has ended.
* Where one of these signals is blocked, SIGTERM and SIGINT are unblocked, and in a process that holds its signals the
  others too.
* A closed terminal begins the drain and never ends it: the kernel and the shell may both tell of it.
* A signal that is delivered twice counts once: `Deliveries` says what is the same one.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

ALWAYS_TAKEN = (signal.SIGTERM, signal.SIGINT)
TAKEN_IF_FREE = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)

STDERR = 2


class Action(Enum):
    """What a signal asks for."""

    DRAIN = "drain"
    """Finish what was accepted, and end."""
    END = "end"
    """End at once."""
    RENEW = "renew"
    """Read certificates and keys again."""
    REPORT = "report"
    """Write what every service and every thread is doing to the log."""
    NOTHING = "nothing"


def action_of(number: int, *, draining: bool, terminal_closed: bool) -> Action:
    """What signal `number` asks for: while the host drains, and where its terminal was closed."""
    if number == signal.SIGUSR1:
        return Action.REPORT
    if number == signal.SIGHUP:
        if draining:
            return Action.NOTHING
        return Action.DRAIN if terminal_closed else Action.RENEW
    return Action.END if draining else Action.DRAIN


SAME_SECONDS: Final[dict[int, float]] = {signal.SIGTERM: 1.0, signal.SIGINT: 0.1}
"""How long after a signal another one of its number is the same one, delivered once more.

`timeout` of coreutils, and supervisors, signal the process and then its group.  A person presses Ctrl-C no two times
within a tenth of a second.  SIGQUIT is no signal of supervisors, and always counts.
"""


class Deliveries:
    """Which of the signals that a process gets count, and which are one that counted, delivered once more."""

    def __init__(self) -> None:
        self._counted: dict[int, float] = {}

    def counts(self, number: int, now: float) -> bool:
        """Whether signal `number`, which has come at `now`, counts."""
        if number in SAME_SECONDS and now - self._counted.get(number, -math.inf) <= SAME_SECONDS[number]:
            return False
        self._counted[number] = now
        return True


class Terminal:
    """Standard error, if it is a terminal when this is made."""

    def __init__(self) -> None:
        self._was_there = os.isatty(STDERR)

    @property
    def closed(self) -> bool:
        """Whether there was a terminal, and is none now."""
        return self._was_there and not os.isatty(STDERR)


class _Taken:
    """Signals with a handler of ours.  Those that come before anybody is told of them wait for whoever is."""

    def __init__(self, numbers: Iterable[int], unblocked: Iterable[int]) -> None:
        self._told: tuple[asyncio.AbstractEventLoop, Callable[[int], None]] | None = None
        self._waiting: list[int] = []
        self._deliveries = Deliveries()
        self._over = False
        # One handler from the first to the last: while a handler is put in the place of another, there would be a
        # moment with the default, which ends the process.
        self._before = {number: signal.signal(number, self._arrived) for number in numbers}
        for number in self._before:
            signal.siginterrupt(number, False)
        unblocked = set(unblocked)
        self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked) & unblocked

    def begin_telling(self, loop: asyncio.AbstractEventLoop, tell: Callable[[int], None]) -> None:
        """Call `tell` on `loop` for each signal that comes or has come."""
        self._told = (loop, tell)
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            loop.call_soon(tell, number)

    def end_telling(self) -> None:
        """From now on the signals do nothing."""
        self._told, self._over = None, True

    def give_back(self) -> None:
        """Restore what was before."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)
        for number, handler in self._before.items():
            # None is a handler that is no Python function: nobody can set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ignore(self) -> None:
        """Have the kernel ignore them: Python restores the defaults of its own handlers before a process ends."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _arrived(self, number: int, _frame: object) -> None:
        if not self._deliveries.counts(number, monotonic()):
            return
        told = self._told
        if told is not None:
            told[0].call_soon_threadsafe(told[1], number)
        elif not self._over:
            self._waiting.append(number)


class _Process:
    """The signals that this process holds."""

    held: _Taken | None = None


def hold_signals() -> None:
    """Take signals for the rest of the process; `taking_signals` is then told of those that have come since."""
    numbers = _to_take()
    _Process.held = _Taken(numbers, unblocked=numbers)


def ignore_held_signals() -> None:
    """Ignore from now on the signals that were held: the process ends, and nothing changes its status."""
    if _Process.held is not None:
        _Process.held.ignore()


@contextlib.contextmanager
def taking_signals(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` on the running event loop with the number of each signal that comes; restore the handlers at the end.

    The loop must run in the main thread.
    """
    # Not before: every command imports this module, and most have no event loop; asyncio takes 9 MB.
    import asyncio

    held = _Process.held
    # What a program has blocked besides, it may wait for by `sigwait`: that stays its own.
    taken = held or _Taken(_to_take(), unblocked=ALWAYS_TAKEN)
    taken.begin_telling(asyncio.get_running_loop(), tell)
    try:
        yield
    finally:
        taken.end_telling()
        if held is None:
            taken.give_back()


def _to_take() -> list[int]:
    return [*ALWAYS_TAKEN, *filter(_free, TAKEN_IF_FREE)]


def _free(number: int) -> bool:
    """Whether nobody ignores or handles signal `number`."""
    return signal.getsignal(number) == signal.SIG_DFL and not _caught() >> (number - 1) & 1


def _caught() -> int:
    """A bit for each signal with a handler, those of C code included, which `getsignal` does not see (`faulthandler`).

    0 on a system that does not tell.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)
