"""When a stage has failed for want of workers from outside."""

from __future__ import annotations

import math

import pytest

from penstock.core.presence import Presence


def presence(grace=5.0):
    made = Presence(grace)
    made.began(10.0)
    return made


def test_a_stage_that_never_had_a_worker_waits_and_does_not_fail():
    waiting = presence()
    assert waiting.waited(22.0) == 12.0
    assert waiting.fails_at is None
    assert not waiting.failed(1000.0)


def test_before_the_start_nothing_waits():
    waiting = Presence(5.0)
    assert (waiting.waited(3.0), waiting.fails_at, waiting.failed(3.0)) == (0.0, None, False)


def test_a_stage_that_has_a_worker_waits_for_none():
    served = presence()
    served.became_ready()
    assert (served.waited(30.0), served.fails_at, served.failed(30.0)) == (0.0, None, False)


def test_a_stage_fails_when_its_last_worker_has_been_gone_for_the_grace():
    gone = presence()
    gone.became_ready()
    gone.all_gone(20.0)
    assert (gone.fails_at, gone.failed(24.9), gone.failed(25.0)) == (25.0, False, True)
    assert gone.waited(32.0) == 12.0


def test_the_time_counts_from_when_the_last_one_went():
    gone = presence()
    gone.became_ready()
    gone.all_gone(20.0)
    gone.all_gone(23.0)
    assert gone.fails_at == 25.0


def test_the_next_worker_mends_it():
    gone = presence()
    gone.became_ready()
    gone.all_gone(20.0)
    assert gone.failed(40.0)
    gone.became_ready()
    assert not gone.failed(41.0)
    gone.all_gone(50.0)
    assert gone.fails_at == 55.0


@pytest.mark.parametrize(("grace", "failed"), [(0.0, True), (math.inf, False)])
def test_the_limits_of_the_grace(grace, failed):
    gone = presence(grace)
    gone.became_ready()
    gone.all_gone(20.0)
    assert gone.failed(20.0 if failed else 1e9) is failed
