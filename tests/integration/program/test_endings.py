"""Every way a request can end, caused for real and seen by its caller over HTTP; the table is in the design."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import notes_and_gates
import pytest

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


# -- too much work ---------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_full_service_refuses_at_once_and_says_when_to_come_back(two_waiting):
    server = two_waiting
    held = [hold(server), server.wire().post("/predict", {"value": 2})]
    server.until(lambda: server.health()["state"] == "busy")
    answer = server.wire().post("/predict", {"value": 3}).answer()
    found = problem(answer, 503, "overloaded")
    assert int(answer.headers["retry-after"]) == found["retry_after"] >= 1
    assert int(answer.headers["retry-after-ms"]) == found["retry_after_ms"] >= 50
    assert (answer.headers["x-should-retry"], found["reason"]) == ("true", "queue_full")
    assert server.http.get("/readyz").status_code == 200, "a busy service still takes traffic"
    server.open_gate()
    assert [wire.answer().status for wire in held] == [200, 200]
    assert server.wire().post("/predict", {"value": 4}).answer().json() == 4.0
    assert notes(server, "ran") == ["0.0", "2.0", "4.0"]
    assert server.metric("penstock_items_rejected_total", reason="queue_full") == 1


def test_a_service_that_predicts_refuses_who_would_end_too_late_and_tells_how_long_its_work_takes(serve):
    server = serve("--admission", "deadline")
    assert server.wire().post("/predict", {"value": 1}).answer().status == 200
    held = [hold(server), server.wire().post("/predict", {"value": 2}), server.wire().post("/predict", {"value": 3})]
    server.until(lambda: server.http.get("/scale").json()["in_flight"] == 3)
    # The one that runs is so late then that it is expected to take as long again.
    server.until(lambda: server.http.get("/scale").json()["backlog_seconds"] >= 1.0)
    answer = server.wire().post("/predict", {"value": 4}, X_Request_Timeout="0.9").answer()
    assert problem(answer, 503, "overloaded")["reason"] == "deadline"
    assert answer.headers["x-should-retry"] == "true"
    assert server.http.get("/scale").json()["backlog_seconds"] >= 1.0
    assert server.metric("penstock_backlog_seconds") >= 1.0
    server.open_gate()
    assert [wire.answer().status for wire in held] == [200, 200, 200]
    assert server.metric("penstock_items_rejected_total", reason="deadline") == 1
    assert server.http.get("/scale").json()["backlog_seconds"] == 0


# -- deadlines -------------------------------------------------------------------------------------


def test_an_item_whose_deadline_passes_while_it_waits_is_never_run(shared):
    server = shared
    held = [hold(server), server.wire().post("/predict", {"value": 1})]  # one runs, one is prefetched
    started = time.monotonic()
    answer = server.wire().post("/predict", {"value": 7}, X_Request_Timeout="0.3").answer()
    assert time.monotonic() - started >= 0.29
    found = problem(answer, 503, "deadline-exceeded")
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


# -- the service's own faults ----------------------------------------------------------------------


def test_what_predict_raises_is_500_with_an_id_and_the_traceback_only_in_the_log(shared):
    found = problem(shared.wire().post("/predict", {"do": "raise elsewhere"}).answer(), 500, "stage-failed")
    assert "secret" not in str(found)
    assert found["id"] == found["request_id"]
    logged = shared.wait_for(rf"(?m)^.* ERROR .*{found['id']}(.*\n)+?.*RuntimeError: the secret of row 8\n")[0]
    assert "Traceback (most recent call last)" in logged
    assert "orders.py" in logged


def test_a_worker_that_dies_twice_under_an_item_is_500_for_that_item_alone(shared):
    server = shared
    answer = server.wire().post("/predict", {"do": "die"}).answer()
    found = problem(answer, 500, "worker-lost")
    assert found["id"] == found["request_id"]
    server.wait_for(rf"ERROR .*{found['id']}")
    assert server.wire().post("/predict", {"value": 2}).answer().json() == 2.0
    assert server.metric("penstock_items_ended_total", ending="worker_lost") == 1
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
    server.wait_for("SIGTERM: shutting down, waiting")
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
