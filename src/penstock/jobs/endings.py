"""Tell a submitter what became of a job that has ended: its result, or the error that says why there is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.codec.formats import Codec
from penstock.codec.media_types import content_codec
from penstock.errors import ConfigError, JobCancelled, JobExpired, JobFailed, JobNotFound, JobNotSucceeded
from penstock.jobs.job import Job, StoredResult
from penstock.jobs.rules.attempts import MOST_ATTEMPTS
from penstock.jobs.rules.job_states import JobState

_WITHOUT_RESULT: Final[dict[JobState, type[JobNotSucceeded]]] = {
    JobState.DEAD: JobFailed,
    JobState.CANCELLED: JobCancelled,
    JobState.EXPIRED: JobExpired,
}


def refuse_without_result(job: Job) -> None:
    """Do nothing, or raise the error of a job that has ended without a result.

    Raises:
        JobFailed: it is dead.
        JobCancelled: it was cancelled.
        JobExpired: its deadline passed first.
    """
    kind = _WITHOUT_RESULT.get(job.state)
    if kind is None:
        return
    problem = job.error
    told = f"job {job.id} is {job.state.value}"
    details: dict[str, Any] = {"job_id": job.id}
    if problem is not None:
        told += f": {problem.type}: {problem.message}" if problem.type else f": {problem.message}"
        details |= {"type_name": problem.type, "traceback": problem.traceback}
    if kind is JobFailed:
        details["cause"] = cause_of_death(job.failures)
    raise kind(told, **details)


def cause_of_death(attempts: Mapping[str, int]) -> str:
    """The cause whose last allowed attempt is among `attempts`, by count; "" where none is."""
    return next((cause for cause, most in MOST_ATTEMPTS.items() if attempts.get(cause, 0) >= most), "")


def no_such_job(job_id: str) -> JobNotFound:
    """The error for an id that the store does not know."""
    return JobNotFound(f"there is no job {job_id!r}: it was not submitted to this queue, or was purged")


def read_result(stored: StoredResult) -> Any:
    """The object that a result stands for; bytes where its media type is none that we read, or plain bytes.

    A result that lies elsewhere is its URL.

    Raises:
        ConfigError: it is an array, and numpy is not installed.
    """
    if stored.output_url is not None:
        return stored.output_url
    codec = content_codec(stored.content_type.encode())
    if codec is Codec.JSON:
        return msgspec.json.decode(stored.body)
    if codec is Codec.MSGPACK:
        return msgspec.msgpack.decode(stored.body)
    if codec is Codec.NPY:
        if importlib.util.find_spec("numpy") is None:
            raise ConfigError("the result is an array and needs numpy: pip install 'penstock[numpy]'")
        from penstock.codec import numpy_

        return numpy_.read_npy(stored.body, Any)
    return stored.body
