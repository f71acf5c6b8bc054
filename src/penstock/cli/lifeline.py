"""Be a process that a command starts, in a group of its own.

Where the command is killed, the kernel ends the process.  What the process writes to the command's terminal is shown.
"""

from __future__ import annotations

from penstock.hosting.tied_process import begin_tied
from penstock.worker.__main__ import write_in_background


def begin_below(lifeline: int) -> None:
    """Begin a process that ends, with its group, when the other end of the pipe `lifeline` is closed; or is already."""
    write_in_background()
    begin_tied(lifeline)
