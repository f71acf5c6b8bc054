"""When who is refused should come again, and how fast a service is."""

from __future__ import annotations

import math
from random import Random

import pytest

from penstock.core.pace import GUESSED_RATE, LEAST_RATE, Pace
from penstock.core.retry_slots import RetrySlots, whole_milliseconds, whole_seconds
from rows import each

# -- slots ------------------------------------------------------------------------------------------------------------


def test_each_caller_takes_the_next_slot():
    slots = RetrySlots()
    assert [slots.take(100.0, 0.5, 10.0) for _ in range(3)] == pytest.approx([0.5, 0.6, 0.7])
    assert slots.take(100.2, 0.5, 10.0) == pytest.approx(0.6), "the same moment as from 100.0"


def test_to_look_at_a_slot_takes_none():
    slots = RetrySlots()
    assert [slots.look(100.0, 0.5) for _ in range(3)] == [0.5] * 3
    slots.take(100.0, 0.5, 10.0)
    assert slots.look(100.0, 0.5) == pytest.approx(0.6)
    for _ in range(1000):
        slots.take(100.0, 0.5, 10.0)
    assert slots.look(100.0, 0.5) == 60.0


def test_slots_pass_with_time_taken_or_not():
    slots = RetrySlots()
    for _ in range(50):
        slots.take(100.0, 0.5, 10.0)
    assert slots.take(104.0, 0.5, 10.0) == pytest.approx(1.5)
    assert slots.take(1000.0, 0.5, 10.0) == 0.5


def test_nobody_is_told_more_than_a_minute_and_a_crowd_beyond_it_takes_no_slots():
    slots = RetrySlots()
    told = [slots.take(100.0, 0.0, 10.0) for _ in range(10_000)]
    assert max(told) == 60.0
    assert told.count(60.0) in (10_000 - 600, 10_000 - 601)
    assert slots.take(130.0, 0.0, 10.0) == pytest.approx(30.0, abs=0.2), "what lies ahead is a minute at most"


def test_a_slot_taken_while_nothing_moves_is_forgotten_after_a_minute():
    slots = RetrySlots()
    assert slots.take(100.0, 0.0, 1e-9) == 0.0
    assert slots.take(100.0, 0.0, 1e-9) == 60.0
    assert slots.take(160.0, 0.5, 10.0) == 0.5


@each("seed", range(20))
def test_a_slot_is_what_a_list_of_all_that_were_taken_says(seed):
    random, slots, now, free = Random(seed), RetrySlots(), 0.0, 0.0
    for _ in range(300):
        now += random.choice((0.0, 0.0, 0.1, 5.0))
        lead, rate = random.choice((0.0, 0.25, 2.0)), random.choice((1.0, 10.0, 100.0))
        moment = max(free, now + lead)
        found = slots.take(now, lead, rate)
        assert found == pytest.approx(min(moment - now, 60.0)), seed
        if moment - now < 60.0:
            free = moment + 1 / rate


def test_a_time_to_come_back_is_in_whole_seconds_rounded_up_from_1_to_60():
    told = {0.0: 1, 0.2: 1, 1.0: 1, 1.001: 2, 29.5: 30, 60.0: 60, 300.0: 60}
    assert {seconds: whole_seconds(seconds) for seconds in told} == told


def test_in_milliseconds_it_is_rounded_up_from_50_to_60_000():
    told = {0.0: 50, 0.05: 50, 0.0501: 51, 1.0: 1000, 1.2341: 1235, 60.0: 60_000, 300.0: 60_000}
    assert {seconds: whole_milliseconds(seconds) for seconds in told} == told


# -- pace -------------------------------------------------------------------------------------------------------------


def test_before_anything_is_known_the_pace_is_guessed():
    assert Pace().rate(0.0) == GUESSED_RATE


def test_before_a_second_was_measured_the_runs_of_the_stages_decide():
    pace = Pace()
    pace.look(100.0, 0, saturated=True)
    pace.look(100.9, 9, saturated=False)
    assert pace.rate(40.0) == 40.0
    pace.look(101.0, 9, saturated=True)
    pace.look(101.1, 10, saturated=True)
    assert pace.rate(40.0) == pytest.approx(10.0), "ten in a second"


def test_a_quiet_hour_makes_nobody_slow():
    pace = Pace()
    pace.look(100.0, 0, saturated=True)
    pace.look(102.0, 200, saturated=False)
    pace.look(3702.0, 210, saturated=True)
    assert pace.rate(1.0) == pytest.approx(100.0)
    pace.look(3703.0, 310, saturated=True)
    assert pace.rate(1.0) == pytest.approx(100.0)


def test_a_service_that_has_become_slower_is_believed_soon():
    pace, now, ended = Pace(), 0.0, 0
    pace.look(now, ended, saturated=True)
    for rate, seconds in ((100, 60), (10, 20)):
        for _ in range(seconds):
            now, ended = now + 1.0, ended + rate
            pace.look(now, ended, saturated=True)
    assert 10.0 <= pace.rate(0.0) < 25.0


def test_a_worker_that_hangs_for_an_hour_makes_no_rate_of_nothing():
    pace, now = Pace(), 0.0
    pace.look(now, 0, saturated=True)
    for _ in range(1800):
        now += 2.0
        pace.look(now, 40, saturated=True)
    assert pace.rate(40.0) == LEAST_RATE
    assert Pace().rate(1e-9) == LEAST_RATE, "nor do runs of a night"


def test_one_that_ended_nothing_in_all_that_time_is_as_fast_as_its_runs_say():
    pace = Pace()
    pace.look(0.0, 0, saturated=True)
    pace.look(30.0, 0, saturated=True)
    assert pace.rate(7.0) == 7.0
    assert math.isfinite(pace.rate(0.0))
