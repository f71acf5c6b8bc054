"""When a worker is started again, when it is ended, when its stage has failed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.core.supervision import Backoff, StageHealth, Verdict, WorkerHealth, longest_rest, share_threads

DELAYS = [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def fails(health, now):
    """Report a batch that failed whole; whether the worker is to be recycled."""
    return health.batch_finished(succeeded=False, failed=True, now=now) is Verdict.RECYCLE


def fail(health, times, now=0.0):
    """Report batches that failed whole; the answers.  A recycled worker is ready again at once."""
    answers = []
    for _ in range(times):
        answers.append(fails(health, now))
        if answers[-1]:
            health.became_ready(now)
    return answers


def test_the_first_restart_is_immediate_then_a_tenth_of_a_second_doubling_to_thirty():
    backoff = Backoff()
    assert [backoff.next_delay() for _ in DELAYS] == pytest.approx(DELAYS)


def test_a_worker_is_recycled_after_five_whole_failures_in_a_row():
    assert fail(WorkerHealth(), 5) == [False] * 4 + [True]


def test_a_stage_has_failed_after_five_starts_with_no_worker_left():
    health = StageHealth(workers=1)
    for attempt in range(5):
        assert not health.failed(live_workers=0)
        health.died_before_ready(0, f"reason {attempt}", 0.0)
    assert health.failed(live_workers=0)
    assert health.reason == "reason 4"


def test_a_failed_stage_is_retried_every_thirty_seconds():
    health, backoff = StageHealth(workers=1), Backoff()
    assert [health.delay(backoff, 0, 0.0), health.delay(backoff, 0, 0.0)] == [0.0, 0.1]
    for _ in range(5):
        health.died_before_ready(0, "no", 0.0)
    assert [health.delay(backoff, 0, 0.0), health.delay(backoff, 0, 0.0)] == [30.0, 30.0]
    assert health.delay(backoff, 1, 0.0) == 0.2


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
        health.died_before_ready(1, "no", 0.0)
    assert not health.failed(live_workers=0)
    assert health.delay(Backoff(), live_workers=0, now=0.0) == 0.0
    for _ in range(5):
        assert not health.failed(live_workers=0)
        health.died_before_ready(0, "no", 0.0)
    assert health.failed(live_workers=0)


# -- whether the worker or its input is at fault ----------------------------------------------------------------------


def verdicts(health, *moments, **how):
    """What whole failures at each of `moments` mean."""
    return [health.batch_finished(succeeded=False, failed=True, now=now, **how).name for now in moments]


def test_a_worker_with_an_example_is_examined_after_five_whole_failures_in_a_row():
    health = WorkerHealth(examined=True, recycle_after=0.0)
    assert verdicts(health, 1, 1, 1, 1, 1) == ["SERVE"] * 4 + ["EXAMINE"]
    assert verdicts(health, 1, 1, 5) == ["SERVE"] * 3, "it is being examined"


def test_a_worker_that_runs_its_example_well_serves_on_and_is_examined_at_most_once_a_second():
    health = WorkerHealth(examined=True)
    assert verdicts(health, *[1.0] * 5)[-1] == "EXAMINE"
    assert health.examination_finished(well=True) is Verdict.SERVE
    assert verdicts(health, *[1.5] * 9) == ["SERVE"] * 9, "within a second"
    assert verdicts(health, 2.0) == ["EXAMINE"]
    assert health.examination_finished(well=True) is Verdict.SERVE
    assert verdicts(health, *[9.0] * 4) == ["SERVE"] * 4, "the count has started again"


def test_a_worker_that_fails_its_example_is_recycled_and_the_next_one_starts_afresh():
    health = WorkerHealth(examined=True)
    assert verdicts(health, *[1.0] * 5)[-1] == "EXAMINE"
    assert health.examination_finished(well=False) is Verdict.RECYCLE
    assert verdicts(health, *[1.0] * 5) == ["SERVE"] * 5, "it is being ended"
    health.became_ready(1.2)
    assert verdicts(health, *[1.2] * 5)[-1] == "EXAMINE", "the second between examinations is of one worker"


def test_a_worker_without_an_example_must_fail_for_so_long_and_five_times():
    health = WorkerHealth(recycle_after=30.0)
    assert verdicts(health, 10, 10, 10, 10, 10, 39.9) == ["SERVE"] * 6
    assert verdicts(health, 40.0) == ["RECYCLE"]
    health = WorkerHealth(recycle_after=30.0)
    assert verdicts(health, 0, 50, 60, 70) == ["SERVE"] * 4
    assert verdicts(health, 70) == ["RECYCLE"]


# -- a stage that does no good ----------------------------------------------------------------------------------------


def test_a_stage_has_failed_after_three_recycles_without_a_good_item_between():
    health = StageHealth(workers=2)
    assert [health.recycled(f"error {i}", now=10.0) for i in range(3)] == [False, False, True]
    assert (health.resting, health.rest_ends, health.reason) == (True, 40.0, "error 2")
    assert health.failed(live_workers=0)
    assert not health.failed(live_workers=1)
    assert health.recycled("later", now=11.0) is False, "it rests already"
    assert (health.rest_ends, health.reason) == (40.0, "error 2")


def test_a_stage_on_trial_rests_twice_as_long_after_its_next_recycle_up_to_five_minutes():
    health = StageHealth(workers=1)
    assert not health.on_trial
    for _ in range(2):
        health.recycled("no", 0.0)
    rests, now = [], 0.0
    for _ in range(6):
        assert health.recycled("no", now)
        assert not health.on_trial
        rests.append(health.rest_ends - now)
        now = health.rest_ends
        health.became_ready(0)
        assert health.on_trial
        assert (health.resting, health.reason, health.failed(live_workers=0)) == (False, "", False)
    assert rests == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    health.item_succeeded()
    assert not health.on_trial
    assert [health.recycled("no", now) for _ in range(3)] == [False, False, True]
    assert health.rest_ends == now + 30.0


def test_a_stage_that_rests_tells_how_long_until_it_is_tried_again():
    health = StageHealth(workers=1)
    assert health.rest_left(0.0) is None
    for _ in range(3):
        health.recycled("no", 5.0)
    assert [health.rest_left(now) for now in (5.0, 20.5, 35.0, 36.0)] == [30.0, 14.5, 0.0, 0.0]
    health.became_ready(0)
    assert health.rest_left(36.0) is None


def test_a_service_is_worth_another_try_when_each_stage_that_rests_was_tried_again():
    healths = [StageHealth(workers=1) for _ in range(3)]
    assert longest_rest([], 0.0) == longest_rest(healths, 0.0) == 0.0
    for health, moment in zip(healths, (0.0, 10.0), strict=False):
        for _ in range(3):
            health.recycled("no", moment)
    assert [longest_rest(healths, now) for now in (10.0, 35.0, 41.0)] == [30.0, 5.0, 0.0]


def test_a_stage_recovers_once_with_the_first_good_item_after_its_rests():
    health = StageHealth(workers=2)
    assert health.item_succeeded() is False, "it was never ill"
    for moment in (0.0, 0.0, 0.0, 40.0):
        health.became_ready(0)
        health.recycled("no", moment)
    assert health.rest_ends == 100.0
    assert health.item_succeeded() is False, "the answer of a worker that is being ended"
    health.became_ready(0)
    assert [health.item_succeeded() for _ in range(3)] == [True, False, False]


# -- what the stage's own health says ----------------------------------------------------------------------------------


def test_a_worker_that_is_not_well_is_ended_once_in_its_backoff():
    health = WorkerHealth()
    now, ends = 0.0, []
    health.became_ready(now)
    for _ in range(2000):
        now += 0.1
        if health.checked(well=False, now=now) is Verdict.RECYCLE:
            ends.append(now)
            assert health.checked(well=False, now=now + 1e9) is Verdict.SERVE, "it is being ended"
            health.became_ready(now)
    gaps = [after - before for before, after in pairwise(ends)]
    assert gaps[:4] == pytest.approx([0.1, 0.1, 0.2, 0.4], abs=0.11)
    assert gaps[-1] == pytest.approx(30.0, abs=0.11)


def test_only_a_check_that_went_well_resets_that_backoff():
    health = WorkerHealth()
    for now in (1.0, 2.0, 3.0):
        assert health.checked(well=False, now=now) is Verdict.RECYCLE
        health.became_ready(now)
    health.batch_finished(succeeded=True, failed=False, now=3.0)
    assert health.checked(well=False, now=3.0) is Verdict.SERVE
    assert health.checked(well=True, now=3.0) is Verdict.SERVE
    assert health.checked(well=False, now=3.2) is Verdict.RECYCLE
    health.became_ready(4.0)
    assert health.checked(well=False, now=4.0) is Verdict.RECYCLE
