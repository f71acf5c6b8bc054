"""`/livez`, `/readyz` and `/health`."""

from __future__ import annotations

import pytest

from penstock.core.state import State
from penstock.errors import NotReady, Overloaded
from penstock.hosting.build import is_compiled


def get(fakes, app, path):
    return fakes.call(app, "GET", path)


@pytest.mark.parametrize("state", State)
def test_livez_is_200_in_every_state(fakes, state):
    service = fakes.Service()
    service.engine.state = state
    assert get(fakes, fakes.app(service), "/livez").status == 200


@pytest.mark.parametrize("state", State)
def test_readyz_is_200_for_ready_and_busy_only(fakes, state):
    service = fakes.Service()
    service.engine.state = state
    call = get(fakes, fakes.app(service), "/readyz")
    assert call.status == (200 if state in (State.READY, State.BUSY) else 503)
    assert call.json["state"] == state
    assert call.headers.get(b"retry-after") == (None if call.status == 200 else b"1")


def test_readyz_names_the_service_its_state_and_the_first_line_of_the_reason(fakes):
    good, bad = fakes.Service(name="good"), fakes.Service(name="bad")
    bad.engine.state = State.FAILED
    bad.engine.reason = "stage 'embed' cannot start: no such file\n\nTraceback: secret"
    call = get(fakes, fakes.app(good, bad), "/readyz")
    assert call.status == 503
    assert call.json["detail"] == "bad is failed: stage 'embed' cannot start: no such file"
    assert call.json["state"] == "failed"


def test_readyz_tells_to_come_again_when_the_last_service_that_is_down_may_be_up(fakes):
    services = [fakes.Service(name=f"s{n}") for n in range(4)]
    for service, seconds in zip(services, (30, 12), strict=False):
        service.engine.state = State.FAILED
        service.engine.refused = NotReady(state="failed", retry_after=seconds)
    services[2].engine.state = State.DRAINING
    services[2].engine.refused = NotReady(state="draining")
    services[3].engine.refused = Overloaded(retry_after=50)
    call = get(fakes, fakes.app(*services), "/readyz")
    assert (call.status, call.headers[b"retry-after"], call.json["retry_after"]) == (503, b"30", 30)


def test_readyz_before_there_is_an_engine_is_503_starting(fakes):
    call = get(fakes, fakes.app(fakes.Service(started=False)), "/readyz")
    assert (call.status, call.json["state"]) == (503, "starting")


@pytest.mark.parametrize("state", State)
def test_health_is_always_200_with_the_state(fakes, state):
    service = fakes.Service()
    service.engine.state = state
    call = get(fakes, fakes.app(service), "/health")
    assert (call.status, call.json["state"]) == (200, state)


def test_health_tells_what_every_service_stage_and_worker_is_doing(fakes):
    service = fakes.Service()
    service.version, service.model_version = "of-today", 7
    service.engine.queued, service.engine.held_bytes = 9, 1234
    body = get(fakes, fakes.app(service), "/health").json
    assert body["uptime"] >= 0
    assert body["version"]
    assert body["compiled"] is is_compiled()
    assert body["services"]["echo"] == {
        "state": "ready",
        "version": "of-today",
        "model_version": 7,
        "reason": "",
        "queued": 9,
        "in_flight": 2,
        "bytes": 1234,
        "stages": {
            "echo": {
                "queued": 3,
                "in_flight": 2,
                "retry_in_seconds": None,
                "workers": [{"index": 0, "state": "idle", "pid": 4711, "restarts": 2, "busy_seconds": 1.235}],
            }
        },
    }


@pytest.mark.parametrize(("left", "told"), [(None, None), (0.0, 0.0), (29.00049, 29.0)])
def test_health_tells_when_a_stage_that_rests_is_tried_again(fakes, left, told):
    service = fakes.Service()
    service.engine.stages[0].retry_in_seconds = left
    body = get(fakes, fakes.app(service), "/health").json
    assert body["services"]["echo"]["stages"]["echo"]["retry_in_seconds"] == told


def test_the_uptime_is_what_the_clock_has_gone_since_the_app_was_made(fakes):
    clock = fakes.StillClock(1000.0)
    app = fakes.app(clock=clock)
    assert get(fakes, app, "/health").json["uptime"] == 0.0
    clock.seconds = 1061.5004
    assert get(fakes, app, "/health").json["uptime"] == 61.5


def test_health_of_a_service_without_an_engine_is_starting(fakes):
    body = get(fakes, fakes.app(fakes.Service(started=False)), "/health").json
    assert body["services"]["echo"]["state"] == "starting"


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ((State.READY, State.READY), "ready"),
        ((State.READY, State.BUSY), "busy"),
        ((State.BUSY, State.STARTING), "starting"),
        ((State.STARTING, State.DRAINING), "draining"),
        ((State.DRAINING, State.FAILED), "failed"),
        ((State.READY, State.STOPPED), "stopped"),
    ],
)
def test_the_whole_is_as_well_as_its_worst_service(fakes, states, worst):
    services = [fakes.Service(name=f"s{n}") for n in range(len(states))]
    for service, state in zip(services, states, strict=True):
        service.engine.state = state
    assert get(fakes, fakes.app(*services), "/health").json["state"] == worst


def test_nobody_may_keep_a_copy_of_an_answer_about_health(fakes):
    for path in ("/livez", "/readyz", "/health", "/metrics"):
        assert get(fakes, fakes.app(), path).headers[b"cache-control"] == b"no-store"


class Part:
    """A part of the host that is as a test says."""

    name = "jobs"

    def __init__(self, unready="", stuck=""):
        self.unready, self.stuck = unready, stuck

    def unready_because(self):
        return self.unready

    def stuck_because(self):
        return self.stuck

    def describe(self):
        return {"held": 3}


def test_a_part_of_the_host_can_be_unready_while_its_services_are_ready(fakes):
    app = fakes.app(fakes.Service())
    app.health.watch(Part(unready="the store is gone\nfor long"))
    call = get(fakes, app, "/readyz")
    assert (call.status, call.json["detail"]) == (503, "the store is gone")
    assert get(fakes, app, "/livez").status == 200
    assert get(fakes, app, "/health").json["jobs"] == {"held": 3}


def test_a_process_of_which_a_part_is_stuck_is_not_alive(fakes):
    app = fakes.app(fakes.Service())
    app.health.watch(Part())
    assert get(fakes, app, "/livez").status == 200
    app.health.watch(Part(stuck="no attempt to claim has ended for 61 s"))
    call = get(fakes, app, "/livez")
    assert (call.status, call.json["detail"]) == (503, "no attempt to claim has ended for 61 s")
