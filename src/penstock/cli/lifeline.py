"""Tie a process that a command starts to that command: where the command is killed, the kernel ends the process."""

from __future__ import annotations

import os
import select

from penstock.worker.__main__ import _tie_to_lifeline


def tie_to_lifeline(lifeline: int) -> None:
    """End this process and its group when the other end of the pipe `lifeline` is closed; now where it is already."""
    _tie_to_lifeline(lifeline)
    poll = select.poll()
    poll.register(lifeline, 0)  # poll tells of a hang-up whether asked to or not
    if poll.poll(0):  # before the kernel was told what to do; nothing has been started yet
        os._exit(1)
