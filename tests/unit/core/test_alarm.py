"""An alarm rings once, at the earliest moment it was set to; a call that is due is forgotten with its block."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest

from penstock.core.alarm import Alarm
from penstock.core.clock import FOREVER_SECONDS, calling_later
from penstock.testing.virtual_clock import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock(start=100.0)


@pytest.fixture
def rings():
    return []


@pytest.fixture(params=[False, True], ids=["usual", "fine"])
def alarm(clock, rings, request):
    return Alarm(clock, lambda: rings.append(clock.now()), fine=request.param)


async def test_an_alarm_rings_once_at_its_moment(alarm, clock, rings):
    alarm.set(103.0)
    assert clock.waiting == [3.0]
    await clock.advance(2.999)
    assert rings == []
    await clock.advance(10.0)
    assert rings == [103.0]
    assert clock.waiting == []


@pytest.mark.parametrize("later", [105.0, 110.0, math.inf, None])
async def test_the_earlier_moment_stands(alarm, clock, rings, later):
    alarm.set(105.0)
    (timer,) = clock.waiting
    alarm.set(later)
    assert clock.waiting == [timer]
    alarm.set(102.0)
    alarm.set(later)
    assert clock.waiting == [2.0]
    await clock.advance(20.0)
    assert rings == [102.0]


async def test_a_moment_that_has_passed_is_now(alarm, clock, rings):
    alarm.set(99.0)
    assert clock.waiting == [0.0]
    await clock.advance(0.0)
    assert rings == [100.0]


async def test_an_alarm_that_rang_or_was_cancelled_can_be_set_again(alarm, clock, rings):
    alarm.set(101.0)
    await clock.advance(1.0)
    alarm.set(105.0)
    alarm.cancel()
    alarm.cancel()
    assert clock.waiting == []
    alarm.set(108.0)
    await clock.advance(10.0)
    assert rings == [101.0, 108.0]


async def test_an_alarm_may_be_set_by_what_it_rings_for(clock):
    rings = []

    def ring() -> None:
        rings.append(clock.now())
        if len(rings) < 3:
            alarm.set(clock.now() + 2.0)

    alarm = Alarm(clock, ring)
    alarm.set(101.0)
    await clock.advance(60.0)
    assert rings == [101.0, 103.0, 105.0]


@pytest.mark.parametrize("moment", [None, math.inf])
def test_no_moment_sets_no_timer(alarm, clock, moment):
    alarm.set(moment)
    assert clock.waiting == []


async def test_a_call_is_due_only_inside_its_block(clock, rings):
    with calling_later(clock, 2.0, lambda: rings.append("rang")):
        await clock.advance(2.0)
    assert rings == ["rang"]
    with suppress(KeyError), calling_later(clock, 2.0, lambda: rings.append("again")):
        assert clock.waiting == [2.0]
        raise KeyError
    assert clock.waiting == []


@pytest.mark.parametrize(("delay", "timers"), [(FOREVER_SECONDS, 1), (FOREVER_SECONDS * 1.01, 0), (math.inf, 0)])
def test_a_delay_of_a_generation_never_ends(clock, delay, timers):
    with calling_later(clock, delay, list):
        assert len(clock.waiting) == timers
