"""The table of problem types and numbers has a row for every ending."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from penstock import errors
from penstock.config import ServerOptions
from penstock.errors import EndedWithoutResult, JobError, JobFailed, PenstockError, RequestError, StageFailed
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.loop_clock import LoopClock
from penstock.server.application import HttpRequest
from penstock.server.status import JOB_KINDS, KINDS, Problems

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]
ENDINGS = [kind for kind in ERRORS if issubclass(kind, RequestError) and kind not in JOB_KINDS]
ABOUT_JOBS = set(JOB_KINDS) | {JobError, EndedWithoutResult}


def test_every_ending_has_a_problem_type_of_its_own():
    assert set(KINDS) == set(ENDINGS)
    assert len({kind for kind, _ in KINDS.values()}) == len(ENDINGS)


@pytest.mark.parametrize("kind", ENDINGS)
def test_every_ending_has_a_number(kind):
    assert 400 <= Problems(ServerOptions(), FaultLog(LoopClock())).status(kind()) < 600


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


def test_a_dead_job_is_told_without_its_traceback_and_by_whose_fault():
    response, problem = job_problem(JobFailed("job a is dead: boom", job_id="a", traceback="row 7", cause="crash"))
    assert (response.status, problem["id"], problem["detail"]) == (500, "a", "job a is dead: boom")
    assert "row 7" not in response.body.decode()
    assert job_problem(JobFailed("no number", job_id="a", cause="input"))[0].status == 422


def test_what_else_ends_a_call_about_jobs_has_its_own_row_or_is_a_bad_request():
    assert job_problem(errors.ConfigError("limit is no number"))[0].status == 400
    assert job_problem(errors.Overloaded("too many"))[0].status == 503
    assert job_problem(errors.InvalidItem("not JSON"))[0].status == 422
    assert job_problem(StageFailed("x"))[0].status == 500
