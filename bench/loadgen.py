"""Build `load.c` when it is newer than its program, run it, and read what it saw.

It needs a C compiler, `$CC` or gcc; nothing else of the bench does.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import msgspec

from payload import BODY, NUMBER, request

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
        fresh = PROGRAM.with_name(f"load.{os.getpid()}")
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
    body: bytes = BODY,
    expected: bytes = BODY,
    numbered: bool = False,
) -> LoadResult:
    """Load `path` on the loopback's `port`; `requests` ends the run earlier, 0 does not.

    With `numbered` each request carries an id of its own, so that no two heads are equal.

    Raises LoadFailed if a single answer was not the expected one.
    """
    program = build()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        request_file, expect_file = Path(folder, "request"), Path(folder, "expected")
        wire = request(path, port, body, numbered=numbered)
        request_file.write_bytes(wire)
        expect_file.write_bytes(expected)
        done = subprocess.run(
            [
                str(program),
                f"--port={port}",
                f"--connections={connections}",
                f"--seconds={seconds}",
                f"--warmup={warmup}",
                f"--requests={requests}",
                f"--request-file={request_file}",
                f"--expect-file={expect_file}",
                f"--number-at={wire.find(NUMBER) if numbered else 0}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout:
        raise LoadFailed(done.stderr.strip() or f"the load generator ended with {done.returncode}")
    result = msgspec.json.decode(done.stdout, type=LoadResult)
    if result.errors:
        raise LoadFailed(f"{result.errors} errors; the first: {result.first_error}")
    return result
