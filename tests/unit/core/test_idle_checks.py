"""When an idle worker is asked how it is."""

from __future__ import annotations

from penstock.core.idle_checks import IDLE_SECONDS, LIMIT_SECONDS, IdleChecks, Look


def test_a_worker_is_asked_once_it_has_been_idle_for_long_enough():
    checks = IdleChecks()
    assert checks.look(100.0, 100.0 + IDLE_SECONDS - 0.1) is Look.NOTHING
    assert checks.next_look(100.0, 105.0) == 100.0 + IDLE_SECONDS
    assert checks.look(100.0, 100.0 + IDLE_SECONDS) is Look.ASK


def test_a_worker_at_work_is_not_asked():
    checks = IdleChecks()
    assert checks.look(None, 1e9) is Look.NOTHING
    assert checks.next_look(None, 50.0) == 50.0 + IDLE_SECONDS


def test_it_is_asked_again_so_long_after_its_answer():
    checks = IdleChecks()
    assert checks.look(0.0, 10.0) is Look.ASK
    assert checks.look(None, 12.0) is Look.NOTHING
    checks.ended()
    assert checks.next_look(12.0, 12.0) == 22.0
    assert checks.look(12.0, 21.9) is Look.NOTHING
    assert checks.look(12.0, 22.0) is Look.ASK


def test_it_is_late_after_five_seconds_and_each_ten_that_follow():
    checks = IdleChecks()
    checks.look(0.0, 10.0)
    assert checks.next_look(None, 10.0) == 10.0 + LIMIT_SECONDS
    looks = {now: checks.look(None, now) for now in (14.9, 15.0, 24.9, 25.0, 35.0)}
    assert [now for now, look in looks.items() if look is Look.LATE] == [15.0, 25.0, 35.0]
    checks.ended()
    assert checks.look(36.0, 46.0) is Look.ASK
