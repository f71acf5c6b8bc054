"""Which idle worker is asked how it is, and when."""

from __future__ import annotations

from penstock.core.idle_checks import IDLE_SECONDS, LIMIT_SECONDS, IdleChecks


def test_a_worker_is_asked_once_it_has_been_idle_for_long_enough():
    checks = IdleChecks(1)
    assert checks.take_due([100.0], 100.0 + IDLE_SECONDS - 0.1) is None
    assert checks.next_look([100.0], 105.0) == 100.0 + IDLE_SECONDS
    assert checks.take_due([100.0], 100.0 + IDLE_SECONDS) == 0


def test_a_worker_at_work_is_not_asked():
    checks = IdleChecks(1)
    assert checks.take_due([None], 1e9) is None
    assert checks.next_look([None], 50.0) == 50.0 + IDLE_SECONDS


def test_it_is_asked_again_so_long_after_its_answer():
    checks = IdleChecks(1)
    assert checks.take_due([0.0], 10.0) == 0
    assert checks.take_due([None], 12.0) is None
    checks.ended(0)
    assert checks.next_look([12.0], 12.0) == 22.0
    assert checks.take_due([12.0], 21.9) is None
    assert checks.take_due([12.0], 22.0) == 0


def test_it_is_late_after_five_seconds_and_each_ten_that_follow():
    checks = IdleChecks(1)
    checks.take_due([0.0], 10.0)
    assert checks.next_look([None], 10.0) == 10.0 + LIMIT_SECONDS
    late = {now: checks.take_late(now) for now in (14.9, 15.0, 24.9, 25.0, 35.0)}
    assert [now for now, who in late.items() if who == [0]] == [15.0, 25.0, 35.0]
    assert checks.take_due([10.0], 36.0) is None, "it has not answered yet"
    checks.ended(0)
    assert checks.take_due([36.0], 46.0) == 0


def test_one_is_asked_at_a_time_and_the_longest_idle_first():
    checks = IdleChecks(3)
    idle_since = [2.0, 1.0, 3.0]
    asked = []
    for _ in range(3):
        worker = checks.take_due(idle_since, 13.0)
        asked.append(worker)
        assert checks.take_due(idle_since, 14.0) is None
        assert checks.next_look(idle_since, 14.0) == 13.0 + LIMIT_SECONDS
        idle_since[worker] = 14.0
        checks.ended(worker)
    assert asked == [1, 0, 2]
    assert checks.take_due(idle_since, 14.0) is None


def test_one_that_is_late_and_goes_on_keeps_no_other_from_being_asked():
    checks = IdleChecks(2)
    assert checks.take_due([0.0, 0.0], 10.0) == 0
    assert checks.take_late(15.0) == [0]
    assert checks.next_look([None, 0.0], 15.0) == 10.0
    assert checks.take_due([None, 0.0], 15.0) == 1
    checks.ended(0)
    assert checks.take_due([0.0, None], 16.0) is None, "the other one is asked now"
    assert checks.take_late(20.0) == [1]


def test_nobody_is_asked_while_one_that_was_replaced_for_its_health_starts():
    checks = IdleChecks(2)
    checks.take_due([0.0, 0.0], 10.0)
    checks.ended(0)
    checks.replaced(0)
    assert checks.take_due([None, 0.0], 1000.0) is None
    assert checks.next_look([None, 0.0], 1000.0) is None
    checks.became_ready(1)
    assert checks.take_due([None, 0.0], 1000.0) is None, "that was another one"
    checks.became_ready(0)
    assert checks.take_due([1000.0, 0.0], 1000.0) == 1
