"""What a request is refused for at its head, and how one item goes in and its result comes out."""

from __future__ import annotations

import gc
import logging
import math
import re
import weakref

import msgspec
import pytest

from penstock.codec.formats import Codec
from penstock.core.arriving import ArrivingBody
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    InvalidItem,
    NotReady,
    Overloaded,
    RequestError,
    StageFailed,
    WorkerLost,
)
from penstock.server.application import PROBES
from penstock.server.protocols import route
from rows import each


class Thumbnail:
    def predict(self, image: bytes) -> bytes:
        return image


def test_the_body_goes_to_the_engine_as_it_came_and_the_result_comes_back_as_it_is(fakes):
    service = fakes.Service()
    call = fakes.call(fakes.app(service), body=b" [1, 2] ")
    assert not call.replies
    (submission,) = service.engine.submissions
    assert submission.payloads == [b" [1, 2] "]
    assert (submission.codec_in, submission.codec_out, submission.lane) == (Codec.JSON, Codec.JSON, Lane.SINGLE)
    submission.settle(b"[1.0,2.0]")
    assert (call.status, call.response.content_type) == (200, b"application/json")
    assert call.response.body == b"[1.0,2.0]"


def test_an_unknown_path_is_404_and_names_the_known_ones(fakes):
    call = fakes.call(fakes.app(), path="/nowhere")
    assert (call.status, call.refused) == (404, True)
    assert "/predict" in call.json["detail"]
    assert call.json["type"] == "about:blank"
    assert call.json["title"] == "Not Found"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/predict", b"POST, OPTIONS"),
        ("HEAD", "/predict", b"POST, OPTIONS"),
        ("DELETE", "/batch", b"POST, OPTIONS"),
        ("POST", "/health", b"GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_405_with_allow(fakes, method, path, allow):
    call = fakes.call(fakes.app(), method, path)
    assert (call.status, call.headers[b"allow"]) == (405, allow)


def test_connect_is_405(fakes):
    assert fakes.call(fakes.app(), "CONNECT", "example:443").status == 405


def test_several_services_each_have_their_own_paths_and_no_plain_ones(fakes):
    one, two = fakes.Service(name="one"), fakes.Service(name="two-words")
    app = fakes.app(one, two)
    fakes.call(app, path="/two-words/predict")
    fakes.call(app, path="/one/batch")
    assert (len(one.engine.submissions), len(two.engine.submissions)) == (1, 1)
    assert fakes.call(app, path="/predict").status == 404


def test_services_of_one_name_and_no_services_are_refused(fakes):
    words = r"different names, got .*: .* penstock\.Service\(.*name=.*artifact .* penstock\.export\.load\(.*name="
    with pytest.raises(ConfigError, match=words):
        fakes.app(fakes.Service(), fakes.Service())


def test_a_service_has_no_name_that_a_path_of_the_server_begins_with(fakes):
    """Each of its paths is tried, so that one more is no gap."""
    first_parts = {path.decode().split("/")[1] for path in fakes.app()._routes}
    assert {"predict", "batch", "livez", "docs", "openapi.json"} <= first_parts
    for name in first_parts:
        for services in ((fakes.Service(name=name),), (fakes.Service(name="one"), fakes.Service(name=name))):
            with pytest.raises(ConfigError) as refused:
                fakes.app(*services)
            assert str(refused.value) == (
                f"a service cannot be named {name!r}: the server itself uses the path /{name}"
            )


@pytest.mark.parametrize("given", ["a", "x" * 128, "A.b_C-9"])
def test_a_proper_request_id_is_kept(fakes, given):
    assert fakes.call(fakes.app(), x_request_id=given).request.id == given.encode()


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\n", "é", "a:b", "a, b"])
def test_an_improper_request_id_is_replaced(fakes, given):
    request_id = fakes.call(fakes.app(), x_request_id=given).request.id
    assert request_id != given.encode("latin-1")
    assert re.fullmatch(rb"[A-Za-z0-9._-]{1,128}", request_id)


def test_our_request_ids_differ_between_requests_and_between_apps(fakes):
    app = fakes.app()
    ids = {fakes.call(a).request.id for a in (app, app, fakes.app(), fakes.app())}
    assert len(ids) == 4


def test_the_id_stands_in_every_problem(fakes):
    call = fakes.call(fakes.app(), path="/nowhere", x_request_id="mine")
    assert call.json["request_id"] == "mine"


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/pickle", "application/x-python-pickle", "application/octet-stream", "json", ";",
     "application/json; charset=latin-1", "application/json, application/json"],
)  # fmt: skip
def test_a_format_that_the_stage_does_not_take_is_415_and_says_what_it_takes(fakes, content_type):
    call = fakes.call(fakes.app(), content_type=content_type)
    assert (call.status, call.refused) == (415, True)
    assert "application/json" in call.json["detail"]
    assert b"application/msgpack" in call.headers[b"accept"]


@pytest.mark.parametrize(
    ("content_type", "codec"),
    [
        ("application/json", Codec.JSON),
        ("", Codec.JSON),
        ("application/x-msgpack", Codec.MSGPACK),
    ],
)
def test_the_content_type_chooses_the_format_and_the_answer_follows_it(fakes, content_type, codec):
    service = fakes.Service()
    fakes.call(fakes.app(service), content_type=content_type)
    submission = service.engine.submissions[0]
    assert (submission.codec_in, submission.codec_out) == (codec, codec)


def test_a_bytes_stage_takes_and_gives_raw_bodies(fakes):
    service = fakes.Service(Thumbnail)
    call = fakes.call(fakes.app(service), content_type="application/octet-stream", accept="*/*", body=b"\xff")
    submission = service.engine.submissions[0]
    assert (submission.codec_in, submission.codec_out) == (Codec.RAW, Codec.RAW)
    submission.settle(b"\xfe")
    assert call.response.content_type == b"application/octet-stream"


@pytest.mark.parametrize("value", ["," * 60_000, ";" * 101, "a/b" * 20_000])
def test_format_headers_that_would_cost_much_to_take_apart_are_refused_unread(fakes, monkeypatch, value):
    def read(*_):
        raise AssertionError("it is taken apart")

    monkeypatch.setattr(route, "content_codec", read)
    monkeypatch.setattr(route, "answer_codec", read)
    app = fakes.app()
    for call, status in (
        (fakes.call(app, content_type="application/json;" + value), 415),
        (fakes.call(app, accept="*/*," + value), 406),
    ):
        assert (call.status, call.refused) == (status, True)
        assert "header is longer than 4096 bytes or has more than 100 parts" in call.json["detail"]


def test_a_refusal_repeats_no_more_of_a_content_type_than_is_of_use(fakes):
    call = fakes.call(fakes.app(), content_type="text/" + "\xff" * 4000)
    assert call.status == 415
    assert "Content-Type 'text/" in call.json["detail"]
    assert len(call.response.body) < 1000


def test_an_accept_that_names_nothing_of_ours_is_406_and_says_what_there_is(fakes):
    call = fakes.call(fakes.app(), accept="text/html, application/json;q=0")
    assert (call.status, call.refused) == (406, True)
    assert "application/msgpack" in call.json["detail"]


def test_the_answer_bears_the_name_that_the_client_used(fakes):
    service = fakes.Service()
    call = fakes.call(fakes.app(service), accept="application/x-msgpack")
    service.engine.submissions[0].settle(b"\x90")
    assert call.response.content_type == b"application/x-msgpack"


@each(
    ("accept", "media"),
    [
        ("application/msgpack", "application/msgpack"),
        ("application/x-MsgPack, application/json;q=0.5", "application/x-msgpack"),
        ("application/vnd.msgpack, */*;q=0.1", "application/vnd.msgpack"),
        ("application/msgpack, application/problem+json", "application/problem+json"),
        ("application/msgpack, application/json", "application/problem+json"),
        ("application/msgpack;q=0, */*", "application/problem+json"),
        ("*/*", "application/problem+json"),
        ("application/msgpack" + ", a/b" * 101, "application/problem+json"),
    ],
)
def test_an_error_is_messagepack_where_the_client_prefers_that(fakes, accept, media):
    service = fakes.Service()
    app = fakes.app(service)
    invalid = fakes.call(app, accept=accept)
    for submission in service.engine.submissions:  # none where the header is too long
        submission.settle(InvalidItem("no"))
    service.engine.full = Overloaded()
    full = fakes.call(app, accept=accept)
    decode = msgspec.json.decode if media.endswith("json") else msgspec.msgpack.decode
    for call in (invalid, full, fakes.call(app, path="/nowhere", accept=accept)):
        assert call.response.content_type == media.encode()
        problem = decode(call.response.body)
        assert (problem["status"], problem["request_id"]) == (call.status, call.request.id.decode())


def test_inventing_format_headers_does_not_grow_the_table_without_end(fakes):
    app = fakes.app()
    for number in range(1000):
        fakes.call(app, accept=f"application/json;v={number}")
    fakes.call(app, accept="application/json;v=" + "x" * 10_000)
    table = app._routes[b"/predict"]._formats
    assert len(table) <= 128
    assert all(len(accept) < 300 for _, accept in table)


@pytest.mark.parametrize("asked", ["0", "-1", "inf", "nan", "1_0", "soon", "", "1, 2", "1e999"])
def test_a_timeout_that_is_no_positive_number_is_400(fakes, asked):
    call = fakes.call(fakes.app(), x_request_timeout=asked)
    assert (call.status, call.refused) == (400, True)
    assert "X-Request-Timeout" in call.json["detail"]


@pytest.mark.parametrize("path", ["/predict", "/batch"])
def test_the_smallest_of_all_limits_in_the_header_counts(fakes, path):
    service = fakes.Service(timeout=5.0)
    app = fakes.app(service)
    limits = {"x_request_timeout": "4", "grpc_timeout": "3500m", "x_envoy_expected_rq_timeout_ms": "3000"}
    call = fakes.call(app, path=path, body=b"[1]" if path == "/batch" else b"1", arrived=100.0, **limits)
    assert service.engine.submissions[0].deadline == 103.0
    assert app.body_due(call.request) == 103.0


@pytest.mark.parametrize("path", ["/predict", "/batch"])
@pytest.mark.parametrize(
    ("field", "asked"), [("grpc-timeout", "1.5S"), ("grpc-timeout", "0S"), ("x-envoy-expected-rq-timeout-ms", "1s")]
)
def test_a_limit_of_a_proxy_that_cannot_be_read_is_400_and_named(fakes, path, field, asked):
    call = fakes.call(fakes.app(), path=path, **{field.replace("-", "_"): asked})
    assert (call.status, call.refused) == (400, True)
    assert call.json["detail"].startswith(f"{field} must be ")


@pytest.mark.parametrize(
    ("options", "method", "path", "asked", "seconds"),
    [
        ({}, "POST", "/predict", None, 60.0),
        ({}, "POST", "/batch", None, 60.0),
        ({}, "POST", "/predict", "2.5", 2.5),
        ({}, "POST", "/batch", "2.5", 2.5),
        ({"timeout": 1.0}, "POST", "/predict", "2.5", 1.0),
        ({"timeout": math.inf}, "POST", "/predict", None, math.inf),
        ({"timeout": 1.0}, "GET", "/health", None, 120.0),
    ],
)
def test_the_deadline_is_the_smaller_limit_from_arrival_and_the_body_is_due_then(
    fakes, options, method, path, asked, seconds
):
    service = fakes.Service(**options)
    app = fakes.app(service)
    asked = {"x_request_timeout": asked} if asked else {}
    call = fakes.call(app, method, path, body=b"[1]", arrived=1000.0, **asked)
    assert app.body_due(call.request) == 1000.0 + seconds
    assert [submission.deadline for submission in service.engine.submissions] == [1000.0 + seconds] * (method == "POST")


def test_a_full_service_refuses_at_the_head_and_says_when_to_come_back(fakes):
    service = fakes.Service()
    service.engine.refused = Overloaded(retry_after=7)
    for path in ("/predict", "/batch"):
        call = fakes.call(fakes.app(service), path=path)
        assert (call.status, call.refused, call.headers[b"retry-after"]) == (503, True, b"7")
        assert call.json["type"] == "urn:penstock:problem:overloaded"
        assert call.json["retry_after"] == 7
    assert not service.engine.submissions


@pytest.mark.parametrize(("fields", "asked"), [({"content_length": "12345"}, 12345), ({}, 0)])
def test_room_is_asked_for_as_much_as_the_head_announces(fakes, fields, asked):
    service = fakes.Service()
    fakes.call(fakes.app(service), **fields)
    assert service.engine.asked_for == asked


def test_a_service_that_is_not_ready_refuses_at_the_head(fakes):
    service = fakes.Service()
    service.engine.state = State.DRAINING
    service.engine.refused = NotReady("The service is draining.", state="draining")
    call = fakes.call(fakes.app(service))
    assert (call.status, call.headers[b"retry-after"], call.json["state"]) == (503, b"1", "draining")
    assert call.json["detail"] == "The service is draining."


def test_before_there_is_an_engine_a_call_is_503_starting(fakes):
    call = fakes.call(fakes.app(fakes.Service(started=False)))
    assert (call.status, call.json["state"]) == (503, "starting")


def test_a_service_that_fills_up_while_the_body_comes_refuses_then(fakes):
    service = fakes.Service()
    service.engine.full = Overloaded(retry_after=3)
    call = fakes.call(fakes.app(service))
    assert (call.status, call.refused, call.headers[b"retry-after"]) == (503, False, b"3")


def test_an_engine_that_went_while_the_body_came_is_503(fakes):
    service = fakes.Service()
    app = fakes.app(service)
    call = fakes.call(app)
    service.engine = None
    replies = []
    app.handle(call.request, replies.append)
    assert replies[0].status == 503


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidItem("expected `float`", path="$[0]"), 422, "invalid-item"),
        (Overloaded(retry_after=2), 503, "overloaded"),
        (DeadlineExceeded(ran=False), 503, "deadline-exceeded"),
        (DeadlineExceeded(ran=True), 504, "deadline-exceeded"),
        (StageFailed("boom", stage="echo", type_name="builtins.ValueError"), 500, "stage-failed"),
        (WorkerLost(stage="echo"), 500, "worker-lost"),
        (NotReady(state="stopped"), 503, "not-ready"),
        (Cancelled(), 499, "cancelled"),
        (RequestError(), 500, "failed"),
    ],
)
def test_every_ending_has_its_status_and_its_problem(fakes, error, status, kind):
    service = fakes.Service()
    call = fakes.call(fakes.app(service))
    service.engine.submissions[0].settle(error)
    assert (call.status, call.response.content_type) == (status, b"application/problem+json")
    problem = call.json
    assert problem["type"] == f"urn:penstock:problem:{kind}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["request_id"] == call.request.id.decode()
    assert (b"retry-after" in call.headers) == (status == 503)


def test_a_subclass_of_an_ending_has_its_status(fakes):
    class Odd(InvalidItem):
        """Odd."""

    service = fakes.Service()
    call = fakes.call(fakes.app(service))
    service.engine.submissions[0].settle(Odd())
    assert call.status == 422


@pytest.mark.parametrize(
    ("type_name", "words"),
    [
        ("builtins.ValueError", "raised an exception"),
        ("penstock.codec.encode.EncodeFailed", "returned a result that cannot be encoded"),
    ],
)
def test_a_failure_of_a_stage_says_what_the_stage_did(fakes, type_name, words):
    service = fakes.Service()
    call = fakes.call(fakes.app(service))
    service.engine.submissions[0].settle(StageFailed("secret", stage="echo", type_name=type_name))
    assert call.json["detail"] == f"Stage 'echo' {words}; the log of the server has the details under this id."


WRITTEN = "Stage 'echo' raised an exception; the log of the server has the details under this id."
COUNTED = "Stage 'echo' raised an exception; the log of the server counts it with others of the same kind."


async def test_a_failure_that_the_log_has_not_is_not_said_to_be_there(fakes, caplog):
    service = fakes.Service()
    app = fakes.app(service)
    told = []
    for n in range(30):
        call = fakes.call(app, x_request_id=f"id-{n}-")
        service.engine.submissions[-1].settle(StageFailed("boom", stage="echo", type_name="builtins.ValueError"))
        told.append(call.json["detail"])
        assert (call.json["id"] in caplog.text) == (told[-1] == WRITTEN)
    assert (told[0], set(told)) == (WRITTEN, {WRITTEN, COUNTED})
    app.problems.faults.flush()


def test_a_log_without_failures_is_not_pointed_to(fakes, caplog):
    caplog.set_level(logging.CRITICAL, "penstock.server")
    service = fakes.Service()
    call = fakes.call(fakes.app(service))
    service.engine.submissions[0].settle(StageFailed("boom", stage="echo", type_name="builtins.ValueError"))
    assert call.json["detail"] == "Stage 'echo' raised an exception."


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (InvalidItem("expected `str`, got `array`"), "expected `str`, got `array`; send a list of items to /batch"),
        (InvalidItem("expected `str`, got `array`", path="$.x"), "expected `str`, got `array`"),
        (InvalidItem("expected `str`, got `int`"), "expected `str`, got `int`"),
    ],
)
def test_who_sends_a_list_as_an_item_is_told_where_lists_go(fakes, error, detail):
    service = fakes.Service()
    call = fakes.call(fakes.app(service))
    service.engine.submissions[0].settle(error)
    assert (call.status, call.json["detail"], call.json["path"]) == (422, detail, error.path)


def test_a_reason_with_a_lone_surrogate_is_still_answered(fakes):
    service = fakes.Service()
    call = fakes.call(fakes.app(service))
    service.engine.submissions[0].settle(InvalidItem("bad \ud800", path="$.\udfff"))
    assert call.json["detail"] == "bad ?"


def test_the_traceback_of_a_stage_is_in_the_log_under_the_id_and_nowhere_else(fakes, caplog):
    service = fakes.Service()
    call = fakes.call(fakes.app(service), x_request_id="find-me")
    service.engine.submissions[0].settle(
        StageFailed(
            "secret",
            stage="echo",
            type_name="builtins.ValueError",
            traceback="Traceback …\n  line 7\nValueError: secret",
        )
    )
    assert call.json["id"] == "find-me"
    for hidden in (b"secret", b"Traceback", b"line 7", b"ValueError"):
        assert hidden not in call.response.body
    (record,) = caplog.records
    assert record.name == "penstock.server"
    assert record.levelname == "ERROR"
    assert record.request_ids == ("find-me",)
    for shown in ("find-me", "secret", "line 7", "ValueError"):
        assert shown in caplog.text
    assert caplog.text.count("secret") == 1


@pytest.mark.parametrize("error", [InvalidItem(), Overloaded(), DeadlineExceeded(), NotReady(), Cancelled()], ids=repr)
def test_what_is_no_fault_of_the_service_is_not_logged(fakes, caplog, error):
    service = fakes.Service()
    fakes.call(fakes.app(service))
    service.engine.submissions[0].settle(error)
    assert not caplog.records


def test_a_client_that_leaves_withdraws_its_item(fakes):
    service = fakes.Service()
    app = fakes.app(service)
    call = fakes.call(app)
    app.cancel(call.request)
    assert service.engine.cancelled == service.engine.submissions
    assert call.status == 499  # told to whoever still listens: exactly one reply, even so


def test_leaving_before_and_after_there_is_something_to_withdraw_is_harmless(fakes):
    service = fakes.Service()
    app = fakes.app(service)
    call = fakes.call(app)
    service.engine.submissions[0].settle(b"1")
    app.cancel(call.request)
    refused = fakes.call(app, path="/nowhere")
    app.cancel(refused.request)
    assert not service.engine.cancelled


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/predict/", b"../predict"),
        ("/health/?a=b&c=%2F", b"../health?a=b&c=%2F"),
        ("/docs/swagger-ui.css/", b"../swagger-ui.css"),
        ("/livez/?", b"../livez"),
    ],
)
def test_a_known_path_with_a_slash_behind_leads_to_the_one_without(fakes, method, asked, meant):
    call = fakes.call(fakes.app(), method, asked)
    assert (call.status, call.refused, call.headers[b"location"]) == (308, True, meant)
    assert call.json["title"] == "Permanent Redirect"


@pytest.mark.parametrize("path", ["/", "//", "/predict//", "/nowhere/", "/predict/x/", "predict/"])
def test_an_unknown_path_with_a_slash_behind_stays_unknown(fakes, path):
    assert fakes.call(fakes.app(), path=path).status == 404


def test_options_of_the_whole_server_is_answered(fakes):
    call = fakes.call(fakes.app(), "OPTIONS", "*")
    assert (call.status, call.response.body) == (204, b"")
    assert call.headers[b"allow"] == b"GET, HEAD, POST, OPTIONS"
    assert fakes.call(fakes.app(), "GET", "*").status == 404


def test_held_bytes_are_counted_by_the_service_they_belong_to(fakes):
    one, two = fakes.Service(name="one"), fakes.Service(name="two")
    app = fakes.app(one, two)
    call = fakes.call(app, path="/two/predict")
    app.hold(call.request, 1000)
    assert (one.engine.held_bytes, two.engine.held_bytes) == (0, 1000)
    app.hold(call.request, -1000)
    app.hold(None, 5)
    app.hold(fakes.call(app, path="/nowhere").request, 5)
    assert (one.engine.held_bytes, two.engine.held_bytes) == (0, 0)


@pytest.mark.parametrize("path", ["/predict", "/batch"])
@pytest.mark.parametrize("started", [True, False])
def test_bytes_go_back_to_the_engine_that_counts_them_though_the_service_was_started_again(fakes, path, started):
    service = fakes.Service(started=started)
    app = fakes.app(service)
    request = fakes.call(app, path=path).request
    app.hold(request, 1000)
    app.hold_answer(request, 500)
    before, service.engine = service.engine, fakes.Service().engine
    app.hold(request, -1000)
    app.hold_answer(request, -500)
    if before is not None:
        before.submissions[0].settle(b"1")
        assert (before.held_bytes, before.answer_bytes) == (0, 0)
    assert (service.engine.held_bytes, service.engine.answer_bytes, app._page_bytes) == (0, 0, 0)


def test_pages_that_nobody_reads_are_bounded_too_but_health_is_not(fakes):
    app = fakes.app(fakes.Service(max_queued_bytes=100))
    page = fakes.call(app, "GET", "/docs")
    app.hold(page.request, 101)
    assert fakes.call(app, "GET", "/docs").status == 503
    assert fakes.call(app, "GET", "/readyz").status == 200
    assert not fakes.call(app).replies
    app.hold(page.request, -101)
    assert fakes.call(app, "GET", "/docs").status == 200


def test_finished_answers_are_counted_by_the_service_they_belong_to(fakes):
    one, two = fakes.Service(name="one", max_queued_bytes=10), fakes.Service(name="two", max_queued_bytes=10)
    app = fakes.app(one, two, fakes.Service(name="unstarted", started=False, max_queued_bytes=10))
    mine, other = (fakes.call(app, path=f"/{name}/predict").request for name in ("one", "two"))
    app.hold_answer(mine, 10)
    assert (one.engine.answer_bytes, two.engine.answer_bytes) == (10, 0)
    assert not app.any_answers_overfull()
    app.hold_answer(mine, 1)
    assert app.any_answers_overfull()
    assert (app.answers_overfull(mine), app.answers_overfull(other), app.answers_overfull(None)) == (True, False, False)


def test_the_body_of_one_item_gets_its_piece_from_the_engine_of_its_service(fakes):
    one, two = fakes.Service(name="one"), fakes.Service(name="two")
    app = fakes.app(one, two)
    call = fakes.call(app, path="/two/predict")
    body = ArrivingBody(5000)
    assert len(app.piece_for(call.request, body)) == 5000
    assert (one.engine.arriving, two.engine.arriving) == ([], [body])
    app.arrived(call.request, body)
    assert two.engine.arriving == []


@pytest.mark.parametrize(("method", "path"), [("POST", "/batch"), ("GET", "/docs"), ("GET", "/nowhere")])
def test_what_is_no_item_as_it_came_gets_no_piece(fakes, method, path):
    service = fakes.Service()
    app = fakes.app(service)
    request = fakes.call(app, method, path, body=b"[[1.0]]").request
    assert app.piece_for(request, ArrivingBody(5000)) is None
    assert service.engine.arriving == []


def test_where_no_engine_has_given_a_piece_none_is_told(fakes):
    app = fakes.app(fakes.Service())
    app.arrived(fakes.call(app, "GET", "/docs").request, ArrivingBody(5000))


def test_once_the_engine_has_the_body_the_request_lets_go_of_it(fakes):
    service = fakes.Service()
    call = fakes.call(fakes.app(service), body=b"[1]")
    assert (service.engine.submissions[0].payloads, call.request.body) == ([b"[1]"], b"")


def test_pages_have_a_bound_of_their_own(fakes):
    service = fakes.Service(max_queued_bytes=10)
    app = fakes.app(service)
    page = fakes.call(app, "GET", "/docs").request
    app.hold_answer(page, 10)
    assert not app.any_answers_overfull()
    app.hold_answer(None, 1)
    assert app.any_answers_overfull()
    assert (app.answers_overfull(page), app.answers_overfull(None)) == (True, True)
    assert not app.answers_overfull(fakes.call(app).request)
    assert service.engine.held_bytes == 0


def test_answers_that_nobody_reads_end_no_body_in_arrival(fakes):
    service = fakes.Service(max_queued_bytes=100)
    app = fakes.app(service)
    call = fakes.call(app)
    service.engine.refused = Overloaded(retry_after=3)
    app.hold_answer(call.request, 1000)
    app.hold(call.request, 100)
    assert app.overfull(call.request, 60) is None


def test_what_the_carrier_refuses_is_a_problem_too(fakes):
    app = fakes.app()
    call = fakes.call(app, x_request_id="mine")
    response = app.refuse(413, "the request body is larger than 10 bytes (max_body_bytes)", call.request)
    assert response.status == 413
    assert b'"request_id":"mine"' in response.body
    alone = app.refuse(503, "too many connections")
    assert dict(alone.headers)[b"retry-after"] == b"1"
    assert dict(alone.headers)[b"retry-after-ms"] == b"1000"
    assert dict(alone.headers)[b"x-should-retry"] == b"true"
    assert dict(response.headers)[b"x-should-retry"] == b"false"
    assert dict(alone.headers)[b"x-request-id"] in alone.body


def test_a_refusal_before_admission_gives_the_request_an_id(fakes):
    app = fakes.app()
    request = fakes.call(app).request
    request.id = b""
    app.refuse(400, "malformed", request)
    assert request.id


def test_an_answered_request_leaves_no_cycle_behind(fakes):
    service = fakes.Service()
    app = fakes.app(service)
    gc.disable()
    try:
        call = fakes.call(app)
        ticket = service.engine.submissions.pop()
        ticket.settle(b"1")
        gone = weakref.ref(ticket)
        del call, ticket
        assert gone() is None
    finally:
        gc.enable()


def test_the_access_log_has_one_line_for_each_answer_and_no_secrets(fakes, caplog):
    caplog.set_level("INFO", "penstock.access")
    app = fakes.app(access_log=True)
    call = fakes.call(app, path="/predict?token=secret", x_api_key="secret", x_request_id="mine")
    app.answered(call.request, 499, 0)
    (record,) = caplog.records
    assert re.fullmatch(r"POST /predict 499 0 [0-9.]+ mine tenant= u=3 attempt=1 client=unknown", record.getMessage())
    assert (record.status, record.bytes, record.request_id) == (499, 0, "mine")
    assert (record.tenant, record.urgency, record.attempt) == ("", 3, 1)


@pytest.mark.parametrize(
    ("told", "attempt"),
    [("1", 1), ("3", 3), ("9999", 9999), ("10000", 1), ("-2", 1), ("2\t", 1), ("", 1), ("\u00b2", 1), ("2 u=0", 1)],
)
def test_the_access_log_has_the_try_that_the_client_says_and_nothing_else_it_says(fakes, caplog, told, attempt):
    caplog.set_level("INFO", "penstock.access")
    app = fakes.app(access_log=True)
    call = fakes.call(app, x_attempt=told)
    app.answered(call.request, 200, 5)
    (record,) = caplog.records
    assert record.attempt == attempt
    assert f" u=3 attempt={attempt} " in record.getMessage()


def test_the_access_log_has_the_client_that_a_trusted_proxy_names(fakes, caplog):
    caplog.set_level("INFO", "penstock.access")
    app = fakes.app(access_log=True, trusted_proxies=["10.0.0.0/8"])
    for peer in ("10.1.2.3", "192.0.2.7"):
        call = fakes.call(app, x_forwarded_for="198.51.100.1")
        call.request.peer = peer
        app.answered(call.request, 200, 5)
    assert [record.client for record in caplog.records] == ["198.51.100.1", "192.0.2.7"]
    assert caplog.records[0].getMessage().endswith(" client=198.51.100.1")


def test_what_the_access_log_needs_outlives_an_answer_that_waits_for_earlier_ones(fakes, caplog):
    caplog.set_level("INFO", "penstock.access")
    app = fakes.app(access_log=True, trusted_proxies=["10.0.0.0/8"])
    call = fakes.call(app, x_attempt="2", x_forwarded_for="198.51.100.1", x_other="x")
    call.request.peer = "10.1.2.3"
    call.request.forget_fields()
    assert list(call.request.headers) == [b"x-attempt", b"x-forwarded-for"]
    app.answered(call.request, 200, 5)
    assert (caplog.records[0].client, caplog.records[0].attempt) == ("198.51.100.1", 2)
    long = fakes.call(app, x_forwarded_for="198.51.100.1," * 100)
    long.request.forget_fields()
    assert long.request.headers == {}


def test_a_request_lasts_from_its_arrival_to_its_answer_on_the_apps_clock(fakes, caplog):
    caplog.set_level("INFO", "penstock.access")
    clock = fakes.StillClock(1000.0)
    app = fakes.app(access_log=True, clock=clock)
    call = fakes.call(app)
    clock.seconds = 1000.25
    app.answered(call.request, 200, 5)
    assert call.request.route.traffic.seconds.total == 0.25
    assert caplog.records[0].seconds == 0.25


def test_a_path_cannot_forge_a_line_of_the_access_log(fakes, caplog):
    caplog.set_level("INFO", "penstock.access")
    app = fakes.app(access_log=True)
    call = fakes.call(app, path="/x\r\nPOST /é")
    app.answered(call.request, 404, 0)
    assert "\n" not in caplog.records[0].getMessage()


def test_there_is_no_access_log_unless_asked_for(fakes, caplog):
    caplog.set_level("INFO", "penstock.access")
    app = fakes.app()
    app.answered(fakes.call(app).request, 200, 5)
    assert not caplog.records


def test_bodies_in_arrival_are_ended_while_more_is_held_than_may_be(fakes):
    service = fakes.Service(max_queued_bytes=100)
    app = fakes.app(service)
    call = fakes.call(app)
    service.engine.refused = Overloaded(retry_after=3)
    app.hold(call.request, 100)
    assert app.overfull(call.request, 60) is None, "no more is held than may be"
    app.hold(call.request, 1)
    assert app.overfull(call.request, 101) is None, "one body always passes"
    refusal = app.overfull(call.request, 60)
    assert refusal.status == 503
    assert dict(refusal.headers)[b"retry-after"] == b"3"
    assert b'"reason":"memory_budget"' in refusal.body
    assert (service.engine.counters.rejected, service.engine.counters.rejected_memory_budget) == (1, 1)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/health", "/openapi.json", "/docs"])
def test_a_page_takes_a_small_body_and_refuses_a_large_one_by_its_head_and_in_chunks(fakes, path):
    app = fakes.app(fakes.Service(max_queued_bytes=1))
    small = fakes.call(app, "GET", path, content_length="4096")
    assert (small.refused, small.status) == (False, 200)
    assert app.overfull(small.request, 4096) is None
    large = fakes.call(app, "GET", path, content_length="4097")
    assert (large.refused, large.status) == (True, 413)
    assert "4096 bytes" in large.json["detail"]
    chunked = fakes.call(app, "GET", path, transfer_encoding="chunked")
    assert not chunked.refused
    assert app.overfull(chunked.request, 4097).status == 413


def test_every_probe_is_a_page_of_the_server(fakes):
    app = fakes.app()
    assert {path: fakes.call(app, "GET", path.decode()).status for path in PROBES} == dict.fromkeys(PROBES, 200)
