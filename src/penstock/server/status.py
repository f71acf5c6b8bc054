"""Decide which HTTP status an error has, and describe the error as a problem (RFC 9457).

This is the only table from errors to numbers.  Every refusal and failure has one shape: ``type``, ``title``,
``status``, ``detail``, ``request_id``, and where they apply ``path`` (where in the item), ``id`` (what to look for in
the log), ``reason`` (why there was no room) and ``retry_after`` with ``retry_after_ms`` (when to try again).  A
traceback is written to the log only.

Contract
--------
* Whatever may be retried says when, in the problem and in `Retry-After` and `retry-after-ms`, whatever its status.
  What has begun when its deadline passes says nothing: to send it again as it was is to do that again.
* 503 says that nothing was done: proxies send such a request again, whatever its headers say.  What has begun ends as
  504 by its deadline, and as 500 where the service stops, a stage fails or results take too many bytes.
* Every problem answer has `x-should-retry`.  It is ``true`` exactly where the error is retryable and the item never
  ran; with 504 it is ``false``.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from penstock.codec.formats import Codec
from penstock.codec.media_types import answer_codec, too_long
from penstock.codec.text import one_line
from penstock.config import ServerOptions
from penstock.core.payload import join_payload
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    InputTooLarge,
    InvalidItem,
    JobCancelled,
    JobConflict,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobNotSucceeded,
    NotAcceptable,
    NotReady,
    Overloaded,
    PenstockError,
    QueueFull,
    QuotaExceeded,
    RequestError,
    StageFailed,
    StoreUnavailable,
    TransferRejected,
    UnsupportedMediaType,
    WorkerLost,
)
from penstock.hosting.fault_log import FaultLog
from penstock.server.application import HttpRequest, Response

PROBLEM_JSON = b"application/problem+json"
_PROBLEM_CODECS = (Codec.JSON, Codec.MSGPACK)
"""The formats of problems, the usual one first."""
CLIENT_LEFT = 499
"""The status in logs and metrics of a request whose client left before its answer; it is never sent."""

KINDS: dict[type[RequestError], tuple[str, str]] = {
    InvalidItem: ("invalid-item", "Invalid item"),
    Overloaded: ("overloaded", "Service full"),
    QuotaExceeded: ("quota-exceeded", "Quota exceeded"),
    DeadlineExceeded: ("deadline-exceeded", "Deadline exceeded"),
    StageFailed: ("stage-failed", "Stage failed"),
    WorkerLost: ("worker-lost", "Worker lost"),
    NotReady: ("not-ready", "Not ready"),
    Cancelled: ("cancelled", "Cancelled"),
    RequestError: ("failed", "Request failed"),
}
"""The last part of a problem's ``type`` and its ``title``.  Clients compare them: never rename one."""


JOB_KINDS: dict[type[PenstockError], tuple[str, str, int]] = {
    UnsupportedMediaType: ("format-not-taken", "Format not supported", 415),
    NotAcceptable: ("format-not-given", "Format not acceptable", 406),
    JobNotFound: ("job-not-found", "No such job", 404),
    JobConflict: ("job-conflict", "Job conflict", 409),
    InputTooLarge: ("job-too-large", "Input too large", 413),
    QueueFull: ("queue-full", "Queue full", 429),
    JobFailed: ("job-failed", "Job failed", 500),  # 422 where its input was at fault
    JobCancelled: ("job-cancelled", "Job cancelled", 410),
    JobExpired: ("job-expired", "Job expired", 410),
    StoreUnavailable: ("store-unavailable", "Queue unavailable", 503),
    TransferRejected: ("place-refused", "Location not allowed", 422),
}
"""The same of what becomes of calls about jobs, and the status of each."""
BY_INPUT = "invalid_input"
"""The cause of a dead job whose input was at fault."""

_FAULTS = (StageFailed, WorkerLost)
"""What the log has under the problem's ``id``, besides what is of no class of its own."""
_SOON_SECONDS = 1
_SHOULD_RETRY = (b"x-should-retry", b"true")
_SHOULD_NOT_RETRY = (b"x-should-retry", b"false")


def phrase(status: int) -> str:
    """The name of an HTTP status."""
    return "Client Closed Request" if status == CLIENT_LEFT else HTTPStatus(status).phrase


class Problems:
    """Makes the answer for every request that ends without a result."""

    def __init__(self, options: ServerOptions, faults: FaultLog) -> None:
        self.faults = faults
        """Where faults are written."""
        self._numbers: dict[type[RequestError], int] = {
            InvalidItem: 422,
            Overloaded: options.overload_status,
            QuotaExceeded: 429,
            DeadlineExceeded: options.queue_timeout_status,
            StageFailed: 500,
            WorkerLost: 500,
            NotReady: 503,
            Cancelled: CLIENT_LEFT,
            RequestError: 500,
        }
        self._late_status = options.run_timeout_status
        self.unstarted = "The service is starting."
        """The detail of a refusal while a service has no engine; the host that starts services may replace it."""

    def status(self, error: RequestError) -> int:
        """The HTTP status of an error."""
        if error.started and isinstance(error, DeadlineExceeded):
            return self._late_status
        if error.started and isinstance(error, (NotReady, Overloaded)):
            return self._numbers[RequestError]
        return self._numbers[_kind(error)]

    def describe(self, error: RequestError, request_id: str, occurrence: str, *, logged: bool) -> dict[str, Any]:
        """The problem object of `error`, for an answer of its own or for an outcome of a client batch.

        `occurrence` names this item of this request; `logged` says that a line of the log has the same name.
        """
        row = _kind(error)
        kind, title = KINDS[row]
        status = self.status(error)
        problem: dict[str, Any] = {
            "type": f"urn:penstock:problem:{kind}",
            "title": title,
            "status": status,
            "detail": self._detail(error, logged=logged),
            "request_id": request_id,
        }
        if isinstance(error, InvalidItem):
            problem["path"] = one_line(error.path)
        if isinstance(error, NotReady) and error.state:
            problem["state"] = error.state
        if isinstance(error, Overloaded):
            problem["reason"] = error.reason
        if isinstance(error, _FAULTS) or row is RequestError:
            problem["id"] = occurrence
        if error.retryable:
            _say_when(problem, error)
        return problem

    def _detail(self, error: RequestError, *, logged: bool) -> str:
        """The text for the client.  A stage's exception may name files or secrets, so its text stays in the log."""
        if isinstance(error, StageFailed):
            told = f"Stage {error.stage!r} {error.action}"
            if logged:
                return f"{told}; the log of the server has the details under this id."
            if self.faults.writes:
                return f"{told}; the log of the server counts it with others of the same kind."
            return f"{told}."
        if isinstance(error, InvalidItem):
            return one_line(error.reason)
        return one_line(str(error))

    def answer(self, error: RequestError, request: HttpRequest) -> Response:
        """The answer to a request of one item, or to a client batch that is refused; writes a fault to the log."""
        request_id = request.id.decode()
        logged = self.faults.report(error, (request_id,)) > 0
        problem = self.describe(error, request_id, request_id, logged=logged)
        return respond(problem, retry=error.retryable)

    def job_answer(self, error: PenstockError, request: HttpRequest) -> Response:
        """The answer to a call about jobs that ended with `error`; one that is in no table is a bad parameter."""
        row = next((JOB_KINDS[cls] for cls in type(error).__mro__ if cls in JOB_KINDS), None)
        if row is None:
            if isinstance(error, RequestError):
                return self.answer(error, request)
            return self.refuse(400, str(error), request.id)
        kind, title, status = row
        if isinstance(error, JobFailed) and error.cause == BY_INPUT:
            status = 422
        problem: dict[str, Any] = {
            "type": f"urn:penstock:problem:{kind}",
            "title": title,
            "status": status,
            "detail": one_line(str(error.args[0])),  # without a traceback, which the job has
            "request_id": request.id.decode(),
        }
        if isinstance(error, JobNotSucceeded):
            problem["id"] = error.job_id
        if error.retryable:
            _say_when(problem, error)
        return respond(problem, retry=error.retryable)

    def chaos(self, request: HttpRequest) -> Response:
        """The answer to a call that fails on purpose."""
        problem: dict[str, Any] = {
            "type": "urn:penstock:problem:chaos",
            "title": "Chaos",
            "status": 500,
            "detail": "This fault was caused on purpose: the server was started with chaos.",
            "request_id": request.id.decode(),
        }
        return respond(problem, retry=False)

    def refuse(
        self, status: int, detail: str, request_id: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> Response:
        """An answer to a request that HTTP itself refuses: a status and a reason, and no error of an item."""
        problem: dict[str, Any] = {
            "type": "about:blank",
            "title": phrase(status),
            "status": status,
            "detail": one_line(detail),
            "request_id": request_id.decode(),
        }
        retry = status in (429, 503)
        if retry:
            _say_when(problem)
        return respond(problem, headers, retry=retry)


def respond(problem: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = (), *, retry: bool) -> Response:
    """`problem` as a response; what says when to try again says it in the headers too.  `retry`: whether to do it."""
    status = problem["status"]
    if "retry_after" in problem:
        headers = (
            *headers,
            (b"retry-after", b"%d" % problem["retry_after"]),
            (b"retry-after-ms", b"%d" % problem["retry_after_ms"]),
        )
    headers = (*headers, _SHOULD_RETRY if retry and status != 504 else _SHOULD_NOT_RETRY)
    return Response(status, PROBLEM_JSON, msgspec.json.encode(problem), headers)


def names_messagepack(accept: bytes | None) -> bool:
    """Whether a client with this Accept may prefer problems in MessagePack: see `in_messagepack`."""
    return accept is not None and b"msgpack" in accept.lower()


def in_messagepack(response: Response, accept: bytes) -> Response:
    """`response`, if it is a problem in MessagePack where the client's Accept prefers that, by the name that it used.

    A client that names `PROBLEM_JSON` gets that.
    """
    if response.content_type != PROBLEM_JSON or too_long(accept) or PROBLEM_JSON in accept.lower():
        return response
    chosen = answer_codec(accept, _PROBLEM_CODECS)
    if chosen is None or chosen[0] is not Codec.MSGPACK:
        return response
    problem = msgspec.json.decode(join_payload(response.body))
    return Response(response.status, chosen[1], msgspec.msgpack.encode(problem), response.headers)


def _say_when(problem: dict[str, Any], error: PenstockError | None = None) -> None:
    """Let `problem` say when to try again: as `error` does, else soon."""
    seconds = error.retry_after if isinstance(error, (Overloaded, DeadlineExceeded, NotReady)) else _SOON_SECONDS
    problem["retry_after"] = seconds
    exactly = error.retry_after_ms if isinstance(error, (Overloaded, DeadlineExceeded)) else 1000 * seconds
    problem["retry_after_ms"] = exactly


def _kind(error: RequestError) -> type[RequestError]:
    """The row of the table that `error` belongs to: its own class or the nearest base that has one."""
    return next(cls for cls in type(error).__mro__ if cls in KINDS)
