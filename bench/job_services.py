"""The services of the bench of the job queue.

penstock consume job_services:no_op --queue-url sqlite:///q.db
"""

from __future__ import annotations

import os
import time

import penstock as ps

BATCH_SECONDS = 0.02
"""How long `paced` takes for a batch, however many items it has."""
COMPUTE_SECONDS = 0.1
"""How long `computing` takes for an item."""
SHORT_SECONDS = 0.05
CALLS = "BENCH_CALLS"
"""The variable that names the file into which `computing` writes when each of its calls began and ended."""


class NoOp(ps.Stage):
    """Give each item back: what a job costs is what Penstock costs."""

    batch = ps.Batch(max_size=64)

    def predict(self, xs: list[int]) -> list[int]:
        return xs


class Paced(ps.Stage):
    """Take as long for a full batch as for a single item, as a device does."""

    batch = ps.Batch(max_size=32)

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        time.sleep(BATCH_SECONDS)
        return xs


class Computing(ps.Stage):
    """Take COMPUTE_SECONDS, and write down when."""

    def setup(self) -> None:
        self._calls = os.open(os.environ[CALLS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def predict(self, x: int) -> int:
        began = time.monotonic()
        time.sleep(COMPUTE_SECONDS)
        os.write(self._calls, f"{began!r} {time.monotonic()!r}\n".encode())
        return x


class Short(ps.Stage):
    """Take SHORT_SECONDS."""

    def predict(self, x: int) -> int:
        time.sleep(SHORT_SECONDS)
        return x


no_op = ps.Service(ps.stage(NoOp), name="no_op")
paced = ps.Service(ps.stage(Paced), name="paced")
computing = ps.Service(ps.stage(Computing), name="computing")
short = ps.Service(ps.stage(Short), name="short")
