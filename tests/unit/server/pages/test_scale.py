"""`/scale`."""

from __future__ import annotations

import pytest

from penstock.core.state import State, WorkerState


def scale(fakes, *services):
    call = fakes.call(fakes.app(*services), "GET", "/scale")
    assert (call.status, call.headers[b"cache-control"]) == (200, b"no-store")
    return call.json


def test_it_has_what_something_outside_scales_by(fakes):
    service = fakes.Service(max_in_flight=64)
    service.engine.queued, service.engine.backlog_seconds = 9, 1.23456
    assert scale(fakes, service) == {
        "state": "ready",
        "backlog_seconds": 1.235,
        "in_flight": 9,
        "max_in_flight": 64,
        "workers_up": 1,
    }


@pytest.mark.parametrize(("state", "up"), [("idle", 1), ("busy", 1), ("starting", 0), ("down", 0)])
def test_a_worker_is_up_that_can_run_batches(fakes, state, up):
    service = fakes.Service()
    service.engine.stages[0].workers[0].state = WorkerState(state)
    assert scale(fakes, service)["workers_up"] == up


def test_several_services_are_as_bad_and_as_late_as_the_worst_of_them_and_as_large_as_all(fakes):
    one, two = fakes.Service(name="one", max_in_flight=10), fakes.Service(name="two", max_in_flight=20)
    one.engine.state, two.engine.state = State.BUSY, State.READY
    one.engine.queued, two.engine.queued = 3, 4
    one.engine.backlog_seconds, two.engine.backlog_seconds = 0.5, 7.0
    found = scale(fakes, one, two)
    assert found == {"state": "busy", "backlog_seconds": 7.0, "in_flight": 7, "max_in_flight": 30, "workers_up": 2}


def test_before_there_is_an_engine_nothing_is_in_hand(fakes):
    found = scale(fakes, fakes.Service(started=False, max_in_flight=5))
    assert found == {"state": "starting", "backlog_seconds": 0.0, "in_flight": 0, "max_in_flight": 5, "workers_up": 0}
