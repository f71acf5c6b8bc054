"""A job that this consumer has claimed and not yet ended, and those that it holds together."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from penstock.jobs.store import AttemptEnd, ClaimedJob, Hold
from penstock.transfer.transfers import Downloaded


class JobStep(StrEnum):
    """What is done for a job now, by the names of the metrics."""

    DOWNLOAD = "download"
    COMPUTE = "compute"
    """It is with the engine: it waits for a worker, or a stage is at work on it."""
    UPLOAD = "upload"
    COMMIT = "commit"


class HeldWork:
    """One claim of this consumer, from the store's answer to the attempt's end.

    The thread that renews writes `lease_until` only; everything else is written on the event loop's thread.  Threads
    that move data read `unwanted`.
    """

    __slots__ = (
        "cancelled", "claimed", "end", "end_sent", "engine", "file", "hold", "lease_until", "lost", "nbytes",
        "released", "resume", "service", "step", "step_began", "step_limit", "ticket",
    )  # fmt: skip

    def __init__(self, claimed: ClaimedJob, lease_until: float, now: float, service: str = "") -> None:
        self.claimed = claimed
        self.service = service
        """The service that takes it, which the job need not name; "" where none does."""
        self.hold: Hold = claimed.hold
        self.lease_until = lease_until
        """Until when the lease can be relied on, on the clock of leases."""
        self.nbytes = len(claimed.body)
        """The bytes of its input or of its result that are in memory for it."""
        self.step: JobStep | None = None
        self.step_began = now
        self.step_limit = float("inf")
        """How many seconds the step may take; one that takes longer is no longer renewed."""
        self.engine: Any = None
        """The engine that has it, while it has a `ticket`."""
        self.ticket: Any = None
        self.file: Downloaded | None = None
        """Its input, where that was fetched into a file."""
        self.end: AttemptEnd | None = None
        """How the attempt ends, once that is decided."""
        self.end_sent = 0
        """How often the store was told of `end`: it may have heard it each time, whether or not it answered."""
        self.resume: Callable[[], None] | None = None
        """The step that waits for the next renewal, because the lease may have run out."""
        self.cancelled = False
        """Whether the store said that it is to be cancelled."""
        self.lost = False
        """Whether the store said that another has it, or that its run has ended."""
        self.released = False
        """Whether it goes back, because this consumer ends."""

    def enter(self, step: JobStep, now: float, limit: float = float("inf")) -> None:
        """Begin a step that may take at most `limit` seconds."""
        self.step, self.step_began, self.step_limit = step, now, limit

    def overdue(self, now: float) -> bool:
        """Whether its step has passed its limit."""
        return now - self.step_began > self.step_limit

    @property
    def begun(self) -> bool:
        """Whether the model has begun with it."""
        return self.end is not None or (self.ticket is not None and bool(self.engine.begun(self.ticket)))

    @property
    def fetching(self) -> bool:
        """Whether it waits for an input that is elsewhere."""
        return self.claimed.input_url is not None and self.step in (None, JobStep.DOWNLOAD) and self.end is None

    @property
    def useless(self) -> bool:
        """Whether its result is of no use to anybody."""
        return self.lost or self.cancelled

    @property
    def unwanted(self) -> bool:
        """Whether nobody wants what is being done for it."""
        return self.lost or self.cancelled or self.released


class Holding:
    """The jobs that a consumer holds.  The event loop adds and drops them; the thread that renews takes a copy."""

    def __init__(self) -> None:
        self._jobs: dict[Hold, HeldWork] = {}  # by claim: what was given up may be claimed here once more
        self._lock = threading.Lock()
        self._nbytes: defaultdict[str, int] = defaultdict(int)
        self.elsewhere: set[HeldWork] = set()
        """Jobs whose input is not in the store."""
        self.dropped: set[Hold] = set()
        """The claims dropped since the store was last asked for jobs: its answer may have them once more."""

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: HeldWork) -> None:
        """Hold `job`."""
        with self._lock:
            self._jobs[job.hold] = job
        self._nbytes[job.service] += job.nbytes
        if job.claimed.input_url is not None:
            self.elsewhere.add(job)

    def resize(self, job: HeldWork, nbytes: int) -> None:
        """Count `nbytes` for `job` from now on."""
        self._nbytes[job.service] += nbytes - job.nbytes
        job.nbytes = nbytes

    def drop(self, job: HeldWork) -> None:
        """Hold `job` no longer; harmless where that was done."""
        with self._lock:
            found = self._jobs.pop(job.hold, None)
        if found is not None:
            self._nbytes[job.service] -= job.nbytes
            self.elsewhere.discard(job)
            self.dropped.add(job.hold)

    @property
    def nbytes(self) -> int:
        """The bytes in memory for all of them."""
        return sum(self._nbytes.values())

    def bytes_of(self, service: str) -> int:
        """The bytes in memory for the jobs of `service`."""
        return self._nbytes.get(service, 0)

    def get(self, hold: Hold) -> HeldWork | None:
        """The job of this claim, while it is held."""
        return self._jobs.get(hold)

    def jobs(self) -> list[HeldWork]:
        """All of them, as they are now; from any thread."""
        with self._lock:
            return list(self._jobs.values())
