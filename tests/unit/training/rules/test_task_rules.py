"""What becomes of a task, by arithmetic on plain records."""

from __future__ import annotations

import pytest

from penstock.core.moves import IllegalMove
from penstock.training.rules.task_rules import (
    GiveUp,
    HostTime,
    Situation,
    Take,
    TaskRecord,
    Worker,
    after_failure,
    current_kind,
    decide_claim,
    entry_of,
    failure_of,
    fence_counts,
    finished,
    has_run_out,
    may_be_claimed,
    released,
    renewed,
    retried,
    task_name,
    was_finished,
)
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.task_store import Blocked, Failed, Ready

TRAIN, EVALUATE, PREDICT, SAVE = Phase
QUEUED, RUNNING, DONE, FAILED = TaskState
NOW = HostTime(wall=1000.0, boottime=50.0, boot_id="this boot")
ME = Worker(12, "me")


def at(boottime, boot_id="this boot", wall=1000.0):
    return HostTime(wall, boottime, boot_id)


def leased(lease_until=60.0, **others):
    fields = {"fence": 4, "boot_id": "this boot", "since": 45.0, "claimed": 995.0, "pid": 7, "host": "away"}
    return TaskRecord(TRAIN, 3, RUNNING, lease_until=lease_until, **(fields | others))


def ask(kinds=(TRAIN,), *, first=None, failed=None, left=None, version=None, attempts=3, lease=30.0, now=NOW):
    left = {TRAIN: 2} if left is None else left
    return decide_claim(Situation(failed, left, first, version), kinds, attempts, lease, ME, now)


# -- what may be claimed ----------------------------------------------------------------------------------------------


def test_a_lease_runs_out_when_its_time_has_come():
    assert not has_run_out(leased(60.0), at(59.999))
    assert has_run_out(leased(60.0), at(60.0))


def test_in_another_boot_every_lease_has_run_out():
    assert has_run_out(leased(60.0), at(1.0, "another boot"))


def test_the_wall_clock_has_no_say():
    assert not has_run_out(leased(60.0), at(59.0, wall=9e9))
    assert has_run_out(leased(60.0), at(60.0, wall=-9e9))


@pytest.mark.parametrize("state", [QUEUED, DONE, FAILED])
def test_only_what_is_leased_can_lose_its_lease(state):
    assert not has_run_out(leased(0.0)._replace(state=state), NOW)


def test_what_waits_or_has_lost_its_lease_may_be_claimed():
    for task, may in [
        (TaskRecord(TRAIN, 0), True),
        (leased(50.0), True),
        (leased(50.1), False),
        (TaskRecord(TRAIN, 0, DONE), False),
        (TaskRecord(TRAIN, 0, FAILED), False),
    ]:
        assert may_be_claimed(task, NOW) is may


def test_the_first_kind_with_something_left_is_worked_on():
    assert current_kind({TRAIN: 1, EVALUATE: 1, SAVE: 1}) is TRAIN
    assert current_kind({TRAIN: 0, SAVE: 1, PREDICT: 2}) is PREDICT
    assert current_kind({TRAIN: 0, SAVE: 1}) is SAVE
    assert current_kind({TRAIN: 0}) is None


# -- what who asks gets -----------------------------------------------------------------------------------------------


def test_a_task_that_waits_is_claimed_with_a_larger_fence():
    task = TaskRecord(TRAIN, 3, fence=4, attempts=1, trouble="raised")
    assert ask(first=task) == Take(
        TaskRecord(
            TRAIN,
            3,
            RUNNING,
            fence=5,
            attempts=1,
            lease_until=80.0,
            boot_id="this boot",
            since=50.0,
            claimed=1000.0,
            pid=12,
            host="me",
            trouble="raised",
        )
    )


def test_a_task_that_has_lost_its_lease_is_claimed_and_the_lost_attempt_is_counted():
    found = ask(first=leased(40.0, attempts=1))
    assert isinstance(found, Take)
    task = found.task
    assert (task.state, task.fence, task.attempts, task.lease_until, task.pid) == (RUNNING, 5, 2, 80.0, 12)
    assert task.trouble == (
        "lease expired: process 7 on away sent no renewal; it was killed, hung or paused, or its host restarted"
    )


@pytest.mark.parametrize("kinds", [(TRAIN,), ()])
def test_where_the_last_attempt_was_lost_the_run_fails_whoever_asks(kinds):
    found = ask(kinds, first=leased(40.0, attempts=2))
    assert isinstance(found, GiveUp)
    assert (found.task.state, found.task.fence, found.task.attempts) == (FAILED, 4, 3)
    assert "process 7 on away sent no renewal" in found.task.trouble


def test_a_failed_run_tells_its_failure_to_all():
    failure = Failed("train 3", "why")
    assert ask(first=TaskRecord(TRAIN, 0), failed=failure) is failure
    assert ask(left={}, version=3, failed=failure) is failure


def test_what_is_done_tells_the_version():
    assert ask(left={TRAIN: 0, SAVE: 0}, version=3) == Ready(3)
    assert ask(left={}) == Ready(None)


def test_who_has_no_function_for_the_kind_hears_whether_others_could_claim():
    assert ask((EVALUATE, SAVE), first=TaskRecord(TRAIN, 1)) == Blocked(TRAIN, 2, claimable=True)
    assert ask((EVALUATE, SAVE), first=leased(40.0)) == Blocked(TRAIN, 2, claimable=True)
    assert ask((EVALUATE, SAVE)) == Blocked(TRAIN, 2, claimable=False)


def test_where_all_tasks_of_the_kind_are_held_nothing_can_be_claimed():
    assert ask(left={TRAIN: 0, SAVE: 1}, kinds=tuple(Phase)) == Blocked(SAVE, 1, claimable=False)


# -- what a holder does -----------------------------------------------------------------------------------------------


def test_a_fence_counts_while_its_task_is_leased():
    assert fence_counts(leased(), 4)
    assert fence_counts(leased(0.0), 4)  # nobody has claimed it since
    assert not fence_counts(leased(), 3)
    assert not fence_counts(leased(), 5)
    assert not fence_counts(leased()._replace(state=QUEUED), 4)
    assert not fence_counts(None, 4)


def test_who_finished_a_task_may_tell_it_again():
    done = finished(leased())
    assert was_finished(done, 4)
    assert not was_finished(done, 3)
    assert not was_finished(leased(), 4)
    assert not was_finished(None, 4)


def test_a_renewed_lease_counts_from_now():
    assert renewed(leased(60.0), 30.0, NOW) == leased(80.0)


def test_a_lease_that_is_renewed_in_another_boot_was_not_claimed_by_its_clock():
    task = renewed(leased(60.0), 30.0, at(5.0, "another boot"))
    assert (task.lease_until, task.boot_id, task.since) == (35.0, "another boot", None)
    assert entry_of(task, at(6.0, "another boot")).held is None


def test_what_is_finished_is_done():
    assert finished(leased()).state is DONE
    with pytest.raises(IllegalMove, match="cannot finish a task that is done"):
        finished(finished(leased()))


def test_a_failed_attempt_is_counted_and_the_task_goes_back():
    assert after_failure(leased(attempts=1), "raised", 3) == leased(attempts=2, trouble="raised")._replace(state=QUEUED)


def test_the_last_failed_attempt_fails_the_task():
    assert after_failure(leased(attempts=2), "raised", 3).state is FAILED
    assert after_failure(leased(attempts=0), "raised", 1).state is FAILED
    assert after_failure(leased(attempts=7), "raised", 3).state is FAILED  # somebody else had more attempts


def test_what_is_given_back_counts_no_attempt():
    assert released(leased(attempts=1, trouble="before")) == leased(attempts=1, trouble="before")._replace(state=QUEUED)


def test_a_retry_gives_what_is_not_done_all_attempts():
    for before, after in [
        (TaskRecord(TRAIN, 0, DONE, attempts=2), TaskRecord(TRAIN, 0, DONE, attempts=2)),
        (TaskRecord(TRAIN, 0, FAILED, attempts=3, fence=3), TaskRecord(TRAIN, 0, QUEUED, fence=3)),
        (TaskRecord(TRAIN, 0, QUEUED, attempts=2), TaskRecord(TRAIN, 0, QUEUED)),
        (leased(attempts=2), leased()),
        (leased(40.0, attempts=2), leased(40.0)._replace(state=QUEUED)),
    ]:
        assert retried(before, NOW) == after


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_a_task_is_named_for_people():
    assert [task_name(TRAIN, 0), task_name(PREDICT, 12), task_name(SAVE, 0)] == ["train 0", "predict 12", "save"]
    assert failure_of(TaskRecord(EVALUATE, 2, FAILED, trouble="why")) == Failed("evaluate 2", "why")


def test_a_held_task_shows_its_holder_its_age_and_its_lease():
    entry = entry_of(leased(60.0, attempts=1, trouble="why"), NOW)
    assert (entry.kind, entry.place, entry.state, entry.attempts, entry.trouble) == (TRAIN, 3, RUNNING, 1, "why")
    assert (entry.pid, entry.host, entry.claimed, entry.held, entry.lease_left) == (7, "away", 995.0, 5.0, 10.0)


def test_a_lease_that_ran_out_shows_for_how_long():
    assert entry_of(leased(48.0), NOW).lease_left == -2.0


def test_a_lease_of_another_boot_has_run_out_and_has_no_age():
    entry = entry_of(leased(60.0), at(1.0, "another boot"))
    assert (entry.held, entry.lease_left, entry.claimed) == (None, 0.0, 995.0)


def test_what_is_not_held_has_no_lease():
    entry = entry_of(leased()._replace(state=DONE), NOW)
    assert (entry.state, entry.pid, entry.held, entry.lease_left) == (DONE, 7, None, None)
