"""Be a process that a command starts, in a group of its own.

Where the command is killed, the kernel ends the process.  What the process writes to the command's terminal is shown.
"""

from __future__ import annotations

import os
import select

from penstock.worker.__main__ import _tie_to_lifeline, write_in_background


def begin_below(lifeline: int) -> None:
    """Begin a process that ends, with its group, when the other end of the pipe `lifeline` is closed; or is already."""
    write_in_background()
    _tie_to_lifeline(lifeline)
    poll = select.poll()
    poll.register(lifeline, 0)  # poll tells of a hang-up whether asked to or not
    if poll.poll(0):  # before the kernel was told what to do; nothing has been started yet
        os._exit(1)
