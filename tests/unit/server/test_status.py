"""The table of problem types and numbers has a row for every ending."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from penstock import errors
from penstock.config import ServerOptions
from penstock.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidItem,
    JobError,
    JobFailed,
    JobNotSucceeded,
    NotReady,
    Overloaded,
    PenstockError,
    QuotaExceeded,
    RequestError,
    ServerError,
    StageFailed,
    WorkerLost,
)
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.loop_clock import LoopClock
from penstock.server.application import HttpRequest
from penstock.server.status import JOB_KINDS, KINDS, Problems

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]
OF_CLIENTS = {ConnectionFailed, ServerError}
"""What a client raises, and no server."""
ENDINGS = [kind for kind in ERRORS if issubclass(kind, RequestError) and kind not in {*JOB_KINDS, *OF_CLIENTS}]
ABOUT_JOBS = set(JOB_KINDS) | {JobError, JobNotSucceeded}


def test_every_ending_has_a_problem_type_of_its_own():
    assert set(KINDS) == set(ENDINGS)
    assert len({kind for kind, _ in KINDS.values()}) == len(ENDINGS)


@pytest.mark.parametrize("kind", ENDINGS)
def test_every_ending_has_a_number(kind):
    assert 400 <= Problems(ServerOptions(), FaultLog(LoopClock())).status(kind()) < 600


def answer(error, **options):
    """The answer to a call of one item that ended with `error`, its headers, and its problem."""
    request = HttpRequest("POST", b"/predict", b"", {}, 0.0)
    request.id = b"r1"
    response = Problems(ServerOptions(**options), FaultLog(LoopClock())).answer(error, request)
    return response.status, dict(response.headers), msgspec.json.decode(response.body)


def begun(error):
    """`error` of an item that a worker was at work on."""
    error.mark_started()
    return error


@pytest.mark.parametrize("status", [503, 429, 400])
def test_a_full_service_says_why_and_when_whatever_its_status(status):
    error = Overloaded(retry_after=3, retry_after_ms=2345, reason="memory_budget")
    found, headers, problem = answer(error, overload_status=status)
    assert (found, headers[b"retry-after"], headers[b"retry-after-ms"]) == (status, b"3", b"2345")
    assert headers[b"x-should-retry"] == b"true"
    told = {name: problem[name] for name in ("status", "reason", "retry_after", "retry_after_ms")}
    assert told == {"status": status, "reason": "memory_budget", "retry_after": 3, "retry_after_ms": 2345}
    assert "id" not in problem


@pytest.mark.parametrize("status", [503, 408, 500])
def test_an_item_that_waited_for_too_long_may_be_sent_again_whatever_its_status(status):
    found, headers, problem = answer(DeadlineExceeded(), queue_timeout_status=status, run_timeout_status=500)
    assert (found, headers[b"retry-after"], headers[b"retry-after-ms"]) == (status, b"1", b"1000")
    assert headers[b"x-should-retry"] == b"true"
    assert (problem["retry_after"], problem["retry_after_ms"]) == (1, 1000)
    assert "id" not in problem, "it is no fault that the log has"


@pytest.mark.parametrize("status", [504, 408, 500])
def test_an_item_that_ran_for_too_long_is_not_to_be_sent_again_whatever_its_status(status):
    found, headers, problem = answer(DeadlineExceeded(ran=True), queue_timeout_status=500, run_timeout_status=status)
    assert (found, headers) == (status, {b"x-should-retry": b"false"})
    assert not {"retry_after", "retry_after_ms", "id"} & set(problem)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (Overloaded(), b"true"),
        (begun(Overloaded()), b"false"),
        (QuotaExceeded(), b"true"),
        (NotReady(), b"true"),
        (begun(NotReady()), b"false"),
        (DeadlineExceeded(), b"true"),
        (begun(DeadlineExceeded()), b"false"),
        (InvalidItem(), b"false"),
        (StageFailed(), b"false"),
        (WorkerLost(), b"false"),
        (RequestError(), b"false"),
    ],
)
def test_to_try_again_is_advised_where_it_may_help_and_nothing_was_done_yet(error, wanted):
    _, headers, problem = answer(error)
    assert headers[b"x-should-retry"] == wanted
    assert (b"retry-after" in headers) is (b"retry-after-ms" in headers) is ("retry_after" in problem)
    assert ("retry_after" in problem) is error.retryable is (wanted == b"true")


@pytest.mark.parametrize(
    ("error", "status"), [(NotReady(), 500), (Overloaded(), 500), (QuotaExceeded(), 500), (DeadlineExceeded(), 504)]
)
def test_no_item_that_has_begun_is_told_503_which_proxies_send_again(error, status):
    assert answer(begun(error))[0] == status


def test_a_service_that_is_not_ready_says_when_in_milliseconds_too():
    _, headers, problem = answer(NotReady(retry_after=30))
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"30", b"30000")
    assert (problem["retry_after"], problem["retry_after_ms"]) == (30, 30_000)


def test_a_quota_is_429_whatever_the_status_of_overload_is():
    status, headers, problem = answer(QuotaExceeded(retry_after=2, retry_after_ms=1500), overload_status=503)
    assert (status, headers[b"retry-after-ms"], problem["reason"]) == (429, b"1500", "quota")
    assert problem["type"] == "urn:penstock:problem:quota-exceeded"


@pytest.mark.parametrize("kind", [StageFailed, WorkerLost, RequestError])
def test_a_fault_has_the_id_that_the_log_has(kind):
    status, _, problem = answer(kind())
    assert (status, problem["id"]) == (500, "r1")


@pytest.mark.parametrize(("status", "wanted"), [(404, b"false"), (413, b"false"), (503, b"true"), (429, b"true")])
def test_what_http_itself_refuses_is_worth_another_try_only_where_it_may_pass(status, wanted):
    response = Problems(ServerOptions(), FaultLog(LoopClock())).refuse(status, "why", b"r1", ((b"allow", b"GET"),))
    headers, problem = dict(response.headers), msgspec.json.decode(response.body)
    assert (headers[b"x-should-retry"], headers[b"allow"]) == (wanted, b"GET")
    told = (headers.get(b"retry-after"), headers.get(b"retry-after-ms"), problem.get("retry_after_ms"))
    assert told == ((b"1", b"1000", 1000) if wanted == b"true" else (None, None, None))


def job_problem(error):
    request = HttpRequest("GET", b"/jobs/a", b"", {}, 0.0)
    request.id = b"r1"
    response = Problems(ServerOptions(), FaultLog(LoopClock())).job_answer(error, request)
    return response, msgspec.json.decode(response.body)


def test_every_error_about_jobs_has_a_problem_type_of_its_own():
    assert {kind for kind in ERRORS if issubclass(kind, JobError)} <= ABOUT_JOBS
    types = [kind for kind, *_ in (*KINDS.values(), *JOB_KINDS.values())]
    assert len(set(types)) == len(types)


@pytest.mark.parametrize("kind", JOB_KINDS)
def test_an_error_about_jobs_is_a_problem(kind):
    response, problem = job_problem(kind("because"))
    assert (response.status, problem["status"]) == (JOB_KINDS[kind][2], JOB_KINDS[kind][2])
    assert (problem["type"], problem["detail"]) == (f"urn:penstock:problem:{JOB_KINDS[kind][0]}", "because")
    assert ((b"retry-after", b"1") in response.headers) is kind.retryable
    assert ((b"retry-after-ms", b"1000") in response.headers) is kind.retryable
    assert (b"x-should-retry", b"true" if kind.retryable else b"false") in response.headers


def test_a_dead_job_is_told_without_its_traceback_and_by_whose_fault():
    response, problem = job_problem(
        JobFailed("job a is dead: boom", job_id="a", traceback="row 7", cause="worker_lost")
    )
    assert (response.status, problem["id"], problem["detail"]) == (500, "a", "job a is dead: boom")
    assert "row 7" not in response.body.decode()
    assert job_problem(JobFailed("no number", job_id="a", cause="invalid_input"))[0].status == 422


def test_what_else_ends_a_call_about_jobs_has_its_own_row_or_is_a_bad_request():
    assert job_problem(errors.ConfigError("limit is no number"))[0].status == 400
    assert job_problem(errors.Overloaded("too many"))[0].status == 503
    assert job_problem(errors.InvalidItem("not JSON"))[0].status == 422
    assert job_problem(StageFailed("x"))[0].status == 500
