"""Tell a submitter what became of a job that has ended: its result, or the error that says why there is none."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import msgspec

from penstock.codec.formats import Codec
from penstock.codec.media_types import content_codec
from penstock.errors import ConfigError, EndedWithoutResult, JobCancelled, JobExpired, JobFailed, JobNotFound
from penstock.jobs.job import Job, StoredResult
from penstock.jobs.rules.job_states import JobState

_WITHOUT_RESULT: Final[dict[JobState, type[EndedWithoutResult]]] = {
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
    if problem is None:
        raise kind(told, job_id=job.id)
    reason = f"{problem.type}: {problem.message}" if problem.type else problem.message
    raise kind(f"{told}: {reason}", job_id=job.id, type_name=problem.type, traceback=problem.traceback)


def no_such_job(job_id: str) -> JobNotFound:
    """The error for an id that the store does not know."""
    return JobNotFound(f"there is no job {job_id!r}: it was never submitted here, or is no longer kept")


def read_result(stored: StoredResult) -> Any:
    """The object that a result stands for; bytes where its media type is none that we read, or plain bytes.

    A result that lies elsewhere is its URL.

    Raises:
        ConfigError: it is an array, and numpy is not installed.
    """
    if stored.output is not None:
        return stored.output
    codec = content_codec(stored.content_type.encode())
    if codec is Codec.JSON:
        return msgspec.json.decode(stored.body)
    if codec is Codec.MSGPACK:
        return msgspec.msgpack.decode(stored.body)
    if codec is Codec.NPY:
        if importlib.util.find_spec("numpy") is None:
            raise ConfigError("the result is an array, and needs numpy: pip install 'penstock[numpy]'")
        from penstock.codec import numpy_

        return numpy_.read_npy(stored.body, Any)
    return stored.body
