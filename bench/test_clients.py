"""The bench of the clients: its limits, and that both load generators count what a server really did."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

import clients
from client_figures import ClientRound, ClientRun, summarise
from client_load import ClientsSeen, Load, Plan


def a_round(scene: str, client: str = "python", *, tries: int = 100, right: int = 100, failed: int = 0) -> ClientRound:
    """One with so many answers in ten seconds, in which there can be 100."""
    errors = {"Overloaded": failed} if failed else {}
    return ClientRound(scene, client, 0, ClientsSeen(right, 0, errors, tries, 10.0, 1.0), 0.5, capacity=10.0)


def a_run(*rounds: ClientRound) -> ClientRun:
    return ClientRun(datetime.now(UTC), {"cpu": "some"}, {"rounds": 1}, list(rounds))


@pytest.mark.parametrize(
    ("scene", "kept", "missed"),
    [
        ("chaos", {"right": 990, "failed": 10}, {"right": 989, "failed": 11}),
        ("flow", {"right": 96, "tries": 96}, {"right": 94, "tries": 94}),
        ("flow", {"tries": 130}, {"tries": 131}),
    ],
)
def test_each_limit_is_held_against_each_client(scene: str, kept: dict, missed: dict) -> None:
    for client in ("python", "typescript"):
        assert a_run(a_round(scene, client, **kept)).met()
        assert not summarise(a_run(a_round(scene, client, **missed)))


def test_without_flow_control_nothing_is_promised() -> None:
    assert a_run(a_round("no-flow-control", right=10, tries=1000, failed=90)).met()


def test_a_limit_is_for_the_median_of_the_rounds() -> None:
    assert a_run(*(a_round("flow", tries=tries) for tries in (100, 129, 900))).met()
    assert not a_run(*(a_round("flow", tries=tries) for tries in (100, 131, 131))).met()


@contextmanager
def refusing(every: int):
    """A server that doubles, and refuses every so many numbers once; its URL, and how many requests there were.

    By their order requests must not be refused: clients in step would send the same one at each refusal.
    """
    seen = {"requests": 0}
    refused_once: set[int] = set()
    lock = threading.Lock()

    class Doubling(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            number = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                seen["requests"] += 1
                refused = number % every == 0 and number not in refused_once
                refused_once.add(number)
            body = b'{"type": "urn:penstock:problem:overloaded", "status": 503}' if refused else b"%d" % (2 * number)
            self.send_response(503 if refused else 200)
            self.send_header("content-type", "application/problem+json" if refused else "application/json")
            self.send_header("content-length", str(len(body)))
            if refused:
                self.send_header("x-should-retry", "true")
                self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Doubling)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check(seen: ClientsSeen, requests: int) -> None:
    assert (seen.right, seen.wrong, seen.errors, seen.answered) == (90, 0, {}, 1.0)
    assert seen.tries == requests == 90 + 13
    assert seen.tries_per_answer == requests / 90
    assert 0 < seen.cores < 10


@pytest.mark.night
@pytest.mark.parametrize("flow_control", [True, False])
def test_the_generator_in_python_counts_right_answers_and_tries(*, flow_control: bool) -> None:
    with refusing(every=7) as (url, server):
        plan = Plan(url, clients=2, callers=5, requests=90, flow_control=flow_control)
        check(asyncio.run(Load(plan).run()), server["requests"])


@pytest.mark.night
@pytest.mark.parametrize("flow_control", [True, False])
def test_the_generator_in_node_counts_the_same(*, flow_control: bool) -> None:
    missing = clients.lacking()
    if missing is not None:
        pytest.skip(f"the TypeScript client is not measured: {missing}")
    with refusing(every=7) as (url, server):
        plan = Plan(url, clients=2, callers=5, requests=90, flow_control=flow_control)
        seen, _ = clients.play("typescript", plan)
        check(seen, server["requests"])


def test_a_wrong_answer_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told = msgspec.json.encode(ClientsSeen(9, 1, {}, 10, 1.0, 0.1)).decode()
    monkeypatch.setitem(clients.PROGRAMS, "python", ["sh", "-c", f"echo '{told}'"])
    with pytest.raises(clients.LoadFailed, match="1 wrong answers and 9 right"):
        clients.play("python", Plan("http://127.0.0.1:1"))
