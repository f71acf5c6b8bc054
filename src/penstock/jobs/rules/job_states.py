"""The states of a job, and its legal moves as a table.

Each run of a job ends in exactly one of `ENDED`.  `RETRY` opens the next run of a job that has ended without a result.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from penstock.core.moves import Move


class JobState(StrEnum):
    """Where a job is in its life, by the names that users see."""

    SCHEDULED = "scheduled"
    """It may be claimed from a moment on that has not come yet."""
    QUEUED = "queued"
    """It may be claimed."""
    RUNNING = "running"
    """A holder has claimed it."""
    SUCCEEDED = "succeeded"
    """It has a result."""
    DEAD = "dead"
    """It used up its attempts, or its input was not valid."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its deadline passed first."""


Q: Final = JobState
ENDED: Final = frozenset((Q.SUCCEEDED, Q.DEAD, Q.CANCELLED, Q.EXPIRED))
"""The states that end a run."""

FALL_DUE = Move("wait", "a job", {Q.SCHEDULED: Q.QUEUED})
"""The moment came from which on it may be claimed."""
CLAIM = Move("claim", "a job", {Q.QUEUED: Q.RUNNING, Q.RUNNING: Q.RUNNING})
"""A consumer takes it; from RUNNING only where the lease has run out."""
RELEASE = Move("release", "a job", {Q.RUNNING: Q.QUEUED})
"""Its holder gives it back, to be claimed at once."""
POSTPONE = Move("postpone", "a job", {Q.RUNNING: Q.SCHEDULED})
"""An attempt failed, and the next may begin after a rest."""
SUCCEED = Move("succeed", "a job", {Q.RUNNING: Q.SUCCEEDED})
"""Its holder has committed a result."""
GIVE_UP = Move("give up", "a job", {Q.RUNNING: Q.DEAD})
"""An attempt failed, and it was the last."""
CANCEL = Move("cancel", "a job", {Q.SCHEDULED: Q.CANCELLED, Q.QUEUED: Q.CANCELLED, Q.RUNNING: Q.CANCELLED})
"""Its submitter wants it no longer; from RUNNING its holder makes the move, or anybody once the lease has run out."""
EXPIRE = Move("expire", "a job", {Q.SCHEDULED: Q.EXPIRED, Q.QUEUED: Q.EXPIRED, Q.RUNNING: Q.EXPIRED})
"""Its deadline passed; from RUNNING its holder makes the move, or a claim once the lease has run out."""
RETRY = Move("retry", "a job", {Q.DEAD: Q.QUEUED, Q.CANCELLED: Q.QUEUED, Q.EXPIRED: Q.QUEUED})
"""Somebody wants it run once more: the next run begins, with all its attempts."""

MOVES: Final = (FALL_DUE, CLAIM, RELEASE, POSTPONE, SUCCEED, GIVE_UP, CANCEL, EXPIRE, RETRY)
