"""Tie this process to the one that started it, so that the kernel ends it where that one ends.

The two share a pipe, the lifeline.  Only the process that started this one has the other end open, and it never writes.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal


def leads_group() -> bool:
    """Whether this process leads its group; a group that it has joined must not be ended with it."""
    return os.getpgrp() == os.getpid()


def tie_to_lifeline(lifeline: int, *, with_group: bool = True) -> None:
    """Have the kernel end this process when the other end of `lifeline` is closed, and with it the group that it leads.

    So it ends also while a call in C keeps the interpreter.  PR_SET_PDEATHSIG would end this process alone.  Without
    F_SETSIG, where this is not Linux, nothing happens.
    """
    os.set_inheritable(lifeline, False)
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid() if with_group and leads_group() else os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def begin_tied(lifeline: int) -> None:
    """As `tie_to_lifeline`, for a process that has started nothing yet; it ends here if the other end is closed."""
    tie_to_lifeline(lifeline)
    poll = select.poll()
    poll.register(lifeline, 0)  # poll tells of a hang-up whether asked to or not
    if poll.poll(0):  # before the kernel was told what to do
        os._exit(1)
