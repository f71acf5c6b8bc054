"""The phases of a run, the states of its tasks, and their legal moves as a table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from penstock.core.moves import Move


class Phase(StrEnum):
    """A part of a run: what its tasks are for.  It starts when all tasks of the phases before it are done."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"
    SAVE = "save"


class TaskState(StrEnum):
    """Where a task is in its life, by the names that users see."""

    QUEUED = "queued"
    """It may be claimed once its phase has started."""
    RUNNING = "running"
    """A worker has claimed it."""
    DONE = "done"
    """Its function has returned."""
    FAILED = "failed"
    """It used up its attempts, and with it the run has failed."""


CLAIM: Final = Move("claim", "a task", {TaskState.QUEUED: TaskState.RUNNING, TaskState.RUNNING: TaskState.RUNNING})
"""A worker takes it; from RUNNING only where the lease has run out."""
FINISH: Final = Move("finish", "a task", {TaskState.RUNNING: TaskState.DONE})
"""Its function returned."""
GIVE_BACK: Final = Move("give back", "a task", {TaskState.RUNNING: TaskState.QUEUED})
"""Its function raised, and attempts are left; or its worker was interrupted."""
GIVE_UP: Final = Move("give up", "a task", {TaskState.RUNNING: TaskState.FAILED})
"""The last attempt failed, or the lease of the last attempt ran out."""
RETRY: Final = Move("retry", "a task", {TaskState.FAILED: TaskState.QUEUED})
"""Somebody wants the failed run to go on: the task has all its attempts again."""

MOVES: Final = (CLAIM, FINISH, GIVE_BACK, GIVE_UP, RETRY)
