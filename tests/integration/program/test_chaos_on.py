"""`penstock serve --chaos` with real workers: every call has the right answer, or one that says what was done to it."""

from __future__ import annotations

import signal

import httpx
import pytest
from served import request

CALLS = 150


def test_every_call_is_answered_rightly_or_told_or_dropped(serve):
    chaos = "seed=7,error=0.1,delay=0.1:0.05,kill=0.05,drop=0.05"
    server = serve("--chaos", chaos, services=("two_workers",))
    server.wait_for(f"chaos is enabled, and causes faults in requests: {chaos}")
    assert server.health()["chaos"] == chaos
    found = {}
    for n in range(CALLS):
        try:
            answer = server.http.post("/predict", json={"value": n})
        except (httpx.RemoteProtocolError, httpx.ReadError):
            found[n] = "drop"
            continue
        touched = found[n] = answer.headers.get("x-chaos", "")
        if answer.status_code == 200:
            assert answer.json() == n
        else:
            problem = answer.json()
            kind = "worker-lost" if "kill" in touched else "chaos"
            assert (problem["status"], problem["type"]) == (500, f"urn:penstock:problem:{kind}")
    words = set(", ".join(found.values()).split(", "))
    assert words == {"", "drop", "error", "delay", "kill"}
    restarts = sum(worker["restarts"] for worker in server.health()["services"]["pairs"]["stages"]["Obey"]["workers"])
    assert restarts >= 1
    server.until(lambda: server.http.get("/readyz").status_code == 200)
    assert server.metric("penstock_http_requests_total", route="/predict", status="499") == list(found.values()).count(
        "drop"
    )


def test_who_is_delayed_is_answered_at_its_deadline_and_at_the_drain(serve):
    server = serve("--chaos", "delay=1:3600", "--drain-timeout", "1", services=("two_workers",))
    late = server.http.post("/predict", json={"value": 1}, headers={"x-request-timeout": "0.3"})
    assert (late.status_code, late.json()["type"]) == (503, "urn:penstock:problem:deadline-exceeded")
    wire = server.wire()
    assert wire.send(request("GET", "/livez", b"")).answer().status == 200
    wire.post("/predict", {"value": 1})
    assert server.http.get("/livez").status_code == 200  # what was sent before is read before
    server.signal(signal.SIGTERM)
    answer = wire.answer()
    assert (answer.status, answer.json()["type"]) == (503, "urn:penstock:problem:not-ready")
    assert server.wait() == 0


@pytest.mark.parametrize("text", ["erorr=0.1", "error=2"])
def test_what_cannot_be_read_is_told_before_anything_starts(serve, text):
    server = serve("--chaos", text, ready=False)
    server.signalled = True
    assert server.wait() == 2
    assert "--chaos (or PENSTOCK_CHAOS): cannot read" in server.output
