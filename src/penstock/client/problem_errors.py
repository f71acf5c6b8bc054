"""Turn the answer of a server into the error that it tells of: the one that a call in process would have raised.

The `type` of a problem (RFC 9457) chooses the class, never its status: a server may be told to use others.  An answer
that is no problem is a `ServerError`, because something else than the server has written it.

Contract
--------
* Nothing in an answer is taken on trust: a field of the wrong kind is as one that is not there.
* An ending that may be retried, of a problem that does not say when, is of an item that has begun: it is not retryable.
* A type that is not known is its nearest base: `JobError` where its name begins with `job-`, else `RequestError`.
* Every error has `status`, `request_id`, and where the answer is a problem `problem`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from penstock.client.replies import NoReply, Reply
from penstock.client.retry_rules import item_seconds
from penstock.codec.text import cut_middle, one_line
from penstock.errors import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InputTooLarge,
    InvalidItem,
    JobCancelled,
    JobConflict,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    NotAcceptable,
    NotReady,
    Overloaded,
    PenstockError,
    QueueFull,
    QuotaExceeded,
    RequestError,
    ServerError,
    StageFailed,
    StoreUnavailable,
    TransferRejected,
    UnsupportedMediaType,
    WorkerLost,
)

PREFIX: Final = "urn:penstock:problem:"
BY_INPUT_STATUS: Final = 422
"""The status of a dead job whose input was at fault."""
_SHOWN_BYTES: Final = 300
"""Most of a page that is no problem that its error shows."""
_PROBLEM: Final = "application/problem+json"
_FULL: Final = frozenset({429, 503})

E = TypeVar("E", bound=PenstockError)

Problem: TypeAlias = Mapping[str, Any]
_decode = msgspec.json.Decoder().decode


def read_problem(reply: Reply) -> Problem | None:
    """The problem that an answer is; None where it is none."""
    if reply.headers.get("content-type", "").partition(";")[0].strip().lower() != _PROBLEM:
        return None
    try:
        problem = _decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return problem if isinstance(problem, dict) else None


def reply_error(reply: Reply | NoReply, request_id: str) -> PenstockError:
    """The error that an answer tells of, or the lack of one."""
    if isinstance(reply, NoReply):
        failed = ConnectionFailed(reply.detail, sent=reply.sent)
        failed.request_id = request_id
        return failed
    problem = read_problem(reply)
    known_as = reply.headers.get("x-request-id", request_id)
    if problem is None:
        error: PenstockError = ServerError(
            f"unexpected response (status {reply.status}, not from Penstock): {_shown(reply)}"
        )
    else:
        error = _error_of(problem, reply.status)
    return with_source(error, reply.status, known_as, problem)


def item_error(problem: Problem, request_id: str) -> PenstockError:
    """The error of one item of a client batch, whose outcome is `problem`."""
    status = _number(problem, "status", 500)
    error = _error_of(problem, status)
    return with_source(error, status, _text(problem, "request_id") or request_id, problem)


def unreadable(reply: Reply, request_id: str, why: str) -> ServerError:
    """The error of an answer that says it is a result, and cannot be read as one."""
    error = ServerError(f"invalid response (status {reply.status}): {why}: {_shown(reply)}")
    return with_source(error, reply.status, reply.headers.get("x-request-id", request_id))


def with_source(error: E, status: int | None, request_id: str, problem: Problem | None = None) -> E:
    """`error` with what a caller may want to know of the answer that it comes from."""
    error.status = status
    error.request_id = request_id
    error.problem = problem
    return error


def is_refusal(reply: Reply | NoReply, error: PenstockError) -> bool:
    """Whether `reply`, which is `error`, says that there was no room; what one tenant may have is no such thing.

    A 429 or a 503 that is no problem is one as well: proxies refuse so what they have no room for.
    """
    if isinstance(error, Overloaded):
        return error.reason != "quota"
    return isinstance(error, ServerError) and isinstance(reply, Reply) and reply.status in _FULL


def kind_of(problem: Problem) -> str:
    """The last part of a problem's type; "" where it is none of ours."""
    name = _text(problem, "type")
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""


def _error_of(problem: Problem, status: int) -> PenstockError:
    error = _MAKERS.get(kind_of(problem), _nearest)(problem, status)
    if isinstance(error, RequestError) and error.retryable and item_seconds(problem) is None:
        error.mark_started()
    return error


# -- one for each type ------------------------------------------------------------------------------------------------


def _invalid_item(problem: Problem, status: int) -> PenstockError:  # noqa: ARG001  # one signature for all
    return InvalidItem(_detail(problem), path=_text(problem, "path"))


def _overloaded(problem: Problem, status: int) -> PenstockError:  # noqa: ARG001
    told = _wait(problem)
    return Overloaded(_detail(problem), **told, reason=_text(problem, "reason") or "queue_full")


def _quota_exceeded(problem: Problem, status: int) -> PenstockError:  # noqa: ARG001
    return QuotaExceeded(_detail(problem), **_wait(problem))


def _deadline_exceeded(problem: Problem, status: int) -> PenstockError:  # noqa: ARG001
    # What has not begun is told when to come again.
    waited = item_seconds(problem) is not None
    error = DeadlineExceeded(_detail(problem), ran=not waited)
    if waited:
        told = _wait(problem)
        error.retry_after, error.retry_after_ms = told["retry_after"], told["retry_after_ms"]
    return error


def _not_ready(problem: Problem, status: int) -> PenstockError:  # noqa: ARG001
    return NotReady(_detail(problem), state=_text(problem, "state"), retry_after=_wait(problem)["retry_after"])


def _job_failed(problem: Problem, status: int) -> PenstockError:
    cause = "invalid_input" if status == BY_INPUT_STATUS else ""
    return JobFailed(_detail(problem), job_id=_text(problem, "id"), cause=cause)


def _job_ended(kind: type[JobCancelled | JobExpired]) -> Callable[[Problem, int], PenstockError]:
    return lambda problem, _: kind(_detail(problem), job_id=_text(problem, "id"))


def _plain(kind: type[PenstockError]) -> Callable[[Problem, int], PenstockError]:
    return lambda problem, _: kind(_detail(problem))


def _nearest(problem: Problem, status: int) -> PenstockError:
    kind = JobError if kind_of(problem).startswith("job-") else RequestError
    return kind(_detail(problem) or f"status {status}")


_MAKERS: Final[dict[str, Callable[[Problem, int], PenstockError]]] = {
    "invalid-item": _invalid_item,
    "overloaded": _overloaded,
    "quota-exceeded": _quota_exceeded,
    "deadline-exceeded": _deadline_exceeded,
    "stage-failed": lambda problem, _: StageFailed(_detail(problem)),
    "worker-lost": _plain(WorkerLost),
    "not-ready": _not_ready,
    "cancelled": _plain(Cancelled),
    "failed": _plain(RequestError),
    "format-not-taken": _plain(UnsupportedMediaType),
    "format-not-given": _plain(NotAcceptable),
    "job-not-found": _plain(JobNotFound),
    "job-conflict": _plain(JobConflict),
    "job-too-large": _plain(InputTooLarge),
    "queue-full": _plain(QueueFull),
    "job-failed": _job_failed,
    "job-cancelled": _job_ended(JobCancelled),
    "job-expired": _job_ended(JobExpired),
    "store-unavailable": _plain(StoreUnavailable),
    "place-refused": _plain(TransferRejected),
}
"""What makes the error of each type that a server may name."""

PROBLEM_TYPES: Final = frozenset(_MAKERS)


# -- fields -----------------------------------------------------------------------------------------------------------


def _text(problem: Problem, name: str) -> str:
    value = problem.get(name)
    return value if isinstance(value, str) else ""


def _detail(problem: Problem) -> str:
    return _text(problem, "detail") or _text(problem, "title")


def _number(problem: Problem, name: str, otherwise: int) -> int:
    value = problem.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _wait(problem: Problem) -> dict[str, int]:
    """When to come again, as `Overloaded` has it."""
    seconds = _number(problem, "retry_after", 1)
    return {"retry_after": seconds, "retry_after_ms": _number(problem, "retry_after_ms", 1000 * seconds)}


def _shown(reply: Reply) -> str:
    text = one_line(reply.body[: 4 * _SHOWN_BYTES].decode("utf-8", "replace").strip())
    return cut_middle(text, _SHOWN_BYTES) or "an empty body"
