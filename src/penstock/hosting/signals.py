"""Which signals a host of services takes, and what each of them asks for.

Contract
--------
* SIGTERM and SIGINT are always taken.  SIGHUP, SIGQUIT and SIGUSR1 are taken only where nobody else has them: one that
  was ignored at the start (`nohup`) stays ignored, and one that the program handles itself stays the program's.
* Afterwards each signal that was taken has the handler that it had before.
* A closed terminal begins the drain and never ends it: the kernel and the shell may both tell of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

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


class Terminal:
    """Standard error, if it is a terminal when this is made."""

    def __init__(self) -> None:
        self._was_there = os.isatty(STDERR)

    @property
    def closed(self) -> bool:
        """Whether there was a terminal, and is none now."""
        return self._was_there and not os.isatty(STDERR)


@contextlib.contextmanager
def taking_signals(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` on the running event loop with the number of each signal that comes; restore the handlers at the end.

    The loop must run in the main thread.
    """
    loop = asyncio.get_running_loop()
    taken = [*ALWAYS_TAKEN, *filter(_free, TAKEN_IF_FREE)]
    before = {number: signal.getsignal(number) for number in taken}
    for number in taken:
        loop.add_signal_handler(number, tell, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None is a handler that is no Python function: nobody can set it again
                signal.signal(number, handler)


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
