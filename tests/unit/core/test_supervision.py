"""When a worker is started again, when it is ended, when its stage has failed."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from penstock.core.supervision import Backoff, StageHealth, Verdict, WorkerHealth, longest_rest, share_threads

DELAYS = [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def succeeds(health, now=0.0):
    """Report a batch with a result; whether the worker is to be recycled."""
    return health.batch_finished(succeeded=True, failed=False, now=now) is Verdict.RECYCLE


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
    succeeds(health)
    assert health.restart.next_delay() == 0.0


def test_a_batch_that_failed_whole_does_not_reset_the_restart_delay():
    health = WorkerHealth()
    health.restart.next_delay()
    fails(health, 0.0)
    assert health.restart.next_delay() == 0.1


def test_a_worker_is_recycled_after_five_whole_failures_in_a_row():
    assert fail(WorkerHealth(), 5) == [False] * 4 + [True]


def test_one_batch_that_did_not_fail_whole_starts_the_count_again():
    health = WorkerHealth()
    fail(health, 4)
    assert succeeds(health) is False
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
    succeeds(health)
    fail(health, 4, now=0.1)
    assert fail(health, 1, now=0.1) == [True]
    assert fail(health, 5, now=0.1)[-1] is True, "the first delay is none again"


def test_a_stage_has_failed_after_five_starts_with_no_worker_left():
    health = StageHealth(workers=1)
    for attempt in range(5):
        assert not health.failed(live_workers=0)
        health.died_before_ready(0, f"reason {attempt}", 0.0)
    assert health.failed(live_workers=0)
    assert health.reason == "reason 4"


def test_a_stage_with_a_live_worker_has_not_failed():
    health = StageHealth(workers=1)
    for _ in range(50):
        health.died_before_ready(0, "no", 0.0)
    assert not health.failed(live_workers=1)
    assert health.failed(live_workers=0)


def test_a_stage_recovers_when_a_worker_becomes_ready():
    health = StageHealth(workers=1)
    assert not health.ever_ready
    assert health.reason == ""
    for _ in range(5):
        health.died_before_ready(0, "no", 0.0)
    health.became_ready(0)
    assert health.ever_ready
    assert not health.failed(live_workers=0)
    assert (health.reason, health.failed_starts) == ("", [0])


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


def test_the_delay_to_the_next_recycling_counts_from_when_the_worker_is_ready_again():
    health = WorkerHealth()
    fail(health, 5)
    for _ in range(4):
        fails(health, 0.0)
    assert fails(health, 0.0)
    health.became_ready(50.0)
    assert fail(health, 5, now=50.05) == [False] * 5
    assert fail(health, 1, now=50.1) == [True]


def test_a_worker_that_becomes_ready_after_an_ordinary_death_owes_no_delay_to_its_next_recycling():
    health = WorkerHealth()
    health.became_ready(0.0)
    health.became_ready(0.0)
    assert fail(health, 10) == ([False] * 4 + [True]) * 2, "the first delay is none, and was not used up"


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


def test_a_worker_is_never_recycled_for_its_failures_where_that_takes_for_ever():
    assert set(verdicts(WorkerHealth(recycle_after=math.inf), *range(0, 10**6, 1000))) == {"SERVE"}


def test_a_batch_in_which_nothing_ran_says_nothing_about_the_worker():
    health = WorkerHealth(recycle_after=30.0)
    health.restart.next_delay()
    health.restart.next_delay()
    verdicts(health, 0, 0, 0, 0)
    assert health.batch_finished(succeeded=False, failed=False, now=1.0) is Verdict.SERVE
    assert health.restart.next_delay() == 0.0, "but the worker lives"
    assert verdicts(health, 30.0) == ["RECYCLE"]


def test_a_good_item_starts_the_time_of_failing_again():
    health = WorkerHealth(recycle_after=30.0)
    verdicts(health, 0, 0, 0, 0)
    health.batch_finished(succeeded=True, failed=True, now=20.0)
    assert verdicts(health, 31, 32, 33, 34, 60.9) == ["SERVE"] * 5
    assert verdicts(health, 61.0) == ["RECYCLE"]


def test_on_trial_five_whole_failures_decide_whatever_the_time_and_the_backoff():
    health = WorkerHealth(recycle_after=30.0)
    for _ in range(3):
        assert verdicts(health, *[0.0] * 5, on_trial=True) == ["SERVE"] * 4 + ["RECYCLE"]
        assert verdicts(health, 0.0, *[0.0] * 9, on_trial=True) == ["SERVE"] * 10, "it is being ended"
        health.became_ready(0.0)


# -- a stage that does no good ----------------------------------------------------------------------------------------


def test_a_stage_has_failed_after_three_recycles_without_a_good_item_between():
    health = StageHealth(workers=2)
    assert [health.recycled(f"error {i}", now=10.0) for i in range(3)] == [False, False, True]
    assert (health.resting, health.rest_ends, health.reason) == (True, 40.0, "error 2")
    assert health.failed(live_workers=0)
    assert not health.failed(live_workers=1)
    assert health.recycled("later", now=11.0) is False, "it rests already"
    assert (health.rest_ends, health.reason) == (40.0, "error 2")


def test_one_good_item_forgets_the_recycles_before_it():
    health = StageHealth(workers=1)
    health.recycled("no", 0.0)
    health.recycled("no", 0.0)
    health.item_succeeded()
    assert [health.recycled("no", 0.0) for _ in range(3)] == [False, False, True]


def test_what_rests_is_started_again_when_the_rest_is_over_whoever_ended_it():
    health, backoff = StageHealth(workers=1), Backoff()
    assert health.delay(backoff, 0, 0.0, innocent=True) == 0.0
    for _ in range(3):
        health.recycled("no", 5.0)
    for innocent in (True, False):
        assert health.delay(backoff, 0, 15.0, innocent=innocent) == 20.0
    assert health.delay(backoff, 0, 36.0) == 0.0
    assert backoff.next_delay() == 0.0, "the backoff of its starts is another one"


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


def test_a_stage_that_cannot_start_after_its_rest_rests_again_once_for_all_its_workers():
    health = StageHealth(workers=2)
    for _ in range(3):
        health.recycled("no", 0.0)
    health.died_before_ready(0, "a start that began before", 10.0)
    assert health.rest_ends == 30.0
    health.died_before_ready(0, "no", 31.0)
    health.died_before_ready(1, "no", 32.0)
    assert health.rest_ends == 91.0
    assert health.failed(live_workers=0)


def test_a_worker_that_is_ready_while_its_stage_rests_after_a_recycle_may_not_serve():
    health = StageHealth(workers=2)
    assert health.may_serve(0.0)
    for _ in range(3):
        health.recycled("no", 0.0)
    assert not health.may_serve(29.9)
    assert health.may_serve(30.0)


def test_a_worker_that_cannot_start_after_the_rest_keeps_no_other_from_its_trial():
    health = StageHealth(workers=2)
    for _ in range(3):
        health.recycled("no", 0.0)
    health.died_before_ready(0, "a broken GPU", 31.0)
    assert (health.resting, health.rest_ends) == (True, 91.0)
    assert health.may_serve(40.0)
    health.became_ready(1)
    assert (health.on_trial, health.failed(live_workers=1)) == (True, False)
    assert health.recycled("no", 41.0), "the trial is lost"
    assert health.rest_ends == 41.0 + 120.0
    assert not health.may_serve(100.0)


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
