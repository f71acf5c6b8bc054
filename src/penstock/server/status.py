"""Decide which HTTP status a request's ending has, and write it down as a problem (RFC 9457).

The only table from errors to numbers.  Every refusal and failure, whoever found it, has one shape: ``type``,
``title``, ``status``, ``detail``, ``request_id``, and where they apply ``path`` (where in the item), ``id`` (what to
look for in the log) and ``retry_after`` (seconds).  A traceback never leaves the log.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from penstock.codec.text import one_line
from penstock.config import ServerOptions
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidItem,
    NotReady,
    Overloaded,
    RequestError,
    StageFailed,
    WorkerLost,
)
from penstock.hosting.logs import report_fault
from penstock.server.application import HttpRequest, Response

PROBLEM_JSON = b"application/problem+json"
CLIENT_LEFT = 499
"""Never sent: it stands in logs and metrics where the client left before its answer."""

KINDS: dict[type[RequestError], tuple[str, str]] = {
    InvalidItem: ("invalid-item", "Invalid item"),
    Overloaded: ("overloaded", "Too much work"),
    DeadlineExceeded: ("deadline-exceeded", "Deadline exceeded"),
    StageFailed: ("stage-failed", "Stage failed"),
    WorkerLost: ("worker-lost", "Worker lost"),
    NotReady: ("not-ready", "Not ready"),
    Cancelled: ("cancelled", "Cancelled"),
    RequestError: ("failed", "Request failed"),
}
"""The last part of a problem's ``type`` and its ``title``.  Clients compare them: never rename one."""


def phrase(status: int) -> str:
    """The name of an HTTP status."""
    return "Client Closed Request" if status == CLIENT_LEFT else HTTPStatus(status).phrase


class Problems:
    """Makes the answer for every request that ends without a result."""

    def __init__(self, options: ServerOptions) -> None:
        self._numbers: dict[type[RequestError], int] = {
            InvalidItem: 422,
            Overloaded: options.overload_status,
            DeadlineExceeded: options.expired_status,  # 504 once a stage had begun
            StageFailed: 500,
            WorkerLost: 500,
            NotReady: 503,
            Cancelled: CLIENT_LEFT,
            RequestError: 500,
        }
        self.unstarted = "The service is starting."
        """The detail of a refusal while a service has no engine; the host that starts services may replace it."""

    def status(self, error: RequestError) -> int:
        """The HTTP status of an ending."""
        if isinstance(error, DeadlineExceeded) and error.ran:
            return 504
        return self._numbers[_kind(error)]

    def describe(self, error: RequestError, request_id: str, occurrence: str) -> dict[str, Any]:
        """The problem object of `error`, as it stands alone or inside a batch.

        `occurrence` names this one item of this request; the log carries the same name.
        """
        kind, title = KINDS[_kind(error)]
        status = self.status(error)
        problem: dict[str, Any] = {
            "type": f"urn:penstock:problem:{kind}",
            "title": title,
            "status": status,
            "detail": _detail(error),
            "request_id": request_id,
        }
        if isinstance(error, InvalidItem):
            problem["path"] = one_line(error.path)
        if isinstance(error, NotReady) and error.state:
            problem["state"] = error.state
        if status == 500:
            problem["id"] = occurrence
        if error.retryable:
            problem["retry_after"] = _retry_after(error)
        return problem

    def answer(self, error: RequestError, request: HttpRequest) -> Response:
        """The whole answer to a request of one item, or to one refused whole; writes a fault to the log."""
        request_id = request.id.decode()
        problem = self.describe(error, request_id, request_id)
        report_fault(error, (request_id,))
        return respond(problem)

    def refuse(
        self, status: int, detail: str, request_id: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> Response:
        """An answer to a request that HTTP itself refuses: no ending of an item, just a status and a reason."""
        problem: dict[str, Any] = {
            "type": "about:blank",
            "title": phrase(status),
            "status": status,
            "detail": one_line(detail),
            "request_id": request_id.decode(),
        }
        if status in (429, 503):
            problem["retry_after"] = 1
        return respond(problem, headers)


def respond(problem: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """`problem` as a response; 429 and 503 say when to try again."""
    status = problem["status"]
    if status in (429, 503) and "retry_after" in problem:
        headers = (*headers, (b"retry-after", b"%d" % problem["retry_after"]))
    return Response(status, PROBLEM_JSON, msgspec.json.encode(problem), headers)


def _kind(error: RequestError) -> type[RequestError]:
    """The row of the table that `error` belongs to: its own class or the nearest base that has one."""
    return next(cls for cls in type(error).__mro__ if cls in KINDS)


def _detail(error: RequestError) -> str:
    """The text for the client.  A stage's exception may name files, rows or secrets, so its text stays in the log."""
    if isinstance(error, StageFailed):
        return f"Stage {error.stage!r} raised an exception; the log of the server has it under this id."
    if isinstance(error, InvalidItem):
        return one_line(error.reason)
    return one_line(str(error))


def _retry_after(error: RequestError) -> int:
    return error.retry_after if isinstance(error, Overloaded) else 1
