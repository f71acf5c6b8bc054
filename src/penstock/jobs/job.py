"""A job as its submitter sees it.

Times are Unix seconds.  Every text and number here can be written as JSON: a job is shown as its fields.
"""

from __future__ import annotations

import msgspec

from penstock.jobs.rules.job_states import ENDED, JobState


class Attempt(msgspec.Struct, frozen=True):
    """One claim of a job."""

    generation: int
    """The generation of the job it belongs to, from 1."""
    fencing_token: int
    """Its number: larger than that of every claim before it, in all runs."""
    consumer_id: str
    """The consumer that claimed the job."""
    started_at: float
    finished_at: float | None = None
    """When it ended, as far as the store has heard; None while it may go on."""
    cause: str = ""
    """Why it ended: a cause (see `rules.attempts`), or the state that ended the run; "" while it may go on."""


class AttemptError(msgspec.Struct, frozen=True):
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
    created_at: float
    service: str = ""
    """The service that it is for; "" is any."""
    generation: int = 1
    """How often it was begun from the start: 1, and one more for each `retry`."""
    failures: dict[str, int] = {}
    """The attempts of this run that count, by cause."""
    attempts: tuple[Attempt, ...] = ()
    """The last hundred claims, oldest first, of all runs."""
    finished_at: float | None = None
    priority: int = 0
    scheduled_at: float | None = None
    """The moment from which it may be claimed, while it is scheduled; else None."""
    expires_at: float | None = None
    error: AttemptError | None = None
    """Why the last attempt of this run that failed did so; None where none did, or where the job succeeded."""
    input_url: str | None = None
    output_url: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether its run has ended."""
        return self.state in ENDED


MOST_HISTORY = 100
"""The most claims that a job keeps; older ones are dropped."""


class StoredResult(msgspec.Struct, frozen=True):
    """The result of a job: bytes in the store, or, where `output_url` names its place, a file or an object there."""

    body: bytes
    content_type: str
    output_url: str | None = None


class Stats(msgspec.Struct, frozen=True):
    """What lies in a queue."""

    scheduled: int = 0
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
    oldest_queued_seconds: float = 0.0
    """For how many seconds the oldest queued job has waited since it was submitted or fell due; 0 without one."""
    estimated_backlog_seconds: float = 0.0
    """The queued jobs times the seconds that the model takes for one."""
    pending_outputs: int = 0
    """The jobs whose run has ended and for whose outputs something is left to do: see `store.Delivery`."""
    paused: bool = False
    """Whether nothing is claimed until `resume`."""
