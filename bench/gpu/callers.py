"""Callers in one process: each has a connection, and sends its next request when its answer is there.

    python callers.py PORT CALLERS SECONDS

It reads two lines: the requests, a list in JSON, each with head and body in full; and, once it has printed a line, the
moment on the monotonic clock of the machine from which on answers count, for SECONDS.  The last line printed is JSON:
the latencies in ms, the CPU, and how many answers were no 200.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from part_process import DIES_WITH_PARENT

START_SECONDS = 0.4
"""About what the processes take to be there; they are waited for."""
MOST_PROCESSES = 8
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Load:
    """What the callers of all processes saw."""

    rate: float
    """Answers a second."""
    p50_ms: float
    p99_ms: float
    cores: float
    """How many cores the callers kept busy."""
    wrong: int
    """Answers that were no 200, and connections that ended."""


class _Caller(asyncio.Protocol):
    def __init__(self, requests: itertools.cycle[bytes], begin: float, end: float, seen: _Seen) -> None:
        self._requests, self._begin, self._end, self._seen = requests, begin, end, seen
        self._kept = bytearray()
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._kept += data
        head = self._kept.find(b"\r\n\r\n")
        if head < 0 or (length := _LENGTH.search(self._kept, 0, head)) is None:
            if head >= 0:
                self._transport.abort()  # type: ignore[attr-defined]
            return
        if len(self._kept) < head + 4 + int(length[1]):
            return
        right = self._kept.startswith(b"HTTP/1.1 200")
        self._kept.clear()
        now = time.monotonic()
        if self._begin <= now < self._end:
            self._seen.add(now - self._sent, right=right)
        if now < self._end:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._seen.gone(early=time.monotonic() < self._end)

    def _send(self) -> None:
        self._sent = time.monotonic()
        self._transport.write(next(self._requests))  # type: ignore[attr-defined]


class _Seen:
    def __init__(self, callers: int) -> None:
        self.latencies: list[float] = []
        self.wrong = 0
        self.left = callers
        self.ended = asyncio.Event()
        self.cpu: list[float] = []
        """CPU seconds of this process when the time that counts began, and when it was over."""

    def add(self, seconds: float, *, right: bool) -> None:
        if right:
            self.latencies.append(seconds)
        else:
            self.wrong += 1

    def note_cpu(self) -> None:
        self.cpu.append(time.process_time())

    def gone(self, *, early: bool) -> None:
        self.wrong += early
        self.left -= 1
        if not self.left:
            self.ended.set()


async def _call(port: int, callers: int, begin: float, seconds: float, requests: list[bytes]) -> _Seen:
    seen = _Seen(callers)
    loop = asyncio.get_running_loop()
    end = begin + seconds
    for moment in (begin, end):
        loop.call_later(max(0.0, moment - time.monotonic()), seen.note_cpu)
    for n in range(callers):
        start = n % len(requests)
        cycle = itertools.cycle(requests[start:] + requests[:start])
        await loop.create_connection(lambda cycle=cycle: _Caller(cycle, begin, end, seen), "127.0.0.1", port)
    # Whoever waits for an answer that does not come is not waited for.
    try:
        await asyncio.wait_for(seen.ended.wait(), end - time.monotonic() + 10)
    except TimeoutError:
        seen.wrong += seen.left
    return seen


def load(
    port: int,
    requests: Sequence[bytes],
    *,
    callers: int,
    seconds: float,
    warmup: float,
    look: Callable[[], None],
) -> Load:
    """Have so many callers, spread over some processes, call for some seconds behind a warm-up.

    `look` is called when these seconds begin and when they end: what it reads between has no start and no end in it.
    """
    processes = max(1, min(MOST_PROCESSES, (os.cpu_count() or 2) // 2, callers))
    wire = json.dumps([request.decode() for request in requests]).encode() + b"\n"
    running = []
    for n in range(processes):
        share = callers // processes + (n < callers % processes)
        command = [*DIES_WITH_PARENT, sys.executable, __file__, str(port), str(share), repr(seconds)]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    try:
        for process in running:
            _write(process, wire)
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        begin = time.monotonic() + warmup
        for process in running:
            _write(process, b"%r\n" % begin)
        for moment in (begin, begin + seconds):
            time.sleep(max(0.0, moment - time.monotonic()))
            look()
        found = [json.loads(process.stdout.read() or b"{}") for process in running if process.stdout is not None]
    finally:
        for process in running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
    latencies = sorted(ms for one in found for ms in one.get("latencies", []))
    wrong = sum(one.get("wrong", 1) for one in found)
    p99 = latencies[int(len(latencies) * 0.99)] if latencies else 0.0
    cpu = sum(one.get("cpu", 0.0) for one in found)
    return Load(len(latencies) / seconds, median(latencies or [0.0]), p99, cpu / seconds, wrong)


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Write to a process; one that has ended says nothing later, and counts as wrong."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()


def request_bytes(body: bytes, *, path: str, accept: str) -> bytes:
    """A POST of JSON as a client sends it."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\naccept: {accept}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    """Be one of the processes."""
    port, callers, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    requests = [request.encode() for request in json.loads(sys.stdin.readline())]
    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    print("here", flush=True)
    begin = float(sys.stdin.readline())
    seen = runner(_call(port, callers, begin, seconds, requests))
    latencies = [round(1000 * each, 3) for each in seen.latencies]
    cpu = seen.cpu[-1] - seen.cpu[0] if seen.cpu else 0.0
    print(json.dumps({"latencies": latencies, "wrong": seen.wrong, "cpu": cpu}))


if __name__ == "__main__":
    main()
