"""Counters, outcomes, states: what the rest reads."""

from __future__ import annotations

import pytest

from penstock.core.counters import REJECTED, SECONDS, SIZES, Histogram, ServiceCounters, count_refusal
from penstock.core.outcome import Failure, Result
from penstock.core.state import State, WorkerState
from penstock.errors import REFUSAL_REASONS, NotReady, Overloaded, QuotaExceeded


def test_a_value_is_counted_under_the_first_bound_it_does_not_exceed():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 7.5
    assert histogram.count == 5


def test_many_values_count_as_one_by_one():
    one, many = Histogram(SECONDS), Histogram(SECONDS)
    values = [0.0, 0.0005, 0.03, 1.0, 100.0]
    for value in values:
        one.add(value)
    many.add_many(values)
    many.add_many([])
    assert (many.counts, many.total) == (one.counts, pytest.approx(one.total))


@pytest.mark.parametrize("bounds", [SECONDS, SIZES])
def test_bounds_ascend(bounds):
    assert list(bounds) == sorted(set(bounds))


def test_refusals_are_counted_by_their_reason():
    counters = ServiceCounters()
    for reason in REFUSAL_REASONS:
        count_refusal(counters, Overloaded(reason=reason))
    count_refusal(counters, QuotaExceeded(), 3)
    count_refusal(counters, NotReady(), 5)
    found = {reason: getattr(counters, name) for reason, name in REJECTED.items()}
    assert found == {
        "queue_full": 1,
        "memory_budget": 1,
        "deadline": 1,
        "preempted": 1,
        "quota": 4,
        "memory_pressure": 1,
        "not_ready": 5,
    }
    assert counters.rejected == 14


def test_an_outcome_is_matched_as_one_of_two():
    match Result(b"x"):
        case Result(payload):
            assert payload == b"x"
    error = Overloaded()
    match Failure(error):
        case Failure(found):
            assert found is error
    assert repr(Result(b"x")) == "Result(b'x')"
    assert repr(Failure(error)) == f"Failure({error!r})"


def test_only_ready_and_busy_take_traffic():
    assert {state for state in State if state.serving} == {State.READY, State.BUSY}


def test_a_stalled_service_takes_what_comes_though_no_traffic_should():
    assert {state for state in State if state.accepting} == {State.READY, State.BUSY, State.STALLED}


def test_states_are_their_names():
    names = ["starting", "ready", "busy", "failed", "stalled", "draining", "stopped"]
    assert [str(state) for state in State] == names
    assert [str(state) for state in WorkerState] == ["starting", "idle", "busy", "leaving", "down"]
