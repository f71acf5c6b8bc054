"""Make the calls about jobs, and read what comes of them.  Nothing here does I/O.

Each of them may be made twice without harm: a job is submitted with a key, under which a second one is the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.call_bodies import CallBody, UnreadableBody, read_result_body
from penstock.client.client_options import is_field_value
from penstock.client.making_calls import CallMaker
from penstock.client.replies import Reply
from penstock.client.single_call import SingleCall
from penstock.errors import ConfigError, JobNotFound
from penstock.jobs.inputs import encode_job_input
from penstock.jobs.job import Job

_JOB_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_USUAL: Final[dict[str, Any]] = {"priority": 0, "delay": 0, "service": ""}
_decode_job = msgspec.json.Decoder(Job).decode


class Ended(NamedTuple):
    """A job that has succeeded, and its result as it came."""

    result: Any


class JobCallMaker:
    """Makes the calls about jobs of one client."""

    def __init__(self, maker: CallMaker, timeout: float) -> None:
        self._maker = maker
        self._timeout = timeout

    def submit(self, given: Any, options: Mapping[str, Any], key: str) -> SingleCall[Job]:
        """A job of the input `given`, msgspec.UNSET where the options name its URL; `key` makes it the same job."""
        if not isinstance(key, str):
            raise ConfigError(f"key must be a str, got {key!r}")
        content_type = options.get("content_type")
        if content_type is not None and not is_field_value(content_type):
            raise ConfigError(f"content_type must be a media type such as application/json, got {content_type!r}")
        body = None
        if given is not msgspec.UNSET:
            body = CallBody(*encode_job_input(given, content_type)[:2])
        query = {name: _parameter(value) for name, value in options.items() if name != "content_type"}
        headers = {}
        if is_field_value(key):
            headers["idempotency-key"] = key
        else:
            query["key"] = key  # no header carries it as it is
        if body is None and content_type is not None:
            headers["content-type"] = content_type
        path = f"/jobs?{urlencode(query, quote_via=quote)}" if query else "/jobs"
        return SingleCall(self._maker.head("POST", path, harmless=True, headers=headers), body, _read_job)

    def get(self, job: Job | str) -> SingleCall[Job]:
        """The job as it is now."""
        return SingleCall(self._maker.head("GET", f"/jobs/{id_of(job)}", harmless=True), None, _read_job)

    def cancel(self, job: Job | str) -> SingleCall[Job]:
        """End a job."""
        return SingleCall(self._maker.head("DELETE", f"/jobs/{id_of(job)}", harmless=True), None, _read_job)

    def ask(self, job: Job | str, wait: float) -> SingleCall[Ended | Job]:
        """The result once the job has ended, or the job as it is after `wait` seconds."""
        path = f"/jobs/{id_of(job)}/result?wait={wait:.3f}"
        seconds = wait + self._timeout
        head = self._maker.head("GET", path, harmless=True, has_result=True, flow_controlled=False, timeout=seconds)
        return SingleCall(head, None, _read_end)


def id_of(job: object) -> str:
    """The id of a job that is given itself or by its id."""
    if isinstance(job, Job):
        return job.id
    if not isinstance(job, str) or not job:
        raise ConfigError(f"expected a Job or its id, got {job!r}")
    if _JOB_ID.fullmatch(job) is None or job in {".", ".."}:  # and no path has it
        raise JobNotFound(f"job {job!r} does not exist")
    return job


def may_lie_elsewhere(result: object) -> bool:
    """Whether a result looks like the place of an output, which a job may also give as its result."""
    return isinstance(result, dict) and list(result) == ["output_url"] and isinstance(result["output_url"], str)


def _parameter(value: Any) -> str:
    return format(value, ".17g") if isinstance(value, float) else str(value)


def _read_job(reply: Reply) -> Job:
    try:
        return _decode_job(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableBody(f"an invalid job ({error})") from None


def _read_end(reply: Reply) -> Ended | Job:
    if reply.status == 202:
        return _read_job(reply)
    return Ended(read_result_body(reply.body, reply.headers.get("content-type", ""), otherwise_bytes=True))


def submitted_options(**given: Any) -> dict[str, Any]:
    """Those of the options of a job that are not what a job has without them."""
    return {name: value for name, value in given.items() if value != _USUAL.get(name)}
