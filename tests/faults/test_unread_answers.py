"""Clients that leave large answers unread: what is held for them is bounded, and nobody else is shut out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from served import serving

from night import tight

SOURCE = """
from pathlib import Path

import penstock as ps
from notes_and_gates import wait_for

class Swell(ps.Stage):
    def predict(self, size: int) -> bytes:
        if size < 0:
            wait_for(Path("open"))
        return bytes(abs(size))

class SwellText(ps.Stage):
    def predict(self, size: int) -> str:
        if size < 0:
            wait_for(Path("open"))
        return "x" * size

class Same(ps.Stage):
    def predict(self, size: int) -> int:
        return size

class SameBytes(ps.Stage):
    def predict(self, x: bytes) -> bytes:
        return x

service = ps.Service(Swell, name="one")
chain = ps.Service(Same, Swell, name="chain")
swelling = ps.Service(Swell, SameBytes, name="swelling")
pair = ps.Service(ps.stage(Swell, workers=2, prefetch=0), name="pair")
text = ps.Service(SwellText, name="text")
"""
LARGE = 16_000_000
"""Bytes of a result: more than the system's buffers of a connection take, so most of it stays with the server."""
BOUND = 8 * 1024 * 1024
UNREAD_SECONDS = 2.0
SWEEP_SECONDS = 1.0
SLACK_SECONDS = 4.0
"""A whole machine of other tests may be running besides."""
CLIENTS = 14


@pytest.fixture
def serve(tmp_path):
    """Starts one server that holds `BOUND` bytes; ended and checked after the test."""
    with contextlib.ExitStack() as running:

        def start(service, *options):
            bound = f"--max-queued-bytes={BOUND}"
            return running.enter_context(serving(tmp_path, bound, *options, source=SOURCE, services=(service,)))

        yield start


def held(server):
    """The bytes that the only service holds."""
    (service,) = server.health()["services"].values()
    return service["bytes"]


def in_flight(server):
    """The items that its workers hold."""
    (service,) = server.health()["services"].values()
    return service["in_flight"]


class Reading(threading.Thread):
    """Reads one answer, and keeps no more of it than its status and its size."""

    def __init__(self, wire):
        super().__init__()
        self.wire = wire
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # a small one made the server hold it
        self.status = self.nbytes = 0
        self.start()

    def run(self):
        head = self.wire.answer(to_head=True)
        self.status, missing = head.status, int(head.headers["content-length"])
        while missing > self.nbytes:
            self.wire._kept = self.wire._kept or self.wire.sock.recv(1 << 20)
            assert self.wire._kept, "the connection ended in the midst of an answer"
            self.nbytes += len(self.wire._kept)
            self.wire._kept = b""


@pytest.mark.parametrize(
    ("service", "excess"),
    [
        pytest.param("service", 3, id="one that is too many, and two that the worker holds"),
        pytest.param("chain", 3, id="the same of the last stage", marks=pytest.mark.night),
        pytest.param("swelling", 6, id="the same of each stage", marks=pytest.mark.night),
    ],
)
def test_the_answers_of_many_who_do_not_read_are_bounded_and_all_come_once_they_do(serve, service, excess):
    server = serve(service)
    wires = [server.wire(small_buffer=True).post("/predict", LARGE) for _ in range(CLIENTS)]
    server.until(lambda: held(server) > BOUND and in_flight(server) == 0, "the stages to be sent nothing more")
    assert held(server) <= BOUND + excess * LARGE
    reading = [Reading(wire) for wire in wires]
    most = 0
    while any(thread.is_alive() for thread in reading):
        most = max(most, held(server))
    assert [(each.status, each.nbytes) for each in reading] == [(200, LARGE)] * CLIENTS
    assert most <= BOUND + excess * LARGE
    server.until(lambda: held(server) == 0, "the bytes to be given back")


@pytest.mark.night
def test_answers_that_wait_for_their_turn_are_bounded_too(serve):
    server = serve("pair")
    wire = server.wire()
    wire.post("/predict", -LARGE)  # it holds one of the workers
    for _ in range(CLIENTS):
        wire.post("/predict", LARGE)
    server.until(lambda: held(server) > BOUND, "answers that wait for the first")
    server.until(lambda: in_flight(server) == 1, "the other worker to be sent nothing")
    assert held(server) <= BOUND + 2 * LARGE
    server.open_gate()
    answers = [wire.answer() for _ in range(1 + CLIENTS)]
    assert [(answer.status, len(answer.body)) for answer in answers] == [(200, LARGE)] * (1 + CLIENTS)


def test_answers_that_wait_for_their_turn_too_long_cost_their_connection_and_nobody_else(serve):
    server = serve("pair", f"--write-timeout={UNREAD_SECONDS}")
    wire = server.wire()
    wire.post("/predict", -LARGE)
    for _ in range(3):
        wire.post("/predict", LARGE)
    server.until(lambda: held(server) > BOUND, "answers that wait for the first")
    answer = server.wire().post("/predict", 7).answer()
    assert (answer.status, len(answer.body)) == (200, 7)
    assert wire.ended()
    server.open_gate()
    server.until(lambda: held(server) == 0, "the bytes to be given back")


def test_a_client_batch_of_more_results_than_may_be_held_ends_what_was_not_sent(serve):
    server = serve("text")
    size, n = 3_000_000, 20
    beside = server.wire().post("/predict", 5)
    answer = server.wire().post("/batch", [size] * n).answer()
    assert answer.status == 207
    outcomes = answer.json()["outcomes"]
    results = [outcome for outcome in outcomes if "result" in outcome]
    assert 3 <= len(results) <= 3 + 1, "three are more than may be held; one more was with the worker"
    assert all(len(outcome["result"]) == size for outcome in results)
    errors = [outcome["error"] for outcome in outcomes if "error" in outcome]
    assert {error["status"] for error in errors} == {503}
    assert {error["type"] for error in errors} == {"urn:penstock:problem:overloaded"}
    assert all(error["retry_after"] >= 1 for error in errors)
    assert len(results) + len(errors) == n
    assert beside.answer().status == 200
    fitting = server.wire().post("/batch", [size] * 2).answer()
    assert (fitting.status, len(fitting.json()["outcomes"])) == (200, 2)
    large = server.wire().post("/batch", [3 * BOUND]).answer()
    assert large.status == 200, "one item always passes"


class SlowReader(threading.Thread):
    """Asks for a large answer, and reads at most 500 kB of it a second until the connection ends.

    That is slow for the answer, and fast enough never to count as gone: what a client takes is seen in steps of up to
    200 KiB, and one at least has to be seen within UNREAD_SECONDS.
    """

    def __init__(self, server, size):
        super().__init__()
        self.wire = server.wire(small_buffer=True).post("/predict", size)
        self.taken = 0
        self.over = threading.Event()

    def run(self):
        with contextlib.suppress(OSError):
            while piece := self.wire.sock.recv(10_000):
                self.taken += len(piece)
                time.sleep(0.02)
        self.over.set()


@pytest.mark.parametrize("service", ["service", pytest.param("chain", marks=pytest.mark.night)])
def test_a_slow_reader_shuts_nobody_out(serve, service, record_property):
    server = serve(service, f"--write-timeout={UNREAD_SECONDS}")
    slow = SlowReader(server, 40_000_000)
    server.until(lambda: held(server) > BOUND, "an answer that is too large to be held")
    slow.start()
    taken, after = [], 0
    while after < 20:
        after += slow.over.is_set()
        started = time.monotonic()
        answer = server.http.post("/predict", json=7)
        taken.append(time.monotonic() - started)
        assert (answer.status_code, answer.content) == (200, bytes(7)), answer.text
    record_property("slowest_seconds", max(taken))
    print(f"the slowest of {len(taken)} answers took {max(taken):.2f} s")  # noqa: T201
    assert max(taken) <= tight(UNREAD_SECONDS + SWEEP_SECONDS + SLACK_SECONDS)
    slow.join()
    assert slow.taken < 40_000_000
    server.wait_for("closed 1 slow clients")
    assert server.metric("penstock_reserved_bytes") == 0


@pytest.mark.night
def test_a_slow_reader_of_what_may_be_held_takes_its_time_and_no_room(serve):
    server = serve("service", f"--write-timeout={UNREAD_SECONDS}")
    slow = SlowReader(server, BOUND)
    server.until(lambda: held(server) > 0, "an unread answer")
    slow.start()
    end = time.monotonic() + 2 * UNREAD_SECONDS
    answers = []
    while time.monotonic() < end:
        # Together with the unread answer this body is more than the bound.
        answers.append(server.http.post("/predict", content=b" " * 7_500_000 + b"7").status_code)
    assert set(answers) == {200}
