"""Build `load.c` when it is newer than its program, run it, and read what it saw.

It needs a C compiler, `$CC` or gcc; nothing else of the bench does.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Self

import msgspec

from payload import FLOATS, NUMBER, Exchange, request

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "load.c"
PROGRAM = HERE / "build" / "load"


class LoadFailed(Exception):
    """The load generator saw an error, or could not run: a figure would mean nothing."""


class LoadResult(msgspec.Struct, frozen=True):
    """What the load generator saw; latencies in microseconds, from the first byte sent to the last received."""

    requests: int
    """Answers within the measured time."""
    completed: int
    """Answers of the whole run, warm-up included."""
    seconds: float
    rps: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float
    errors: int
    first_error: str
    load_cpu_seconds: float
    """CPU of the load generator itself, over the whole run."""


def build() -> Path:
    """The load generator's program, compiled if need be."""
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(exist_ok=True)
        compiler = os.environ.get("CC", "gcc")
        flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra"]
        fresh = PROGRAM.with_name(f"load.{os.getpid()}.{threading.get_ident()}")
        subprocess.run([compiler, *flags, "-o", str(fresh), str(SOURCE)], check=True)
        fresh.replace(PROGRAM)  # at once: another process may be about to run it
    return PROGRAM


def run_load(
    port: int,
    path: str,
    *,
    connections: int,
    seconds: float,
    warmup: float = 0.5,
    requests: int = 0,
    exchange: Exchange = FLOATS,
    numbered: bool = False,
) -> LoadResult:
    """Load `path` on the loopback's `port`; `requests` ends the run earlier, 0 does not.

    With `numbered` each request carries an id of its own, so that no two heads are equal; its body then has no number.

    Raises LoadFailed if a single answer was not the expected one.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        done = subprocess.run(
            [
                *_command(Path(folder), port, path, connections, exchange, numbered=numbered),
                f"--seconds={seconds}",
                f"--warmup={warmup}",
                f"--requests={requests}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout:
        raise LoadFailed(done.stderr.strip() or f"the load generator ended with {done.returncode}")
    return _read(done.stdout)


class Loader:
    """A load generator that keeps its connections and sends an exact number of requests each time it is told to.

    No request is in flight between two runs, so what a server spent before and after one is known to the request.
    """

    def __init__(self, port: int, path: str, *, connections: int, exchange: Exchange = FLOATS) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        self._process = subprocess.Popen(
            [*_command(Path(self._folder.name), port, path, connections, exchange), "--on-command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()  # the end of its stdin ends it
        self._folder.cleanup()

    def run(self, requests: int) -> LoadResult:
        """Send so many requests and read as many answers.  Raises LoadFailed if one was not the expected one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{requests}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and then its stdout has too
        line = self._process.stdout.readline()
        if not line:
            raise LoadFailed(f"the load generator ended with {self._process.wait()}")
        return _read(line)


def _command(
    folder: Path, port: int, path: str, connections: int, exchange: Exchange, *, numbered: bool = False
) -> list[str]:
    """The program and what to send, which it reads from files in `folder`."""
    wire = request(path, port, exchange, numbered=numbered)
    request_file, expect_file = folder / "request", folder / "expected"
    request_file.write_bytes(wire)
    expect_file.write_bytes(exchange.answer)
    command = [
        str(build()),
        f"--port={port}",
        f"--connections={connections}",
        f"--request-file={request_file}",
        f"--expect-file={expect_file}",
    ]
    if numbered:
        command.append(f"--number-at={wire.find(NUMBER)}")
    elif exchange.number_at is not None:
        command.append(f"--number-at={len(wire) - len(exchange.body) + exchange.number_at}")
        if exchange.back_at is not None:
            command.append(f"--back-at={exchange.back_at}")
        if exchange.inverted:
            command.append("--back-inverted")
    return command


def _read(line: str) -> LoadResult:
    result = msgspec.json.decode(line, type=LoadResult)
    if result.errors:
        raise LoadFailed(f"{result.errors} errors; the first: {result.first_error}")
    return result
