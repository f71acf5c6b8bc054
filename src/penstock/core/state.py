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
    """Taking work, but a stage with work has given nothing back for `progress_deadline` seconds."""
    DRAINING = "draining"
    """About to end: it finishes what was accepted.  Newcomers are accepted only for as long as `drain_delay` says."""
    STOPPED = "stopped"

    @property
    def serving(self) -> bool:
        """Whether traffic should be sent here."""
        return self in (State.READY, State.BUSY)

    @property
    def accepting(self) -> bool:
        """Whether what comes all the same is taken, as far as there is room: a stalled batch may only be long."""
        return self in (State.READY, State.BUSY, State.STALLED)


class WorkerState(StrEnum):
    """What one worker is doing."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    LEAVING = "leaving"
    """From outside, and about to go: it answers what it holds, and takes nothing more."""
    DOWN = "down"
    """Dead; a restart may be due."""

    @property
    def up(self) -> bool:
        """Whether it is set up and takes batches."""
        return self in (WorkerState.IDLE, WorkerState.BUSY)
