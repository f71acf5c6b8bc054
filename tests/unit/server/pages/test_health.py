"""`/livez`, `/readyz` and `/health`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.formats import Codec
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady, Overloaded
from penstock.hosting.build import is_compiled
from penstock.runtime.spec import External
from penstock.server.protocols.route import PageRoute


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
                "max_size": 32,
                "devices_lost": 0,
                "progress_age_seconds": 0.0,
                "retry_in_seconds": None,
                "workers": [
                    {
                        "index": 0,
                        "state": "idle",
                        "remote": False,
                        "language": "",
                        "pid": 4711,
                        "gpus": [2],
                        "restarts": 2,
                        "busy_seconds": 1.235,
                        "reason": "",
                    }
                ],
            }
        },
    }


def test_health_tells_of_a_worker_that_attached_what_it_is(fakes):
    service = fakes.Service(External((Codec.JSON,), Any, Any))
    (worker,) = service.engine.stages[0].workers
    worker.language = "node 20\x1b[2J"
    (shown,) = get(fakes, fakes.app(service), "/health").json["services"]["echo"]["stages"]["echo"]["workers"]
    assert (shown["remote"], shown["language"], shown["pid"]) == (True, "node 20\\x1b[2J", 4711)
    worker.language = ""  # a worker of the old protocol says nothing of itself
    (shown,) = get(fakes, fakes.app(service), "/health").json["services"]["echo"]["stages"]["echo"]["workers"]
    assert (shown["remote"], shown["language"]) == (True, "")


def test_a_stage_that_no_worker_has_attached_to_is_shown_without_any(fakes):
    service = fakes.Service(External((Codec.JSON,), Any, Any))
    service.engine.stages[0].workers = []
    service.engine.state, service.engine.reason = State.STARTING, "echo waits for a remote worker, 12 s"
    app = fakes.app(service)
    assert get(fakes, app, "/health").json["services"]["echo"]["stages"]["echo"]["workers"] == []
    assert get(fakes, app, "/scale").json["workers_up"] == 0
    ready = get(fakes, app, "/readyz")
    assert ready.status == 503
    assert "echo waits for a remote worker, 12 s" in ready.response.body.decode()
    metrics = get(fakes, app, "/metrics").response.body.decode()
    assert 'penstock_stage_workers{service="echo",stage="echo",state="idle"} 0.0' in metrics
    assert 'penstock_stage_workers_up{service="echo",stage="echo"} 0.0' in metrics


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
        ((State.STOPPED, State.STALLED), "stalled"),
        ((State.STALLED, State.FAILED), "failed"),
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


@pytest.mark.parametrize("path", ["/readyz", "/health_check"])
@pytest.mark.parametrize("state", State)
def test_a_full_service_is_unready_where_that_is_asked_for(fakes, state, path):
    service = fakes.Service()
    service.engine.state = state
    call = get(fakes, fakes.app(service, unready_when_full=True, health_path="/health_check"), path)
    assert call.status == (200 if state is State.READY else 503)


def test_a_probe_takes_no_place_in_the_line_of_those_who_are_refused(fakes):
    service = fakes.Service()
    service.engine.refused = Overloaded(retry_after=50)
    app = fakes.app(service, unready_when_full=True)
    for state in (State.BUSY, State.STALLED):
        service.engine.state = state
        call = get(fakes, app, "/readyz")
        assert (call.status, call.json["state"], call.headers[b"retry-after"]) == (503, state, b"1")


# -- the path of the option --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "status", "word"),
    [
        (State.STARTING, 503, "starting"),
        (State.READY, 200, "ready"),
        (State.BUSY, 200, "busy"),
        (State.FAILED, 503, "failed"),
        (State.STALLED, 503, "failed"),
        (State.DRAINING, 503, "draining"),
        (State.STOPPED, 503, "draining"),
    ],
)
def test_the_health_path_says_it_in_one_of_five_words(fakes, state, status, word):
    service = fakes.Service()
    service.engine.state = state
    call = get(fakes, fakes.app(service, health_path="/health_check"), "/health_check")
    assert (call.status, call.json, call.headers) == (status, {"status": word}, {b"cache-control": b"no-store"})


def test_the_health_path_tells_of_the_worst_service(fakes):
    well, starting = fakes.Service(name="well"), fakes.Service(name="starting", started=False)
    call = get(fakes, fakes.app(well, starting, health_path="/status"), "/status")
    assert (call.status, call.json) == (503, {"status": "starting"})


def test_the_health_path_needs_no_key_and_answers_while_pages_lie_unread(fakes, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    app = fakes.app(health_path="/health_check", api_key_file=str(keys))
    app.hold_answer(None, 10**12)
    assert get(fakes, app, "/health_check").status == 200
    assert fakes.call(app, "HEAD", "/health_check").status == 200
    assert get(fakes, app, "/health").status == 401


def test_without_the_option_there_is_no_such_path(fakes):
    assert get(fakes, fakes.app(), "/health_check").status == 404


@pytest.mark.parametrize("path", ["/livez", "/health", "/predict", "/docs", "/openapi.json"])
def test_a_health_path_that_is_in_use_is_refused(fakes, path):
    with pytest.raises(ConfigError, match=f"^health_path cannot be {path}: the server already uses this path"):
        fakes.app(health_path=path)


def test_a_health_path_that_fits_a_path_with_variables_is_in_use(fakes):
    others = [PageRoute("/jobs/{id}", lambda _: None, None)]
    with pytest.raises(ConfigError, match="cannot be /jobs/7"):
        fakes.app(health_path="/jobs/7", others=others)


def test_a_health_path_may_lie_below_the_path_of_a_service(fakes):
    app = fakes.app(fakes.Service(name="a"), fakes.Service(name="b"), health_path="/a/health")
    assert get(fakes, app, "/a/health").status == 200
    assert fakes.call(app, path="/a/predict").replies == []
    with pytest.raises(ConfigError, match="cannot be /a/predict"):
        fakes.app(fakes.Service(name="a"), fakes.Service(name="b"), health_path="/a/predict")


def test_the_document_has_the_health_path(fakes):
    document = get(fakes, fakes.app(health_path="/a/b"), "/openapi.json").json
    assert document["paths"]["/a/b"]["get"]["security"] == []


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


@pytest.mark.parametrize("why", ["unready", "stuck"])
def test_a_part_that_is_unready_or_stuck_is_failed_at_the_health_path(fakes, why):
    service = fakes.Service()
    app = fakes.app(service, health_path="/status")
    app.health.watch(Part(**{why: "the store is gone"}))
    assert (get(fakes, app, "/status").status, get(fakes, app, "/status").json) == (503, {"status": "failed"})
    service.engine.state = State.DRAINING
    assert get(fakes, app, "/status").json == {"status": "draining"}


def test_a_process_of_which_a_part_is_stuck_is_not_alive(fakes):
    app = fakes.app(fakes.Service())
    app.health.watch(Part())
    assert get(fakes, app, "/livez").status == 200
    app.health.watch(Part(stuck="no claim has finished for 61 s"))
    call = get(fakes, app, "/livez")
    assert (call.status, call.json["detail"]) == (503, "no claim has finished for 61 s")


# -- a stage that gives nothing back -----------------------------------------------------------------------------------


def test_livez_ends_once_a_stage_has_given_nothing_back_for_stall_dead(fakes):
    well, stalled = fakes.Service(name="well"), fakes.Service(name="slow", liveness_deadline=100.0)
    well.engine.stages[0].progress_age = 1e6
    stalled.engine.stages[0].progress_age = 99.9
    app = fakes.app(well, stalled, fakes.Service(name="new", started=False))
    assert get(fakes, app, "/livez").status == 200
    stalled.engine.stages[0].progress_age = 100.0
    call = get(fakes, app, "/livez")
    words = "slow: stage 'echo' has work, but has completed no batch for 100 s"
    assert (call.status, call.json["detail"]) == (503, words)
