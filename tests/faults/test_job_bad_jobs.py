"""Jobs that kill, hang or confuse the model: they end as dead with their reason, and their mates succeed."""

from __future__ import annotations

import signal

import pytest
from worked import queue_in

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import NewJob


@pytest.fixture
def queue(tmp_path):
    with queue_in(tmp_path, f"sqlite:///{tmp_path}/q.db") as queue:
        yield queue


def work_off(queue, *flags, **more):
    """Have one consumer do everything, whatever that costs."""
    queue.work("--until-empty", *flags, **more).until_empty()
    queue.check()


def mates(queue):
    return [queue.submit(f"mate-{n}", 2 * n, x=n) for n in range(7)]


@pytest.mark.parametrize(
    ("bad", "flags", "attempts", "told"),
    [
        ({"fault": "raise"}, (), {"application": 3}, "a bad job"),
        ({"in_batch": "raises"}, (), {"application": 3}, "a bad job in the batch"),
        ({"fault": "segfault"}, (), {"worker_lost": 2}, "SIGSEGV|worker"),
        ({"fault": "die"}, (), {"worker_lost": 2}, "worker"),
        ({"fault": "hang"}, ("--run-timeout", "0.5"), {"worker_lost": 2}, "worker"),
        ({"fault": "unwritable"}, (), {"application": 3}, ""),
        ({"fault": "nan"}, (), {"application": 3}, "nan"),
    ],
    ids=["raises", "raises in a batch", "segfault", "killed", "hangs", "no result", "NaN"],
)
def test_a_bad_job_dies_alone_of_its_own_cause(queue, bad, flags, attempts, told):
    queue.submit("mate-before", 2, x=1)
    queue.submit("bad", x=0, **bad)
    good = mates(queue)
    work_off(queue, *flags)
    job = queue.job("bad")
    assert (job.state, {cause: job.failures[cause] for cause in attempts}) == (JobState.DEAD, attempts)
    assert job.error is not None
    assert any(word in f"{job.error.type} {job.error.message}" for word in told.split("|")), job.error
    assert {queue.job(each).state for each in good} == {JobState.SUCCEEDED}
    assert all(not queue.job(each).failures for each in good), "a mate was made to pay"


def test_without_bisection_a_job_that_failed_through_its_mates_succeeds_alone(queue):
    bad = queue.submit("bad", x=0, in_batch="raises")
    good = mates(queue)
    work_off(queue, service="without_bisection")
    assert queue.job(bad).state is JobState.DEAD
    assert {queue.job(each).state for each in good} == {JobState.SUCCEEDED}


@pytest.mark.parametrize("how", ["too large together", pytest.param("raises with company", marks=pytest.mark.night)])
def test_what_fails_only_in_company_succeeds_alone(queue, how):
    for n in range(8):
        queue.submit(f"large-{n}", 2 * n, x=n, in_batch=how)
    work_off(queue)
    assert queue.states() == {JobState.SUCCEEDED: 8}


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.night)])
def test_a_worker_that_dies_once_costs_its_job_at_most_one_attempt(queue, number):
    queue.submit("unlucky", 6, x=3, signal_once=(str(queue.folder / "died"), number))
    mates(queue)
    work_off(queue)
    assert queue.job("unlucky").failures.get("worker_lost", 0) <= 1


def test_a_batch_with_too_few_results_costs_its_jobs_one_attempt_and_their_company(queue):
    """Nobody knows whose result is missing, so there is nothing to bisect."""
    bad = queue.submit("bad", x=0, in_batch="drops a result")
    good = mates(queue)
    work_off(queue)
    assert (queue.job(bad).state, queue.job(bad).failures) == (JobState.DEAD, {"application": 3})
    assert all(queue.job(each).failures.get("application", 0) <= 1 for each in good)


def test_a_body_that_cannot_be_read_is_the_jobs_own_fault(queue):
    queue.store.submit([NewJob("unreadable", b'{"x": ', digest="unreadable")])
    good = mates(queue)
    work_off(queue)
    job = queue.job("unreadable")
    assert (job.state, job.failures) == (JobState.DEAD, {"invalid_input": 1})
    assert not queue.calls("unreadable")
    assert {queue.job(each).state for each in good} == {JobState.SUCCEEDED}


def test_a_dead_job_succeeds_in_its_next_run_once_the_fault_is_mended(queue):
    missing = queue.folder / "missing" / "file"
    queue.submit("job", 4, x=2, signal_once=(str(missing), signal.SIGKILL))
    queue.work("--until-empty").until_empty()
    job = queue.job("job")
    assert (job.state, job.generation, job.failures) == (JobState.DEAD, 1, {"application": 3})
    missing.parent.mkdir()
    missing.touch()
    queue.store.retry("job")
    work_off(queue)
    job = queue.job("job")
    assert (job.state, job.generation, job.failures) == (JobState.SUCCEEDED, 2, {})
