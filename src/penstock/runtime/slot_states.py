"""The states of a worker's slot, and its legal moves as tables.

A move that a table does not have is a mistake of ours, and raises IllegalMove.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.core.moves import Move


class SlotState(IntEnum):
    """What a slot is doing.  Those up to READY lead to serving, those after it to an end."""

    EMPTY = 0
    """Nothing fills it; a start or a restart may be due."""
    SPAWNING = 1
    """An incarnation is being started."""
    SETTING_UP = 2
    """The incarnation lives; it imports, sets up and warms up its stage."""
    READY = 3
    """It takes batches."""
    REPLACING = 4
    """The incarnation is being ended, and another will follow."""
    DOOMED = 5
    """An incarnation is being started, and will be ended at once: the stage is stopping."""
    CLOSING = 6
    """The incarnation was asked to end in good order."""
    STOPPING = 7
    """The incarnation is being ended for good."""
    STOPPED = 8
    """Nothing fills it, and nothing will."""
    LEAVING = 9
    """The incarnation, a worker from outside, has said that it leaves: it answers what it holds."""


_S = SlotState

START = Move("start", "a worker", {_S.EMPTY: _S.SPAWNING})
"""Begin an incarnation."""
FILL = Move("fill", "a worker", {_S.SPAWNING: _S.SETTING_UP, _S.DOOMED: _S.STOPPING})
"""The incarnation is there."""
BECOME_READY = Move("become ready", "a worker", {_S.SETTING_UP: _S.READY})
"""The incarnation said that it is ready."""
REPLACE = Move(
    "replace",
    "a worker",
    {
        _S.SETTING_UP: _S.REPLACING,
        _S.READY: _S.REPLACING,
        _S.REPLACING: _S.REPLACING,
        _S.LEAVING: _S.REPLACING,
        _S.CLOSING: _S.STOPPING,
        _S.STOPPING: _S.STOPPING,
        _S.STOPPED: _S.STOPPED,  # it was abandoned, and a frame that it had sent before is no valid one
    },
)
"""End the incarnation, because it hangs, only fails, or sent what no worker sends."""
LEAVE = Move("leave", "a worker", {_S.READY: _S.LEAVING})
"""The incarnation said that it leaves."""
CLOSE = Move("close", "a worker", {_S.READY: _S.CLOSING, _S.LEAVING: _S.CLOSING, _S.CLOSING: _S.CLOSING})
"""Ask the incarnation to end in good order, for good."""
STOP = Move(
    "stop",
    "a worker",
    {
        _S.EMPTY: _S.STOPPED,
        _S.SPAWNING: _S.DOOMED,
        _S.SETTING_UP: _S.STOPPING,
        _S.READY: _S.STOPPING,
        _S.REPLACING: _S.STOPPING,
        _S.DOOMED: _S.DOOMED,
        _S.LEAVING: _S.STOPPING,
        _S.CLOSING: _S.STOPPING,
        _S.STOPPING: _S.STOPPING,
        _S.STOPPED: _S.STOPPED,
    },
)
"""End the incarnation now, for good."""
ABANDON = Move(
    "abandon",
    "a worker",
    {
        _S.EMPTY: _S.STOPPED,
        _S.SPAWNING: _S.DOOMED,
        _S.SETTING_UP: _S.STOPPED,
        _S.READY: _S.STOPPED,
        _S.REPLACING: _S.STOPPED,
        _S.DOOMED: _S.DOOMED,
        _S.LEAVING: _S.STOPPED,
        _S.CLOSING: _S.STOPPED,
        _S.STOPPING: _S.STOPPED,
        _S.STOPPED: _S.STOPPED,
    },
)
"""End the incarnation now, for good, and wait for no news of its end."""
END = Move(
    "end",
    "a worker",
    {
        _S.SPAWNING: _S.EMPTY,
        _S.SETTING_UP: _S.EMPTY,
        _S.READY: _S.EMPTY,
        _S.REPLACING: _S.EMPTY,
        _S.DOOMED: _S.STOPPED,
        _S.LEAVING: _S.EMPTY,
        _S.CLOSING: _S.STOPPED,
        _S.STOPPING: _S.STOPPED,
        _S.STOPPED: _S.STOPPED,
    },
)
"""The incarnation is gone, or could not be started."""
