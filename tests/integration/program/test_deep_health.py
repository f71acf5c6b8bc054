"""`GET /health?deep=1` with real workers: an example comes back, or does not, and who asks is always answered."""

from __future__ import annotations

import os
import signal

import pytest
from served import request

GATE = """
from pathlib import Path

from notes_and_gates import note, wait_for

import penstock as ps


class Gate(ps.Stage):
    examples = [4.0, 9.0]

    def predict(self, x: float) -> float:
        note("ran", x)
        if Path("shut").exists():
            wait_for(Path("open"))
        if x == 4.0 and Path("broken").exists():
            raise RuntimeError("the lamp is out")
        return x + 1


class Double(ps.Stage):
    def predict(self, x: float) -> float:
        return x * 2


service = ps.Service(ps.stage(Gate, workers=1), ps.stage(Double, workers=1), name="gate")
"""


def deep(server):
    return server.http.get("/health?deep=1")


def test_an_example_comes_back_through_all_stages(serve):
    server = serve(source=GATE)
    found = deep(server)
    assert found.status_code == 200, found.text
    assert found.json()["deep"]["ok"] is True
    assert found.json()["deep"]["error"] == ""
    assert 0 <= found.json()["deep"]["seconds"] < 5
    assert server.metric("penstock_items_ended_total", ending="succeeded") == 1
    (server.folder / "broken").touch()
    server.until(lambda: deep(server).status_code == 503, "the next check")
    assert "the lamp is out" in deep(server).json()["deep"]["error"]


def test_a_worker_that_hangs_is_found_within_its_five_seconds(serve):
    server = serve(source=GATE)
    (worker,) = server.health()["services"]["gate"]["stages"]["Gate"]["workers"]
    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        found = deep(server)
    finally:
        os.kill(worker["pid"], signal.SIGCONT)
    assert found.status_code == 503
    assert found.json()["deep"]["ok"] is False
    assert 5 <= found.json()["deep"]["seconds"] < 10


@pytest.mark.parametrize(("drain", "status"), [("10", 200), ("0", 503)])
def test_a_server_that_drains_meanwhile_answers_it_all_the_same(serve, drain, status):
    server = serve("--drain-timeout", drain, source=GATE)
    (server.folder / "shut").touch()
    ran = (server.folder / "ran").read_text().count("4")
    left = server.wire().send(request("GET", "/health?deep=1", b""))
    stays = server.wire().send(request("GET", "/health?deep=1", b""))
    server.until(lambda: (server.folder / "ran").read_text().count("4") > ran)
    left.drop()
    server.signal(signal.SIGTERM)
    if status == 200:
        server.wait_for("shutting down, waiting")
        server.open_gate()
    answer = stays.answer()
    assert (answer.status, answer.json()["deep"]["ok"]) == (status, status == 200)
    assert server.wait() == 0
