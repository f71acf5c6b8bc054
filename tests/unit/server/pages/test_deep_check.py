"""`GET /health?deep=1`: an example through every service, one check at a time, what it found told to all who ask."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from penstock.codec.example import Example
from penstock.codec.formats import Codec
from penstock.core.state import State
from penstock.errors import NotReady, Overloaded, StageFailed
from penstock.runtime.external_spec import remote


@pytest.fixture
def clock(fakes):
    return fakes.StillClock(1000.0)


@pytest.fixture
def service(fakes):
    return fakes.Service(examples=[[1.0, 2.0], [3.0]])


@pytest.fixture
def app(fakes, service, clock):
    return fakes.app(service, clock=clock)


def ask(fakes, app, query="deep=1", method="GET"):
    return fakes.call(app, method, f"/health?{query}", body=b"")


def test_the_first_example_goes_through_the_service_as_a_pickled_probe(fakes, app, service, clock):
    call = ask(fakes, app)
    assert call.replies == []
    (sent,) = service.engine.submissions
    assert pickle.loads(sent.payloads[0]) == [1.0, 2.0]
    assert sent.deadline == 1005.0
    clock.seconds = 1000.25049
    sent.settle(b"result")
    assert (call.status, call.json["deep"]) == (200, {"ok": True, "seconds": 0.25, "error": ""})
    assert call.json["services"]["echo"]["state"] == "ready"
    assert call.headers[b"cache-control"] == b"no-store"


RIGHT = msgspec.msgpack.encode([2.0, 4.0])
WRONG = msgspec.msgpack.encode([2.0, 4.5])
WORDS = "examples[0]: expected 4.0, got 4.5 at `$[1]`; floats may differ by 1e-05 of their value; "


@pytest.mark.parametrize(("payload", "status", "words"), [(RIGHT, 200, ""), (WRONG, 503, WORDS)])
def test_an_answer_that_is_not_the_one_of_the_example_is_503(fakes, payload, status, words):
    service = fakes.Service(examples=[Example([1.0, 2.0], [2.0, 4.0])])
    call = ask(fakes, fakes.app(service))
    (sent,) = service.engine.submissions
    assert (pickle.loads(sent.payloads[0]), sent.codec_out) == ([1.0, 2.0], Codec.MSGPACK)
    sent.settle(payload)
    assert call.status == status
    assert call.json["deep"]["error"].startswith(words)
    assert call.json["deep"]["ok"] is (status == 200)


def test_of_several_stages_and_of_an_answer_that_cannot_be_written_any_answer_is_well(fakes):
    unwritable = fakes.Service(examples=[Example([1.0], lambda: None)])
    several = fakes.Service(examples=[Example([1.0], [2.0])])
    several.stages = [*several.stages, *several.stages]
    for service in (unwritable, several):
        call = ask(fakes, fakes.app(service))
        service.engine.submissions[0].settle(WRONG)
        assert call.status == 200


@pytest.mark.parametrize(
    ("accepts", "codec", "status"), [(("json",), Codec.JSON, 503), (("raw",), Codec.PICKLE, 200)], ids=["json", "raw"]
)
def test_an_answer_from_outside_is_compared_where_its_format_can_be_read(fakes, accepts, codec, status):
    stage = remote("echo", item=bytes, result=bytes, accepts=accepts, examples=[Example(b"a", b"b")])
    service = fakes.Service(examples=[1])
    service.stages = [stage]
    call = ask(fakes, fakes.app(service))
    (sent,) = service.engine.submissions
    assert sent.codec_out is codec
    sent.settle(b'"Yw=="')
    assert call.status == status


def test_what_fails_is_503_with_the_first_line_of_the_error(fakes, app, service):
    call = ask(fakes, app)
    service.engine.submissions[0].settle(StageFailed("boom\nand more", stage="echo", type_name="ValueError"))
    assert call.status == 503
    assert call.json["deep"]["ok"] is False
    assert "boom" in call.json["deep"]["error"]
    assert "\n" not in call.json["deep"]["error"]


@pytest.mark.parametrize("error", [Overloaded("it is full"), NotReady("it is draining", state="draining")])
def test_a_service_that_refuses_is_not_well(fakes, app, service, error):
    service.engine.full = error
    call = ask(fakes, app)
    assert (call.status, call.json["deep"]) == (503, {"ok": False, "seconds": 0.0, "error": str(error)})


def test_a_service_that_was_not_started_is_not_well(fakes):
    call = ask(fakes, fakes.app(fakes.Service(examples=[[1.0]], started=False)))
    assert call.status == 503
    assert call.json["deep"]["error"]


def test_an_example_that_cannot_be_pickled_is_an_error_and_no_crash(fakes):
    call = ask(fakes, fakes.app(fakes.Service(examples=[lambda: None])))
    assert call.status == 503
    assert "pickle" in call.json["deep"]["error"]


def test_who_asks_while_a_check_is_under_way_waits_for_the_same_one(fakes, app, service):
    calls = [ask(fakes, app) for _ in range(3)]
    assert len(service.engine.submissions) == 1
    service.engine.submissions[0].settle(b"")
    assert [call.status for call in calls] == [200] * 3


def test_what_was_found_is_told_for_a_second(fakes, app, service, clock):
    ask(fakes, app)
    service.engine.submissions[0].settle(b"")
    clock.seconds += 0.999
    assert ask(fakes, app).status == 200
    assert len(service.engine.submissions) == 1
    clock.seconds += 0.001
    assert ask(fakes, app).replies == []
    assert len(service.engine.submissions) == 2


def test_a_failure_is_told_for_a_second_as_well(fakes, app, service, clock):
    service.engine.full = Overloaded("it is full")
    ask(fakes, app)
    service.engine.full = None
    assert ask(fakes, app).status == 503
    clock.seconds += 1.0
    ask(fakes, app)
    assert len(service.engine.submissions) == 1


def test_who_has_left_costs_the_others_nothing(fakes, app, service):
    first, second = ask(fakes, app), ask(fakes, app)
    app.cancel(first.request)
    service.engine.submissions[0].settle(b"")
    assert second.status == 200
    assert service.engine.cancelled == []


@pytest.mark.parametrize("state", State)
def test_it_is_tried_in_whatever_state(fakes, app, service, state):
    service.engine.state = state
    call = ask(fakes, app)
    service.engine.submissions[0].settle(b"")
    assert (call.status, call.json["state"]) == (200, state)


def test_of_several_services_each_is_asked_and_the_one_that_failed_is_named(fakes, clock):
    one, two = fakes.Service(name="one", examples=[[1.0]]), fakes.Service(name="two", examples=[[2.0]])
    app = fakes.app(one, two, clock=clock)
    call = ask(fakes, app)
    one.engine.submissions[0].settle(b"")
    assert call.replies == []
    two.engine.submissions[0].settle(Overloaded("it is full"))
    assert (call.status, call.json["deep"]["error"]) == (503, "two: it is full")
    clock.seconds += 1.0
    call = ask(fakes, app)
    two.engine.submissions[1].settle(b"")
    one.engine.submissions[1].settle(b"")
    assert (call.status, call.json["deep"]["ok"]) == (200, True)


def test_without_an_example_there_is_nothing_to_send(fakes):
    one, two = fakes.Service(name="one", examples=[[1.0]]), fakes.Service(name="two")
    call = ask(fakes, fakes.app(one, two))
    assert (call.status, call.refused) == (501, True)
    assert "two" in call.json["detail"]
    assert "one" not in call.json["detail"]
    assert one.engine.submissions == []


@pytest.mark.parametrize("query", ["deep=2", "deep", "deep=", "deep=1&deep=yes"])
def test_deep_is_0_or_1(fakes, app, query):
    assert ask(fakes, app, query).status == 400


@pytest.mark.parametrize("query", ["deep=0", "verbose", "deeper=1", ""])
def test_everything_else_is_answered_at_once(fakes, app, service, query):
    call = ask(fakes, app, query)
    assert call.status == 200
    assert "deep" not in call.json
    assert service.engine.submissions == []
