"""When a worker is started again, when it is ended, when its stage has failed."""

from __future__ import annotations

import pytest

from penstock.core.supervision import Backoff, StageHealth, WorkerHealth, share_threads

DELAYS = [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def fail(health, times, now=0.0):
    """Report batches that failed whole; the answers.  A recycled worker is ready again at once."""
    answers = []
    for _ in range(times):
        answers.append(health.batch_finished(whole_failure=True, now=now))
        if answers[-1]:
            health.became_ready(now)
    return answers


def test_the_first_restart_is_immediate_then_a_tenth_of_a_second_doubling_to_thirty():
    backoff = Backoff()
    assert [backoff.next_delay() for _ in DELAYS] == pytest.approx(DELAYS)


def test_a_backoff_that_is_reset_starts_over():
    backoff = Backoff()
    for _ in range(4):
        backoff.next_delay()
    backoff.reset()
    assert [backoff.next_delay(), backoff.next_delay()] == [0.0, 0.1]


def test_a_finished_batch_resets_the_restart_delay():
    health = WorkerHealth()
    health.restart.next_delay()
    health.restart.next_delay()
    health.batch_finished(whole_failure=False, now=0.0)
    assert health.restart.next_delay() == 0.0


def test_a_batch_that_failed_whole_does_not_reset_the_restart_delay():
    health = WorkerHealth()
    health.restart.next_delay()
    health.batch_finished(whole_failure=True, now=0.0)
    assert health.restart.next_delay() == 0.1


def test_a_worker_is_recycled_after_five_whole_failures_in_a_row():
    assert fail(WorkerHealth(), 5) == [False] * 4 + [True]


def test_one_batch_that_did_not_fail_whole_starts_the_count_again():
    health = WorkerHealth()
    fail(health, 4)
    assert health.batch_finished(whole_failure=False, now=0.0) is False
    assert fail(health, 5) == [False] * 4 + [True]


def test_a_worker_is_recycled_once_per_restart_backoff():
    health = WorkerHealth()
    assert fail(health, 5)[-1] is True
    assert fail(health, 5)[-1] is True, "the first delay is none"
    assert fail(health, 20, now=0.05) == [False] * 20, "the second is 0.1 s"
    assert fail(health, 1, now=0.1) == [True]
    assert fail(health, 20, now=0.25) == [False] * 20, "the third is 0.2 s"
    assert fail(health, 1, now=0.31) == [True]


def test_a_batch_that_did_not_fail_whole_resets_the_recycling_backoff():
    health = WorkerHealth()
    fail(health, 10)
    health.batch_finished(whole_failure=False, now=0.0)
    fail(health, 4, now=0.1)
    assert fail(health, 1, now=0.1) == [True]
    assert fail(health, 5, now=0.1)[-1] is True, "the first delay is none again"


def test_a_stage_has_failed_after_five_starts_with_no_worker_left():
    health = StageHealth(workers=1)
    for attempt in range(5):
        assert not health.failed(live_workers=0)
        health.died_before_ready(0, f"reason {attempt}")
    assert health.failed(live_workers=0)
    assert health.reason == "reason 4"


def test_a_stage_with_a_live_worker_has_not_failed():
    health = StageHealth(workers=1)
    for _ in range(50):
        health.died_before_ready(0, "no")
    assert not health.failed(live_workers=1)
    assert health.failed(live_workers=0)


def test_a_stage_recovers_when_a_worker_becomes_ready():
    health = StageHealth(workers=1)
    assert not health.ever_ready
    assert health.reason == ""
    for _ in range(5):
        health.died_before_ready(0, "no")
    health.became_ready(0)
    assert health.ever_ready
    assert not health.failed(live_workers=0)
    assert (health.reason, health.failed_starts) == ("", [0])


def test_a_failed_stage_is_retried_every_thirty_seconds():
    health, backoff = StageHealth(workers=1), Backoff()
    assert [health.delay(backoff, 0), health.delay(backoff, 0)] == [0.0, 0.1]
    for _ in range(5):
        health.died_before_ready(0, "no")
    assert [health.delay(backoff, 0), health.delay(backoff, 0)] == [30.0, 30.0]
    assert health.delay(backoff, 1) == 0.2


@pytest.mark.parametrize(
    ("cores", "threads"),
    [
        ([{0, 1, 2, 3}], [4]),
        ([{0, 1, 2, 3}] * 2, [2, 2]),
        ([{0, 1, 2, 3}] * 3, [1, 1, 1]),
        ([{0, 1}] * 8, [1] * 8),
        ([{0}, {1}], [1, 1]),
        ([{0, 1}, {2, 3, 4}], [2, 3]),
        ([{0, 1, 2, 3}, {0}], [2, 1]),
    ],
)
def test_threads_are_a_workers_cores_divided_by_the_workers_on_them(cores, threads):
    assert share_threads([frozenset(own) for own in cores]) == threads


def test_a_worker_that_was_ready_has_its_own_tries_whatever_became_of_the_others():
    health = StageHealth(workers=2)
    health.became_ready(0)
    for _ in range(9):
        health.died_before_ready(1, "no")
    assert not health.failed(live_workers=0)
    assert health.delay(Backoff(), live_workers=0) == 0.0
    for _ in range(5):
        assert not health.failed(live_workers=0)
        health.died_before_ready(0, "no")
    assert health.failed(live_workers=0)


def test_the_delay_to_the_next_recycling_counts_from_when_the_worker_is_ready_again():
    health = WorkerHealth()
    fail(health, 5)
    for _ in range(4):
        health.batch_finished(whole_failure=True, now=0.0)
    assert health.batch_finished(whole_failure=True, now=0.0)
    health.became_ready(50.0)
    assert fail(health, 5, now=50.05) == [False] * 5
    assert fail(health, 1, now=50.1) == [True]


def test_a_worker_that_becomes_ready_after_an_ordinary_death_owes_no_delay_to_its_next_recycling():
    health = WorkerHealth()
    health.became_ready(0.0)
    health.became_ready(0.0)
    assert fail(health, 10) == ([False] * 4 + [True]) * 2, "the first delay is none, and was not used up"
