"""A job as its submitter sees it.

Times are Unix seconds.  Every text and number here can be written as JSON: a job is shown as its fields.
"""

from __future__ import annotations

import msgspec

from penstock.jobs.rules.job_states import ENDED, JobState


class Attempt(msgspec.Struct, frozen=True):
    """One claim of a job."""

    run: int
    """The run it belongs to, from 1."""
    fence: int
    """Its number: larger than that of every claim before it, in all runs."""
    holder: str
    """The consumer that claimed the job."""
    claimed: float
    ended: float | None = None
    """When it ended, as far as the store has heard; None while it may go on."""
    cause: str = ""
    """Why it ended: a cause (see `rules.attempts`), or the state that ended the run; "" while it may go on."""


class JobProblem(msgspec.Struct, frozen=True):
    """Why an attempt of a job failed."""

    type: str
    """The class of the error, as ``module.Qualname``."""
    message: str
    traceback: str = ""
    """The traceback in the worker, or "" where nothing was raised in one."""


class Job(msgspec.Struct, frozen=True):
    """A job, as its store had it when it was asked."""

    id: str
    queue: str
    state: JobState
    created: float
    service: str = ""
    """The service that it is for; "" is any."""
    run: int = 1
    """How often it was begun from the start: 1, and one more for each `retry`."""
    attempts: dict[str, int] = {}
    """The attempts of this run that count, by cause."""
    history: tuple[Attempt, ...] = ()
    """The last hundred claims, oldest first, of all runs."""
    ended: float | None = None
    priority: int = 0
    not_before: float | None = None
    """The moment from which it may be claimed, while it is scheduled; else None."""
    deadline: float | None = None
    error: JobProblem | None = None
    """Why the last attempt of this run that failed did so; None where none did, or where the job succeeded."""
    input_url: str | None = None
    output: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its run has ended."""
        return self.state in ENDED


MOST_HISTORY = 100
"""The most claims that a job's history keeps; older ones are dropped."""


class StoredResult(msgspec.Struct, frozen=True):
    """What a job has made: bytes in the store, or, where `output` names its place, a file or an object there."""

    body: bytes
    content_type: str
    output: str | None = None


class Stats(msgspec.Struct, frozen=True):
    """What lies in a queue."""

    scheduled: int = 0
    waiting: int = 0
    leased: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
    oldest_waiting: float = 0.0
    """For how many seconds the oldest waiting job has waited since it was submitted or fell due; 0 without one."""
    backlog_seconds: float = 0.0
    """The waiting jobs times the seconds that the model takes for one."""
    undelivered: int = 0
    """The jobs whose run has ended and for whose outputs something is left to do: see `store.Delivery`."""
    paused: bool = False
    """Whether nothing is claimed until `resume`."""
