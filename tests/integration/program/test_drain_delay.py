"""With `--drain-delay`: who asks is told to go elsewhere, and everything is answered as before, for a while."""

from __future__ import annotations

import re
import signal

import pytest
from served import PATIENCE_SECONDS, PENSTOCK, START_LIMIT, write_module
from terminal_programs import Terminal
from waiting import until_now

LONG = "600"
"""Seconds: it is never over while a test looks."""


def test_who_asks_is_told_at_once_and_requests_are_answered_as_before(serve):
    server = serve("--drain-delay", LONG, "--health-path", "/status")
    old = server.wire().post("/predict", {"value": 1})
    assert "connection" not in old.answer().headers
    server.signal(signal.SIGTERM)
    server.wait_for(
        "SIGTERM: shutting down, accepting requests for 600 s more, 0 in flight; a second signal forces exit"
    )
    ready = server.wire().send(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").answer()
    assert (ready.status, ready.headers["connection"]) == (503, "close")
    assert (ready.json()["type"], ready.json()["state"]) == ("urn:penstock:problem:not-ready", "draining")
    assert server.http.get("/status").json() == {"status": "draining"}
    health = server.health()
    assert (health["state"], health["services"]["orders"]["state"]) == ("draining", "draining")
    assert server.metric("penstock_state", service="orders", state="draining") == 1.0
    for wire in (old, server.wire()):
        answer = wire.post("/predict", {"value": 2}).answer()
        assert (answer.status, answer.json(), answer.headers["connection"]) == (200, 2.0, "close")
        assert wire.ended()
    server.signal(signal.SIGQUIT)
    assert server.wait() == 128 + signal.SIGQUIT


def test_after_the_delay_the_door_is_closed_and_what_is_in_hand_is_finished(serve):
    server = serve("--drain-delay", "0.3")
    idle = server.wire()
    held = server.wire().post("/predict", {"do": "hold", "value": 1})
    server.until((server.folder / "ran").exists)
    server.signal(signal.SIGTERM)
    server.wait_for("SIGTERM: shutting down, waiting up to 30 s for 1 in flight; a second signal forces exit")
    assert idle.ended()
    with pytest.raises(ConnectionRefusedError):
        server.wire()
    server.open_gate()
    assert held.answer().json() == 1.0
    assert server.wait() == 0
    assert re.search(
        r"(?s)shutting down, accepting requests for 0\.3 s more, 1 in flight.*shutting down, waiting up to 30 s",
        server.output,
    )


def test_who_has_never_been_ready_does_not_wait(serve):
    server = serve("--drain-delay", LONG, source=SETS_UP, ready=False)
    server.until((server.folder / "setting up").exists)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "accepting" not in server.output


SETS_UP = """
import time
from pathlib import Path
import penstock as ps

class Slow(ps.Stage):
    def setup(self) -> None:
        Path("setting up").touch()
        time.sleep(600)

    def predict(self, x: float) -> float:
        return x

service = ps.Service(Slow)
"""


def test_on_a_terminal_one_line_tells_how_the_end_goes(tmp_path):
    name = write_module(
        tmp_path, "import penstock as ps\n\ndef same(x: int) -> int:\n    return x\n\nservice = ps.Service(same)\n"
    )
    terminal = Terminal(tmp_path, *PENSTOCK, "serve", name, "--uds", "socket", "--drain-delay", LONG)
    try:
        until_now(lambda: b"ready on" in terminal.written, "ready", START_LIMIT, lambda: str(terminal.rows))
        terminal.process.send_signal(signal.SIGTERM)
        line = rb"penstock: shutting down, accepting requests for 59[0-9] s more, 0 in flight"
        until_now(
            lambda: len(set(re.findall(line, terminal.written))) >= 2,
            "a line that changes",
            context=lambda: str(terminal.rows),
        )
        assert len([row for row in terminal.rows if row.startswith("penstock: shutting down, accepting")]) == 1
        terminal.process.send_signal(signal.SIGQUIT)
        assert terminal.process.wait(PATIENCE_SECONDS) == 128 + signal.SIGQUIT
    finally:
        terminal.end()
