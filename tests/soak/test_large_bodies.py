"""A million large requests, and a burst of a gigabyte: memory, descriptors and shared memory are as before."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from processes import descriptors
from served import serving

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from loadgen import run_load  # noqa: E402  # it lies in the bench
from payload import Exchange  # noqa: E402

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2800)]

SOURCE = """
import penstock as ps

class Ends(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[bytes]:
        return [bytes(body[:8]) + bytes(body[-8:]) for body in bodies]

service = ps.Service(Ends, name="ends")
"""
RAW = "application/octet-stream"
REQUESTS, WARM = 1_000_000, 20_000
SIZES = (65_536, 200_000, 600_000, 1_000_000)
MIB = 1024 * 1024
GROWTH = 16 * MIB
BURST_BODY, BURST_CLIENTS = 4_000_000, 256
BURST_GROWTH = 32 * MIB
BURST_SECONDS = 90


def exchange(nbytes: int) -> Exchange:
    body = b"%08d" % nbytes + bytes(nbytes - 16) + b"the end!"
    return Exchange(body, body[:8] + body[-8:], RAW)


def send(server, count: int) -> None:
    """Send so many requests, a part of them of each size; every answer is compared."""
    for nbytes in SIZES:
        seen = run_load(
            server.port,
            "/predict",
            connections=32,
            seconds=2800,
            warmup=0,
            requests=count // len(SIZES),
            exchange=exchange(nbytes),
        )
        assert seen.completed >= count // len(SIZES)


def shared_out(pids: list[int]) -> int:
    """The memory of these processes, where what they share is counted once: the pages of slabs too."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def at_rest(server) -> bool:
    return server.metric("penstock_slab_used_bytes") == 0 and server.metric("penstock_held_bytes") == 0


def test_a_million_large_requests_leave_memory_descriptors_and_pieces_flat(tmp_path, capsys):
    with serving(tmp_path, source=SOURCE) as server:
        send(server, WARM)
        pids = [server.pid, *server.workers()]
        server.hang_up()
        server.until(lambda: at_rest(server), "nothing is held")
        files, memory = [descriptors(pid) for pid in pids], shared_out(pids)
        started = time.monotonic()
        send(server, REQUESTS)
        seconds = time.monotonic() - started
        server.hang_up()
        server.until(lambda: at_rest(server), "nothing is held")
        server.until(lambda: [descriptors(pid) for pid in pids] == files, "the connections are closed")
        after = shared_out(pids)
        assert [server.pid, *server.workers()] == pids
        assert server.metric("penstock_slab_inline_total") == 0
        with capsys.disabled():
            print(  # noqa: T201  # the figures are what it is run for
                f"\n{REQUESTS} requests in {seconds:.0f} s; {memory / MIB:.1f} -> {after / MIB:.1f} MiB of all"
            )
        assert after - memory < GROWTH


def test_ninety_seconds_after_a_burst_of_a_gigabyte_the_memory_is_given_back(tmp_path, capsys):
    options = ("--slab-bytes", str(1400 * MIB), "--max-queued-bytes", str(2048 * MIB))
    with serving(tmp_path, *options, source=SOURCE) as server:
        send(server, 400)
        pids = [server.pid, *server.workers()]
        server.hang_up()
        server.until(lambda: at_rest(server), "nothing is held")
        before = shared_out(pids)
        run_load(
            server.port,
            "/predict",
            connections=BURST_CLIENTS,
            seconds=600,
            warmup=0,
            requests=BURST_CLIENTS,
            exchange=exchange(BURST_BODY),
        )
        full = shared_out(pids)
        time.sleep(BURST_SECONDS)
        after = shared_out(pids)
        with capsys.disabled():
            print(  # noqa: T201  # as above
                f"\nMiB of all: {before / MIB:.1f} before, {full / MIB:.1f} after the burst, {after / MIB:.1f} later"
            )
        assert full - before > 64 * MIB, "the burst took memory"
        assert after - before < BURST_GROWTH
