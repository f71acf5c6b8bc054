"""Faults that are caused on purpose: which calls get them, what their answers say, and what is left alone."""

from __future__ import annotations

from functools import partial

import pytest

from penstock.core.state import State
from penstock.errors import DeadlineExceeded, NotReady
from penstock.server.application import DROPPED
from penstock.testing.virtual_clock import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def service(fakes):
    return fakes.Service(examples=[[1.0]])


def test_without_the_option_nothing_is_touched(fakes, service, caplog):
    service.engine.answer = bytes
    app = fakes.app(service)
    assert b"x-chaos" not in fakes.call(app).headers
    assert "chaos" not in fakes.call(app, "GET", "/health").json
    assert "chaos" not in caplog.text


def test_the_start_warns_and_health_says_what_is_on(fakes, service, caplog):
    app = fakes.app(service, chaos="error=1,seed=3")
    assert [(r.levelname, r.getMessage()) for r in caplog.records if "chaos" in r.getMessage()] == [
        ("WARNING", "chaos is enabled, and causes faults in requests: seed=3,error=1")
    ]
    assert fakes.call(app, "GET", "/health").json["chaos"] == "seed=3,error=1"


@pytest.mark.parametrize("path", ["/predict", "/batch"])
def test_a_call_that_fails_is_a_500_of_its_own_kind(fakes, service, path):
    call = fakes.call(fakes.app(service, chaos="error=1"), path=path)
    assert (call.status, call.json["type"]) == (500, "urn:penstock:problem:chaos")
    assert call.headers[b"x-chaos"] == b"error"
    assert call.headers[b"x-should-retry"] == b"false"
    assert service.engine.submissions == []


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/openapi.json"])
def test_pages_are_left_alone(fakes, service, path):
    call = fakes.call(fakes.app(service, chaos="error=1,drop=1,delay=1:9"), "GET", path)
    assert call.status == 200
    assert b"x-chaos" not in call.headers


async def test_a_delay_comes_before_the_call(fakes, service, clock):
    service.engine.answer = bytes
    call = fakes.call(fakes.app(service, clock=clock, chaos="delay=1:0.5"))
    await clock.advance(0.4)
    assert (service.engine.submissions, call.replies) == ([], [])
    await clock.advance(0.1)
    assert (call.status, call.headers[b"x-chaos"]) == (200, b"delay")


async def test_a_delay_ends_at_the_deadline_of_its_call(fakes, service, clock):
    call = fakes.call(fakes.app(service, clock=clock, chaos="delay=1:3600"), x_request_timeout="2")
    await clock.advance(1.9)
    assert (service.engine.submissions, call.replies) == ([], [])
    await clock.advance(0.1)
    (sent,) = service.engine.submissions
    assert sent.deadline == clock.now()
    sent.settle(DeadlineExceeded())
    assert (call.status, call.headers[b"x-chaos"]) == (503, b"delay")


@pytest.mark.parametrize("state", [State.DRAINING, State.STOPPED, State.FAILED, None])
async def test_a_delay_ends_when_the_service_takes_no_calls_any_more(fakes, service, clock, state):
    call = fakes.call(fakes.app(service, clock=clock, chaos="delay=1:3600"))
    await clock.advance(20.0)
    assert call.replies == []
    if state is None:
        service.engine = None
    else:
        service.engine.state = state
        service.engine.full = NotReady("it drains", state=state)
    await clock.advance(0.2)
    assert (call.status, call.headers[b"x-chaos"]) == (503, b"delay")
    assert clock.waiting == []


async def test_a_delay_may_end_with_an_error(fakes, service, clock):
    call = fakes.call(fakes.app(service, clock=clock, chaos="delay=1:0.5,error=1"))
    await clock.advance(0.5)
    assert (call.status, call.headers[b"x-chaos"]) == (500, b"delay, error")


async def test_who_leaves_during_a_delay_is_forgotten(fakes, service, clock):
    app = fakes.app(service, clock=clock, chaos="delay=1:0.5")
    call = fakes.call(app)
    app.cancel(call.request)
    assert clock.waiting == []
    await clock.advance(1.0)
    assert (service.engine.submissions, call.replies) == ([], [])


async def test_who_leaves_later_is_withdrawn(fakes, service, clock):
    app = fakes.app(service, clock=clock, chaos="error=0.0,delay=0:1")
    call = fakes.call(app)
    app.cancel(call.request)
    assert service.engine.cancelled == service.engine.submissions != []


async def test_a_call_that_is_dropped_gets_nothing_else(fakes, service, clock):
    call = fakes.call(fakes.app(service, clock=clock, chaos="drop=1,error=1,delay=1:5"))
    await clock.advance(0.0)
    assert call.replies == [DROPPED]
    assert service.engine.submissions == []


def test_the_same_seed_touches_the_same_calls(fakes):
    def run(seed):
        service = fakes.Service()
        service.engine.answer = bytes
        app = fakes.app(service, chaos=f"seed={seed},error=0.3")
        return [fakes.call(app).status for _ in range(50)]

    assert run(7) == run(7) != run(8)
    assert set(run(7)) == {200, 500}


def test_the_worker_of_a_batch_is_killed_and_the_answer_says_so(fakes, service):
    app = fakes.app(service, chaos="kill=1")
    call = fakes.call(app, x_request_id="mine")
    killed = []
    service.engine.on_sent(lambda: killed.append("worker"), [b"mine", b""])
    assert killed == ["worker"]
    service.engine.submissions[0].settle(b"1")
    assert (call.status, call.headers[b"x-chaos"]) == (200, b"kill")
    assert not app._chaos._killed


def test_who_has_left_is_not_kept(fakes, service):
    app = fakes.app(service, chaos="kill=1")
    call = fakes.call(app, x_request_id="mine")
    app._chaos._killed.add(b"mine")
    app.cancel(call.request)
    assert not app._chaos._killed


def test_batches_of_others_and_threads_are_left_alone(fakes, service):
    app = fakes.app(service, chaos="kill=1")
    fakes.call(app)
    killed = []
    kill = partial(killed.append, "worker")
    for struck, ids in ((kill, [b"", b""]), (kill, []), (None, [b"mine"])):
        service.engine.on_sent(struck, ids)
    assert killed == []
    assert not app._chaos._killed


def test_each_engine_of_a_service_is_watched(fakes, service):
    app = fakes.app(service, chaos="kill=0.5")
    fakes.call(app)
    first = service.engine.on_sent
    service.engine.on_sent = None
    fakes.call(app)
    assert service.engine.on_sent is None, "it is watched already"
    service.engine = type(service.engine)(service.options)
    fakes.call(app)
    assert service.engine.on_sent == first
