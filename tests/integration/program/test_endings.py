"""Every way a request can end, caused for real and seen by its caller over HTTP; the table is in the design."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec
import notes_and_gates
import pytest

from night import tight

HOLD = {"do": "hold"}


def problem(answer, status, kind):
    """The problem that an answer must be; its shape is the same whatever happened."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == status
    assert found["type"] == (f"urn:penstock:problem:{kind}" if kind else "about:blank")
    assert found["title"]
    assert found["detail"]
    assert found["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.body.decode()
    return found


def hold(server, **order):
    """A request that occupies the worker until the gate opens."""
    ran = len(notes(server, "ran"))
    held = server.wire().post("/predict", {**HOLD, **order})
    server.until(lambda: len(notes(server, "ran")) > ran, "the worker to run what it was given")
    return held


def notes(server, name):
    return [str(noted) for noted in notes_and_gates.notes(server.folder / name)]


# -- the caller's fault ----------------------------------------------------------------------------


def test_invalid_input_is_422_with_where_and_why_and_no_word_in_the_log(shared):
    found = problem(shared.wire().post("/predict", {"value": "x"}).answer(), 422, "invalid-item")
    assert (found["detail"], found["path"]) == ("expected `float`, got `str`", "$.value")
    refused = problem(shared.wire().post("/predict", {"do": "refuse"}).answer(), 422, "invalid-item")
    assert refused["detail"] == "not today"
    assert "not today" not in shared.output


def test_each_invalid_item_of_a_client_batch_has_its_own_422(shared):
    answer = shared.wire().post("/batch", [{"value": 1}, {"value": "x"}, {"do": "refuse"}, {"value": 4}]).answer()
    assert answer.status == 207
    first, second, third, fourth = answer.json()["outcomes"]
    assert (first, fourth) == ({"result": 1.0}, {"result": 4.0})
    assert [second["error"]["status"], third["error"]["status"]] == [422, 422]
    assert second["error"]["path"] == "$.value"
    assert third["error"]["detail"] == "not today"
    assert second["error"]["request_id"] == answer.headers["x-request-id"]


def test_what_http_itself_refuses_is_a_problem_too(tiny):
    server = tiny
    problem(server.wire().post("/predict", b"x" * 9501).answer(), 413, "")
    problem(server.wire().send(b"GET /livez HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2000 + b"\r\n\r\n").answer(), 431, "")
    problem(server.wire().send(b"GET /livez\r\n\r\n").answer(), 400, "")
    problem(server.wire().post("/predict", b"<x/>", Content_Type="application/xml").answer(), 415, "")


# -- too much work ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "room", "status"), [("two_waiting", 2, 503), ("other_statuses", 3, 429)])
@pytest.mark.smoke
def test_a_full_service_refuses_at_once_and_says_when_to_come_back(request, kind, room, status):
    server = request.getfixturevalue(kind)
    held = [hold(server), *(server.wire().post("/predict", {"value": 2}) for _ in range(room - 1))]
    server.until(lambda: server.health()["state"] == "busy")
    answer = server.wire().post("/predict", {"value": 3}).answer()
    found = problem(answer, status, "overloaded")
    assert int(answer.headers["retry-after"]) == found["retry_after"] >= 1
    assert int(answer.headers["retry-after-ms"]) == found["retry_after_ms"] >= 50
    assert (answer.headers["x-should-retry"], found["reason"]) == ("true", "full")
    assert server.http.get("/readyz").status_code == 200, "a busy service still takes traffic"
    server.open_gate()
    assert [wire.answer().status for wire in held] == [200] * room
    assert server.wire().post("/predict", {"value": 4}).answer().json() == 4.0
    assert notes(server, "ran") == ["0.0", *["2.0"] * (room - 1), "4.0"]
    assert server.metric("penstock_items_refused_total", reason="full") == 1


def test_a_service_that_predicts_refuses_who_would_end_too_late_and_tells_how_long_its_work_takes(serve):
    server = serve("--admission", "deadline")
    assert server.wire().post("/predict", {"value": 1}).answer().status == 200
    held = [hold(server), server.wire().post("/predict", {"value": 2}), server.wire().post("/predict", {"value": 3})]
    server.until(lambda: server.http.get("/scale").json()["in_hand"] == 3)
    # The one that runs is so late then that it is expected to take as long again.
    server.until(lambda: server.http.get("/scale").json()["backlog_seconds"] >= 1.0)
    answer = server.wire().post("/predict", {"value": 4}, X_Request_Timeout="0.9").answer()
    assert problem(answer, 503, "overloaded")["reason"] == "late"
    assert answer.headers["x-should-retry"] == "true"
    assert server.http.get("/scale").json()["backlog_seconds"] >= 1.0
    assert server.metric("penstock_backlog_seconds") >= 1.0
    server.open_gate()
    assert [wire.answer().status for wire in held] == [200, 200, 200]
    assert server.metric("penstock_items_refused_total", reason="late") == 1
    assert server.http.get("/scale").json()["backlog_seconds"] == 0


def test_a_full_service_refuses_at_the_head_before_the_body(two_waiting):
    server = two_waiting
    hold(server)
    server.wire().post("/predict", {"value": 2})
    server.until(lambda: server.health()["state"] == "busy")
    wire = server.wire().send(
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    )
    problem(wire.answer(), 503, "overloaded")
    server.open_gate()


def test_a_body_that_may_never_come_in_is_413_and_not_try_again_later(shared):
    server = shared
    held = hold(server)
    wire = server.wire().send(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1099511627776\r\n\r\n")
    problem(wire.answer(), 413, "")
    server.open_gate()
    assert held.answer().status == 200


def test_the_bytes_of_waiting_items_fill_a_service_too(tiny):
    server = tiny
    held = [hold(server), server.wire().post("/predict", {"value": 2, "pad": "x" * 9000})]
    server.until(lambda: server.health()["services"]["orders"]["bytes"] > 9000)
    problem(server.wire().post("/predict", {"value": 3, "pad": "x" * 2000}).answer(), 503, "overloaded")
    server.open_gate()
    assert [wire.answer().status for wire in held] == [200, 200]


# -- deadlines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "status"), [("shared", 503), ("other_statuses", 408)])
def test_an_item_whose_deadline_passes_while_it_waits_is_never_run(request, kind, status):
    server = request.getfixturevalue(kind)
    held = [hold(server), server.wire().post("/predict", {"value": 1})]  # one runs, one is prefetched
    started = time.monotonic()
    answer = server.wire().post("/predict", {"value": 7}, X_Request_Timeout="0.3").answer()
    assert time.monotonic() - started >= 0.29
    found = problem(answer, status, "deadline-exceeded")
    assert int(answer.headers["retry-after-ms"]) == found["retry_after_ms"] >= 50
    assert answer.headers["x-should-retry"] == "true"
    server.open_gate()
    assert [wire.answer().status for wire in held] == [200, 200]
    assert server.wire().post("/predict", {"value": 9}).answer().status == 200
    assert notes(server, "ran") == ["0.0", "1.0", "9.0"]


@pytest.mark.smoke
def test_a_prefetched_item_whose_deadline_passes_is_dropped_by_its_worker(shared):
    server = shared
    held = hold(server)
    answer = server.wire().post("/predict", {"value": 7}, X_Request_Timeout="0.3").answer()
    problem(answer, 503, "deadline-exceeded")
    server.open_gate()
    assert held.answer().status == 200
    assert server.wire().post("/predict", {"value": 9}).answer().status == 200
    assert notes(server, "ran") == ["0.0", "9.0"]


def test_an_item_whose_deadline_passes_while_it_runs_is_504_at_that_moment(shared):
    server = shared
    started = time.monotonic()
    answer = server.wire().post("/predict", HOLD, X_Request_Timeout="0.3").answer()  # it cannot wait for the worker
    assert time.monotonic() - started >= 0.29
    problem(answer, 504, "deadline-exceeded")
    server.open_gate()
    assert server.metric("penstock_items_ended_total", ending="expired") == 1


def test_a_deadline_that_passes_while_an_item_runs_may_be_another_status(other_statuses):
    server = other_statuses
    answer = server.wire().post("/predict", HOLD, X_Request_Timeout="0.3").answer()
    problem(answer, 500, "deadline-exceeded")
    assert (answer.headers["x-should-retry"], answer.headers.get("retry-after")) == ("false", None)
    server.open_gate()


def test_the_result_of_an_expired_item_is_dropped_and_later_stages_are_skipped(two_stages):
    server = two_stages
    problem(server.wire().post("/predict", HOLD, X_Request_Timeout="0.3").answer(), 504, "deadline-exceeded")
    server.open_gate()
    assert server.wire().post("/predict", {"value": 5}).answer().json() == 105.0
    assert notes(server, "second") == ["5.0"]


def test_a_client_can_shorten_its_time_but_not_lengthen_it(tiny):
    server = tiny

    def seconds_until_504(asked):
        fields = {"X_Request_Timeout": asked} if asked else {}
        started = time.monotonic()
        problem(server.wire().post("/predict", HOLD, **fields).answer(), 504, "deadline-exceeded")
        return time.monotonic() - started

    assert seconds_until_504("0.2") < tight(2.0)
    server.open_gate()
    assert server.wire().post("/predict", {}).answer().status == 200, "the worker is free again"
    for asked in ("100", ""):
        (server.folder / "open").unlink()
        assert seconds_until_504(asked) > 1.9
        server.open_gate()
        server.until(server.is_idle)


@pytest.mark.parametrize("fields", [{"grpc_timeout": "300m"}, {"x_envoy_expected_rq_timeout_ms": "300"}])
def test_the_limit_of_a_proxy_ends_an_item_that_runs(shared, fields):
    server = shared
    started = time.monotonic()
    problem(server.wire().post("/predict", HOLD, **fields).answer(), 504, "deadline-exceeded")
    assert time.monotonic() - started >= 0.29
    server.open_gate()


def test_an_item_whose_limit_has_passed_when_it_comes_is_never_run(shared):
    server = shared
    for fields in ({"grpc_timeout": "1n"}, {"X_Request_Timeout": "1e-300"}):
        problem(server.wire().post("/predict", {"value": 7}, **fields).answer(), 503, "deadline-exceeded")
    assert server.wire().post("/predict", {"value": 9}).answer().status == 200
    assert notes(server, "ran") == ["9.0"]


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", ""])
def test_a_timeout_that_is_no_positive_number_is_400(shared, value):
    problem(shared.wire().post("/predict", {}, X_Request_Timeout=value).answer(), 400, "")


# -- the service's own faults ----------------------------------------------------------------------


def test_what_predict_raises_is_500_with_an_id_and_the_traceback_only_in_the_log(shared):
    found = problem(shared.wire().post("/predict", {"do": "raise"}).answer(), 500, "stage-failed")
    assert "secret" not in str(found)
    assert found["id"] == found["request_id"]
    logged = shared.wait_for(rf"(?m)^.* ERROR .*{found['id']}(.*\n)+?.*RuntimeError: the secret of row 7\n")[0]
    assert "Traceback (most recent call last)" in logged
    assert "orders.py" in logged


def test_the_id_a_client_gives_comes_back_and_stands_in_the_log(shared):
    answer = shared.wire().post("/predict", {"do": "raise"}, X_Request_ID="my-id_7.3").answer()
    assert answer.headers["x-request-id"] == "my-id_7.3"
    shared.wait_for(r"ERROR .*my-id_7\.3")


@pytest.mark.parametrize("given", ["a b", "x" * 129, "näh", "a/b", ""])
def test_an_id_that_is_none_is_replaced_by_one_of_ours(shared, given):
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nX-Request-ID: {given}\r\nContent-Length: 2\r\n\r\n{{}}"
    answer = shared.wire().send(head.encode()).answer()
    assert answer.status == 200
    assert answer.headers["x-request-id"]
    assert answer.headers["x-request-id"] != given


def test_a_failing_item_of_a_client_batch_has_an_id_of_its_own_that_the_log_knows(shared):
    answer = shared.wire().post("/batch", [{"value": 1}, {"do": "raise"}], X_Request_ID="list").answer()
    error = answer.json()["outcomes"][1]["error"]
    assert (answer.status, error["status"], error["id"]) == (207, 500, "list:1")
    assert "secret" not in answer.body.decode()
    shared.wait_for(r"ERROR .*list:1")


def test_in_a_batch_that_raises_only_the_culprit_fails(batched):
    server = batched
    held = hold(server)
    wires = [server.wire().post("/predict", {"do": do, "value": 1}) for do in ("answer", "raise", "answer", "answer")]
    server.until(lambda: server.health()["services"]["batched"]["queued"] == 5)
    server.open_gate()
    assert held.answer().status == 200
    assert [wire.answer().status for wire in wires] == [200, 500, 200, 200]
    assert server.metric("penstock_stage_bisected_batches_total") == 1


def test_a_worker_that_dies_twice_under_an_item_is_500_for_that_item_alone(shared):
    server = shared
    answer = server.wire().post("/predict", {"do": "die"}).answer()
    found = problem(answer, 500, "worker-lost")
    assert found["id"] == found["request_id"]
    server.wait_for(rf"ERROR .*{found['id']}")
    assert server.wire().post("/predict", {"value": 2}).answer().json() == 2.0
    assert server.metric("penstock_items_ended_total", ending="lost") == 1
    assert server.metric("penstock_stage_retried_items_total") == 1


def test_a_worker_that_dies_once_costs_its_item_a_second_try_and_nothing_else(shared):
    server = shared
    assert server.wire().post("/predict", {"do": "die once", "value": 3}).answer().json() == 3.0
    assert notes(server, "ran") == ["3.0", "3.0"]


def test_the_batch_mates_of_a_deadly_item_are_answered(batched):
    server = batched
    held = hold(server)
    wires = [server.wire().post("/predict", {"do": do, "value": 1}) for do in ("answer", "die", "answer", "answer")]
    server.until(lambda: server.health()["services"]["batched"]["queued"] == 5)
    server.open_gate()
    assert held.answer().status == 200
    assert [wire.answer().status for wire in wires] == [200, 500, 200, 200]


# -- not ready -------------------------------------------------------------------------------------

SLOW_TO_START = """
import time
from pathlib import Path
import penstock as ps

class Slow(ps.Stage):
    def setup(self) -> None:
        while not Path("start").exists():
            time.sleep(0.002)

    def predict(self, x: float) -> float:
        return x

service = ps.Service(Slow, name="slow")
"""

DIES_AT_START = """
import os
from pathlib import Path
import penstock as ps

class Fragile(ps.Stage):
    def setup(self) -> None:
        if Path("broken").exists():
            raise OSError("the weights are gone, from /srv/secret/path")

    def predict(self, x: float) -> float:
        if x < 0:
            Path("broken").touch()
            os._exit(3)
        return x

service = ps.Service(Fragile, name="fragile")
"""


def listens(path: Path) -> bool:
    """Whether somebody answers at `path`: the file is there a moment before its owner listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_while_the_service_starts_the_port_is_open_and_requests_are_503(serve, tmp_path):
    with_port = serve("--access-log", source=SLOW_TO_START, ready=False, where=("--uds", "socket"))
    path = with_port.folder / "socket"
    with_port.until(lambda: listens(path), "a socket that listens")
    with_port.address = f"unix:{path}"
    answer = with_port.wire().post("/predict", 1).answer()
    assert problem(answer, 503, "not-ready")["state"] == "starting"
    assert int(answer.headers["retry-after"]) >= 1
    assert with_port.http.get("/livez").status_code == 200
    assert with_port.http.get("/readyz").status_code == 503
    assert with_port.health()["state"] == "starting"
    (with_port.folder / "start").touch()
    with_port.wait_for("ready on unix:socket")
    assert with_port.http.get("/readyz").status_code == 200
    assert with_port.wire().post("/predict", 1).answer().json() == 1.0


def test_a_service_whose_workers_cannot_start_any_more_is_failed_and_says_why(serve):
    server = serve(source=DIES_AT_START)
    assert server.wire().post("/predict", 1).answer().json() == 1.0
    lost = server.wire().post("/predict", -1)
    server.until(lambda: server.health()["state"] == "failed", limit=30)
    assert lost.answer().status in (500, 503), "whoever waited is answered"
    answer = server.wire().post("/predict", 1).answer()
    assert problem(answer, 503, "not-ready")["state"] == "failed"
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()["state"]) == (503, "failed")
    assert server.http.get("/livez").status_code == 200
    assert "weights are gone" in server.health()["services"]["fragile"]["reason"]
    assert server.metric("penstock_state", state="failed") == 1


def test_while_the_service_drains_new_requests_are_503_on_open_connections(serve):
    server = serve()
    held = hold(server)
    waiting = server.wire().send(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Le")  # begun, so that it is not idle
    for _ in range(2):  # the first turn of the loop may only accept the connection, the next one reads it
        assert server.http.get("/livez").status_code == 200
    server.signal(15)
    server.wait_for("SIGTERM: draining")
    answer = waiting.send(b"ngth: 2\r\n\r\n{}").answer()
    assert problem(answer, 503, "not-ready")["state"] == "draining"
    server.open_gate()
    assert held.answer().status == 200
    assert server.wait() == 0


# -- the caller has gone ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_caller_who_leaves_takes_what_waits_along_and_is_counted_as_499(with_access_log, how):
    server = with_access_log
    held, next_in_line = hold(server), server.wire().post("/predict", {"value": 1})
    leaver = server.wire().post("/predict", {"value": 2}, X_Request_ID="leaver")
    server.until(lambda: server.health()["services"]["orders"]["queued"] == 3)
    getattr(leaver, how)()
    server.until(lambda: server.health()["services"]["orders"]["queued"] == 2, "the item to leave the queue")
    server.wait_for(r"POST /predict 499 0 \S+ leaver")
    server.open_gate()
    assert [held.answer().status, next_in_line.answer().status] == [200, 200]
    assert server.wire().post("/predict", {"value": 3}).answer().status == 200
    assert notes(server, "ran") == ["0.0", "1.0", "3.0"]
    assert server.metric("penstock_http_requests_total", status="499") == 1
    assert server.metric("penstock_items_ended_total", ending="cancelled") == 1


def test_what_a_caller_left_running_does_not_reach_the_next_stage(two_stages):
    server = two_stages
    leaver = hold(server, value=1)
    leaver.close()
    server.until(lambda: server.metric("penstock_items_ended_total", ending="cancelled") == 1)
    server.open_gate()
    assert server.wire().post("/predict", {"value": 2}).answer().json() == 102.0
    assert notes(server, "second") == ["2.0"]


@pytest.mark.smoke
def test_a_caller_who_leaves_takes_a_whole_client_batch_along(shared):
    server = shared
    held = hold(server)
    leaver = server.wire().post("/batch", [{"value": n} for n in range(50)])
    server.until(lambda: server.health()["services"]["orders"]["queued"] == 51)
    leaver.close()
    server.until(lambda: server.health()["services"]["orders"]["queued"] == 1)
    server.open_gate()
    assert held.answer().status == 200
    server.until(lambda: server.health()["services"]["orders"]["in_flight"] == 0)
    assert len(notes(server, "ran")) <= 2, "one may have been prefetched, the others must not run"


def test_the_problems_of_a_client_batch_in_messagepack_are_the_same_objects(shared):
    body = msgspec.msgpack.encode([{"value": 1}, {"value": "x"}])
    answer = shared.wire().post("/batch", body, Content_Type="application/msgpack").answer()
    assert (answer.status, answer.headers["content-type"]) == (207, "application/msgpack")
    first, second = msgspec.msgpack.decode(answer.body)["outcomes"]
    assert first == {"result": 1.0}
    assert (second["error"]["status"], second["error"]["path"]) == (422, "$.value")
