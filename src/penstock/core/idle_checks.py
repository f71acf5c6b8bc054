"""Decide when an idle worker is asked how it is, and when its answer has taken too long.  Pure: it is told the time.

Contract
--------
* A worker is asked once it has been idle for `IDLE_SECONDS`, and again so long after each answer, while it stays idle.
  Work begins the time anew: who answers batches is not asked.
* It has `LIMIT_SECONDS` to answer.  One that was not ended for being late is late again after `IDLE_SECONDS`.
* A worker that is not ready is not asked.
"""

from __future__ import annotations

from enum import IntEnum

IDLE_SECONDS = 10.0
LIMIT_SECONDS = 5.0


class Look(IntEnum):
    """What a look at a worker says is to be done."""

    NOTHING = 0
    ASK = 1
    LATE = 2
    """It was asked, and has not answered in time."""


class IdleChecks:
    """Those of one worker.

    `idle_since` is since when it has had nothing to do; None while it has something, or is not ready.
    """

    def __init__(self) -> None:
        self._late_at: float | None = None
        """When the check that it runs is late; None where it runs none."""

    def look(self, idle_since: float | None, now: float) -> Look:
        """What to do at `now`; after `ASK` it counts as asked."""
        if self._late_at is not None:
            if now < self._late_at:
                return Look.NOTHING
            self._late_at = now + IDLE_SECONDS
            return Look.LATE
        if idle_since is None or now - idle_since < IDLE_SECONDS:
            return Look.NOTHING
        self._late_at = now + LIMIT_SECONDS
        return Look.ASK

    def ended(self) -> None:
        """It has answered, or it is gone."""
        self._late_at = None

    def next_look(self, idle_since: float | None, now: float) -> float:
        """The moment at which there may be something to do; a worker at work may be idle from now on."""
        if self._late_at is not None:
            return self._late_at
        return (now if idle_since is None else idle_since) + IDLE_SECONDS
