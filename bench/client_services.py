"""What the bench of the clients calls: a stage that only sleeps, as its process would while an accelerator computes.

    penstock serve client_services:slow
    penstock serve client_services:quick

Each answers twice the number that it was sent, so that a client which gets the answer of another one is found out.
"""

from __future__ import annotations

import time

import penstock as ps


class Slow(ps.Stage):
    """84 ms for a full batch: 95 items a second, so few that the CPU of clients is no limit on a small machine."""

    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[int]) -> list[int]:
        time.sleep(0.020 + 0.008 * len(xs))
        return [2 * x for x in xs]


class Quick(ps.Stage):
    """A millisecond for a batch of any size."""

    batch = ps.Batch(max_size=16)

    def predict(self, xs: list[int]) -> list[int]:
        time.sleep(0.001)
        return [2 * x for x in xs]


slow = ps.Service(ps.stage(Slow), name="slow")
quick = ps.Service(ps.stage(Quick, workers=2), name="quick")
