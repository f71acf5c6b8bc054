"""A simulated accelerator: a batch of n takes 5 ms and 0.1 ms for each item, whatever else the machine does.

Batches of 64 from 256 connections make at most 64 / (0.005 + 0.0001 * 64) = 5 614 requests a second.  What is
missing from that is time in which the device had nothing to do, or too little.

    penstock serve accelerator:service
"""

from __future__ import annotations

import time

import penstock as ps

MAX_SIZE = 64
IDEAL = MAX_SIZE / (0.005 + 0.0001 * MAX_SIZE)


class Accelerator(ps.Stage):
    """Sleep as long as the device would compute, and give each list back."""

    batch = ps.Batch(max_size=MAX_SIZE)

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        time.sleep(0.005 + 0.0001 * len(xs))
        return xs


service = ps.Service(ps.stage(Accelerator), name="accelerator")
