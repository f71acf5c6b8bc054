"""The job queue: jobs that a store keeps, and that consumers take through a service.

A submitter begins with `connect`, or on an event loop with `connect_async`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import (
    InputTooLarge,
    JobCancelled,
    JobConflict,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobNotSucceeded,
    QueueFull,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from penstock.jobs.job import Job
    from penstock.jobs.submitting import JobQueue, connect
    from penstock.jobs.submitting_async import AsyncJobQueue, connect_async

__all__ = [
    "AsyncJobQueue",
    "InputTooLarge",
    "Job",
    "JobCancelled",
    "JobConflict",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "JobNotSucceeded",
    "JobQueue",
    "QueueFull",
    "StoreUnavailable",
    "connect",
    "connect_async",
]

# Loaded on first use: a consumer imports this package too, and submits nothing.
_LATER = {
    "AsyncJobQueue": "penstock.jobs.submitting_async",
    "Job": "penstock.jobs.job",
    "JobQueue": "penstock.jobs.submitting",
    "connect": "penstock.jobs.submitting",
    "connect_async": "penstock.jobs.submitting_async",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    from penstock.spelling import explain_name

    raise AttributeError(explain_name(__name__, name))
