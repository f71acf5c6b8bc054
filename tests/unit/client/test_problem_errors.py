"""A problem of the server becomes the error that it was made of."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from penstock import errors
from penstock.client.problem_errors import (
    PROBLEM_TYPES,
    is_refusal,
    item_error,
    read_problem,
    reply_error,
    unreadable,
)
from penstock.client.replies import NoReply, Reply
from penstock.config import ServerOptions
from penstock.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidItem,
    JobError,
    JobFailed,
    NotReady,
    Overloaded,
    QuotaExceeded,
    RequestError,
    ServerError,
    StageFailed,
    TransferRejected,
    WorkerLost,
)
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.loop_clock import LoopClock
from penstock.server.application import HttpRequest
from penstock.server.status import JOB_KINDS, KINDS, Problems
from rows import each

OPTIONS = ServerOptions(overload_status=429, queue_timeout_status=408, run_timeout_status=500)
PROBLEMS = Problems(OPTIONS, FaultLog(LoopClock()))


def answered(error, *, job=False):
    """What a client gets of a server that answers with `error`."""
    request = HttpRequest("POST", b"/predict", b"", {}, 0.0)
    request.id = b"mine"
    response = PROBLEMS.job_answer(error, request) if job else PROBLEMS.answer(error, request)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return Reply(response.status, {"content-type": response.content_type.decode(), **headers}, bytes(response.body))


def begun(error):
    error.mark_started()
    return error


def problem(**members):
    return Reply(503, {"content-type": "application/problem+json"}, msgspec.json.encode(members))


def test_every_type_that_a_server_names_is_known():
    named = {kind for kind, _ in KINDS.values()} | {kind for kind, *_ in JOB_KINDS.values()}
    assert named == PROBLEM_TYPES


@each(
    "error",
    [
        InvalidItem("expected `int`", path="$.x"),
        Overloaded("full", retry_after=2, retry_after_ms=1200, reason="deadline"),
        QuotaExceeded("none left", retry_after=3, retry_after_ms=2500),
        DeadlineExceeded("late"),
        DeadlineExceeded("late", ran=True),
        StageFailed("boom", stage="embed", type_name="builtins.ValueError"),
        WorkerLost("died"),
        NotReady("starting", state="starting", retry_after=4),
        begun(NotReady("stopped", state="draining")),
        begun(Overloaded("gathered", reason="memory_budget")),
        errors.Cancelled(),
        RequestError("something"),
    ],
)
def test_an_ending_crosses_http(error):
    got = reply_error(answered(error), "ours")
    assert type(got) is type(error)
    for name in ("path", "reason", "retry_after", "retry_after_ms", "ran", "state", "begun", "retryable"):
        assert getattr(got, name, None) == getattr(error, name, None), name
    assert (got.status, got.request_id) == (PROBLEMS.status(error), "ours")
    assert got.problem["title"]


@pytest.mark.parametrize("kind", JOB_KINDS)
def test_an_error_about_jobs_crosses_http(kind):
    got = reply_error(answered(kind("words"), job=True), "ours")
    assert (type(got), got.args[0]) == (kind, "words")


@pytest.mark.parametrize(("cause", "told"), [("invalid_input", "invalid_input"), ("worker_lost", "")])
def test_a_dead_job_is_told_with_its_id_and_whether_its_input_was_at_fault(cause, told):
    got = reply_error(answered(JobFailed("dead", job_id="j7", cause=cause), job=True), "ours")
    assert (type(got), got.job_id, got.cause) == (JobFailed, "j7", told)


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("urn:penstock:problem:of-tomorrow", RequestError),
        ("urn:penstock:problem:job-of-tomorrow", JobError),
        ("urn:penstock:problem:place-refused", TransferRejected),
        ("https://example.com/job-failed", RequestError),
        ("about:blank", RequestError),
        (7, RequestError),
    ],
)
def test_an_unknown_type_is_its_nearest_base(type_, kind):
    got = reply_error(problem(type=type_, title="A title"), "ours")
    assert (type(got), got.args[0], got.problem["type"]) == (kind, "A title", type_)
    assert str(reply_error(problem(type=type_), "ours")) == "status 503" or kind is TransferRejected


def test_members_of_the_wrong_kind_are_as_none():
    wrong = {"detail": 1, "title": [], "reason": {}, "retry_after": "2", "retry_after_ms": -1, "path": 3}
    got = reply_error(problem(type="urn:penstock:problem:overloaded", **wrong), "ours")
    assert (got.args[0], got.reason, got.retry_after, got.retry_after_ms) == (
        Overloaded.default_message(), "queue_full", 1, 1000,
    )  # fmt: skip
    assert reply_error(problem(type="urn:penstock:problem:invalid-item", path=3), "ours").path == ""
    assert reply_error(problem(type="urn:penstock:problem:not-ready", retry_after=True), "ours").retry_after == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(502, {"content-type": "text/html"}, b"<h1>Bad\ngateway</h1>"),
        Reply(502, {"content-type": "application/json"}, b'{"type": "urn:penstock:problem:failed"}'),
        Reply(502, {"content-type": "application/problem+json"}, b"{"),
        Reply(502, {"content-type": "application/problem+json"}, b"[1]"),
        Reply(502, {"content-type": "application/problem+json"}, b'"\xff"'),
        Reply(502, {"content-type": "application/problem+json"}, b"[" * 100_000),
        Reply(502, {}, b""),
    ],
)
def test_what_is_no_problem_is_a_server_error_on_one_line_and_not_too_long(reply):
    assert read_problem(reply) is None
    got = reply_error(reply, "ours")
    assert (type(got), got.status, got.problem, got.request_id) == (ServerError, 502, None, "ours")
    assert "\n" not in str(got)
    assert len(str(got)) < 400


def test_the_id_that_the_server_has_used_is_told():
    reply = Reply(502, {"x-request-id": "theirs"}, b"")
    assert reply_error(reply, "ours").request_id == unreadable(reply, "ours", "why").request_id == "theirs"


@pytest.mark.parametrize("sent", [True, False])
def test_no_answer_is_a_failed_connection(sent):
    got = reply_error(NoReply(sent, "reset"), "ours")
    assert (type(got), got.args, got.sent) == (ConnectionFailed, ("reset",), sent)
    assert (got.status, got.request_id, got.problem) == (None, "ours", None)


def test_an_item_has_its_own_status_and_request_id():
    got = item_error({"type": "urn:penstock:problem:worker-lost", "status": 500, "request_id": "theirs"}, "ours")
    assert (type(got), got.status, got.request_id) == (WorkerLost, 500, "theirs")
    assert item_error({}, "ours").request_id == "ours"
    assert (item_error({}, "ours").status, type(item_error({}, "ours"))) == (500, RequestError)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Overloaded(reason="queue_full"), True),
        (Overloaded(reason="preempted"), True),
        (Overloaded(reason="quota"), False),
        (QuotaExceeded(), False),
        (NotReady(), False),
        (DeadlineExceeded(), False),
    ],
)
def test_a_refusal_is_a_lack_of_room(error, refused):
    reply = answered(error)
    assert is_refusal(reply, reply_error(reply, "")) is refused


@pytest.mark.parametrize(("status", "refused"), [(503, True), (429, True), (502, False), (200, False)])
def test_a_proxys_page_is_a_refusal_by_its_status(status, refused):
    reply = Reply(status, {}, b"page")
    assert is_refusal(reply, reply_error(reply, "")) is refused


def test_a_lost_connection_is_no_refusal():
    lost = NoReply(sent=True, detail="")
    assert not is_refusal(lost, reply_error(lost, ""))


def test_the_text_of_a_stage_that_failed_is_what_the_server_says():
    got = reply_error(answered(StageFailed("secret", stage="embed")), "ours")
    assert str(got).startswith("Stage 'embed' ")


def test_every_error_of_the_tree_can_say_where_it_comes_from():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.PenstockError)]
    assert all((kind().status, kind().request_id, kind().problem) == (None, "", None) for kind in kinds)
