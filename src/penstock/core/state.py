"""The states of a service and of a worker, by the names that `/health`, logs and metrics use."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What a service is doing, as a load balancer wants to know it."""

    STARTING = "starting"
    """Some stage has never been ready."""
    READY = "ready"
    BUSY = "busy"
    """Serving, but it would refuse a request now: it is full, or memory is short."""
    FAILED = "failed"
    """A stage has no worker: its workers cannot start, or do no good; tried again, and may recover."""
    STALLED = "stalled"
    """Work waits or runs in a stage, and nothing has come back from it for long."""
    DRAINING = "draining"
    """Finishing what was accepted, accepting nothing new."""
    STOPPED = "stopped"

    @property
    def serving(self) -> bool:
        """Whether traffic should be sent here."""
        return self in (State.READY, State.BUSY)


class WorkerState(StrEnum):
    """What one worker is doing."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    DOWN = "down"
    """Dead; a restart may be due."""
