"""What the log has of the end of a run, in a time that a test moves."""

from __future__ import annotations

import math

import pytest

from penstock.hosting.drain_lines import phase_told
from penstock.testing.virtual_clock import VirtualClock

WAITING = "shutting down, waiting up to %s for %d in flight"
ACCEPTING = "shutting down, accepting requests for %s more, %d in flight"


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def told(caplog):
    caplog.set_level("INFO", "penstock.server")
    return lambda: [record.getMessage() for record in caplog.records]


async def test_a_phase_is_told_when_it_begins_and_every_ten_seconds(clock, told):
    in_hand = [12]
    with phase_told(WAITING, 25.0, in_hand.pop, clock, why="SIGTERM", shows=False):
        assert told() == ["SIGTERM: shutting down, waiting up to 25 s for 12 in flight; a second signal forces exit"]
        in_hand.append(7)
        await clock.advance(10.0)
        in_hand.append(2)
        await clock.advance(10.0)
    assert told()[1:] == [
        ("shutting down, waiting up to 15 s for 7 in flight"),
        "shutting down, waiting up to 5 s for 2 in flight",
    ]
    assert clock.waiting == []


async def test_a_phase_that_nobody_asked_for_begins_without_a_line(clock, told):
    with phase_told(WAITING, 0.5, lambda: 1, clock, why="", shows=False):
        assert told() == []
        await clock.advance(10.0)
    assert told() == ["shutting down, waiting up to 0 s for 1 in flight"]


async def test_a_phase_without_an_end_and_a_short_one_are_told_in_words(clock, told):
    for seconds in (math.inf, 0.25, 90.0):
        with phase_told(ACCEPTING, seconds, lambda: 0, clock, why="SIGINT", shows=True):
            pass
    assert [line.partition(": ")[2].partition(", ")[2].partition(",")[0] for line in told()] == [
        "accepting requests for an unlimited time more",
        "accepting requests for 0.25 s more",
        "accepting requests for 90 s more",
    ]
