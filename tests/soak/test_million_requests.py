"""A million requests against one server: its memory stays flat and it keeps no descriptor."""

from __future__ import annotations

import selectors
import time

import pytest
from processes import descriptors, resident
from served import request, serving

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

SOURCE = """
import penstock as ps

class Echo(ps.Stage):
    batch = ps.Batch(max_size=64)

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        return xs

class Negate(ps.Stage):
    batch = ps.Batch(max_size=64)

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        return [[-x for x in row] for row in xs]

service = ps.Service(Echo, Negate, name="echo")
"""
BODY = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]
ANSWER = b"[-1.5,-2.5,-3.5,-4.5,-5.5,-6.5,-7.5,-8.5]"
REQUESTS, WARM = 1_000_000, 100_000
CONNECTIONS, PIPELINED = 32, 16
GROWTH = 4 * 1024 * 1024


def send_many(server, count):
    """Send `count` requests over pipelined connections, and see that each has the right answer."""
    wave = request("POST", "/predict", BODY) * PIPELINED
    wires = [server.wire() for _ in range(CONNECTIONS)]
    received = dict.fromkeys(wires, b"")
    left = count // PIPELINED
    with selectors.DefaultSelector() as ready:
        for wire in wires:
            ready.register(wire.sock, selectors.EVENT_READ, wire)
            wire.send(wave)
            left -= 1
        busy = len(wires)
        while busy:
            for key, _ in ready.select(30):
                wire = key.data
                piece = wire.sock.recv(1 << 16)
                assert piece, "the server closed a connection"
                received[wire] += piece
                if received[wire].count(ANSWER) < PIPELINED or not received[wire].endswith(ANSWER):
                    continue
                assert received[wire].count(b"HTTP/1.1 200 OK\r\n") == received[wire].count(ANSWER) == PIPELINED
                received[wire] = b""
                if left > 0:
                    wire.send(wave)
                    left -= 1
                else:
                    busy -= 1
    for wire in wires:
        wire.close()


def test_a_million_requests_leave_memory_flat_and_descriptors_closed(tmp_path, capsys):
    with serving(tmp_path, source=SOURCE) as server:
        at_rest = descriptors(server.pid)
        send_many(server, WARM)
        pids = [server.pid, *server.workers()]
        server.hang_up()
        server.until(lambda: descriptors(server.pid) == at_rest, "the connections to be closed")
        files, memory = [descriptors(pid) for pid in pids], [resident(pid) for pid in pids]
        started = time.monotonic()
        send_many(server, REQUESTS)
        seconds = time.monotonic() - started
        assert [server.pid, *server.workers()] == pids
        assert server.metric("penstock_http_requests_total", status="200", route="/predict") == WARM + REQUESTS
        server.hang_up()
        server.until(lambda: descriptors(server.pid) == at_rest, "the connections to be closed")
        after = [resident(pid) for pid in pids]
        with capsys.disabled():
            rss = ", ".join(f"{b / 2**20:.1f} -> {a / 2**20:.1f}" for b, a in zip(memory, after, strict=True))
            print(  # noqa: T201  # the figures are what it is run for
                f"\n{REQUESTS} requests in {seconds:.0f} s; MiB of coordinator and workers: {rss}"
            )
        assert [descriptors(pid) for pid in pids] == files
        assert all(now - then < GROWTH for then, now in zip(memory, after, strict=True)), (memory, after)
