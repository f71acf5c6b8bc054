"""A million large requests, ten thousand clients that only announce, and a burst of a gigabyte.

Memory, descriptors and shared memory are then as before.  Each body has a number of its own in all its parts, and the
stage looks at every byte, so that a part of another body is found.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from large_clients import body_of, nothing_is_held, samples
from served import request, serving

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2800)]

SOURCE = """
from pathlib import Path

import numpy as np
from notes_and_gates import wait_for

import penstock as ps

WORDS = np.arange(1_000_000, dtype=np.uint64) // 16


class Number(ps.Stage):
    "Answers with the number of a body, if every word is of it; it stands still at number 9999 until a file is there."

    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[bytes]:
        return [self.look_at(np.frombuffer(body, np.uint64)) for body in bodies]

    def look_at(self, words: np.ndarray) -> bytes:
        number = int(words[0]) >> 32
        if number == 9999:
            wait_for(Path("open"))
        if ((words - WORDS[: len(words)]) == words[0]).all():
            return b"%d of %d" % (number, words.nbytes)
        return b"mixed"


service = ps.Service(Number, name="number")
"""
REQUESTS, WARM = 1_000_000, 20_000
SIZES = (65_536, 100_000, 150_000, 200_000, 400_000, 600_000, 800_000, 1_000_000)
NUMBERS = 11
"""Not a divisor of the number of sizes: each number is sent in each size."""
CONNECTIONS = 32
MIB = 1024 * 1024
GROWTH = 16 * MIB
ANNOUNCING = 10_000
BURST_BODY, BURST_CLIENTS = 4_000_000, 256
BURST_GROWTH = 32 * MIB
BURST_SECONDS = 90


def large_request(number: int, nbytes: int) -> tuple[bytes, bytes]:
    """A request and its answer."""
    body = body_of(number, nbytes)
    return request("POST", "/predict", body, Content_Type="application/octet-stream"), b"%d of %d" % (number, nbytes)


BANK = [large_request(number, nbytes) for number in range(NUMBERS) for nbytes in SIZES]


def send(server, requests: Iterable[tuple[bytes, bytes]], connections: int = CONNECTIONS) -> None:
    """Send these over so many connections; every answer is compared."""
    left = iter(requests)  # each `next` of it is one step, whatever thread takes it

    def go_on(wire) -> None:
        with contextlib.closing(wire):
            for asked, expected in left:
                answer = wire.send(asked).answer()
                assert (answer.status, answer.body) == (200, expected)

    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(go_on, [server.wire() for _ in range(connections)]))


def mixed(count: int) -> Iterable[tuple[bytes, bytes]]:
    """So many requests of all sizes and numbers, in turn."""
    return itertools.islice(itertools.cycle(BANK), count)


class Memory:
    """The processes of a server, and what they had when nothing was in hand."""

    def __init__(self, server) -> None:
        self._server = server
        self._pids = [server.pid, *server.workers()]
        self.rest()
        self._files = self._descriptors()
        self.before = self.now()

    def rest(self) -> None:
        """Wait until nothing is held."""
        self._server.hang_up()
        self._server.until(lambda: nothing_is_held(self._server.wire), "nothing to be held")

    def now(self) -> int:
        """Their bytes, where what they share is counted once: the pages of slabs too."""
        lines = [line for pid in self._pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

    def check_descriptors(self) -> None:
        """See that none stays open, and that no process has been replaced."""
        assert self._descriptors() == self._files
        assert [self._server.pid, *self._server.workers()] == self._pids

    def _descriptors(self) -> list[int]:
        """How many are open, while the connection over which this asks is the only one.

        A server sees the end of others later.  A stage makes its timer when it waits for company for the first time.
        """
        self._server.hang_up()
        with contextlib.closing(self._server.wire()) as wire:
            asks = request("GET", "/metrics")
            self._server.until(
                lambda: b"\npenstock_connections 1.0\n" in wire.send(asks).answer().body, "the others to be closed"
            )
            return [sum("timerfd" not in link for link in open_files_of(pid)) for pid in self._pids]


def open_files_of(pid: int) -> list[str]:
    """What each descriptor of a process leads to."""
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def tell(capsys, line: str) -> None:
    """Show the figures: they are what it is run for."""
    with capsys.disabled():
        print(f"\n{line}")  # noqa: T201


def test_a_million_large_requests_leave_memory_descriptors_and_pieces_flat(tmp_path, capsys):
    with serving(tmp_path, source=SOURCE) as server:
        send(server, mixed(WARM))
        memory = Memory(server)
        started = time.monotonic()
        send(server, mixed(REQUESTS))
        seconds = time.monotonic() - started
        memory.rest()
        memory.check_descriptors()
        after = memory.now()
        assert samples(server.wire)["penstock_shm_fallbacks_total"] == 0
        tell(
            capsys,
            f"{REQUESTS} requests in {seconds:.0f} s; MiB of all: {memory.before / MIB:.1f} -> {after / MIB:.1f}",
        )
        assert after - memory.before < GROWTH


@pytest.fixture
def many_files():
    """May open a file for each client that announces."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < ANNOUNCING + 1000:
        pytest.skip(f"{hard} files may be open, and {ANNOUNCING} connections need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_who_announce_much_and_send_a_byte_cost_a_good_client_nothing(tmp_path, capsys, many_files):
    head = request("POST", "/predict", Content_Type="application/octet-stream")
    announced = head.replace(b"Content-Length: 0", b"Content-Length: %d" % (16 * MIB)) + b"x"
    options = ("--max-connections", str(ANNOUNCING + 100), "--body-timeout", "600")
    with serving(tmp_path, *options, source=SOURCE) as server:
        send(server, mixed(2000))
        memory = Memory(server)
        wires = [server.wire().send(announced) for _ in range(ANNOUNCING)]
        server.until(lambda: samples(server.wire)["penstock_connections"] > ANNOUNCING, "all to be connected")
        started = time.monotonic()
        send(server, mixed(2000), connections=8)
        seconds = time.monotonic() - started
        beside = memory.now()
        for wire in wires:
            wire.drop()
        memory.rest()
        memory.check_descriptors()
        tell(
            capsys,
            f"2000 requests beside {ANNOUNCING} who announce in {seconds:.1f} s; MiB of all: "
            f"{memory.before / MIB:.1f} before, {beside / MIB:.1f} beside them",
        )
        assert beside - memory.before < ANNOUNCING * 32 * 1024, "what is announced takes no memory"


def test_ninety_seconds_after_a_burst_of_a_gigabyte_the_memory_is_given_back(tmp_path, capsys):
    options = ("--shm-bytes", str(1400 * MIB), "--max-queued-bytes", str(2048 * MIB), "--timeout", "600")
    with serving(tmp_path, *options, source=SOURCE) as server:
        send(server, mixed(2000))
        memory = Memory(server)
        burst = [large_request(9999, BURST_BODY)] + [large_request(n, BURST_BODY) for n in range(1, BURST_CLIENTS)]
        whole = BURST_BODY * BURST_CLIENTS
        with ThreadPoolExecutor(1) as sender:
            sent = sender.submit(send, server, burst, BURST_CLIENTS)
            server.until(lambda: samples(server.wire)["penstock_reserved_bytes"] >= 0.9 * whole, "the burst", 60)
            shown, full = samples(server.wire), memory.now()
            server.open_gate()
            sent.result()
        memory.rest()
        time.sleep(BURST_SECONDS)
        after = memory.now()
        tell(
            capsys,
            f"MiB of all: {memory.before / MIB:.1f} before, {full / MIB:.1f} in the burst, of which "
            f"{shown['penstock_shm_used_bytes'] / MIB:.1f} in the slab; {after / MIB:.1f} after {BURST_SECONDS} s",
        )
        assert full - memory.before > 0.9 * whole
        assert after - memory.before < BURST_GROWTH
