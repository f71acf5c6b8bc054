"""A simulated accelerator: a batch of n takes 5 ms and 0.1 ms for each item, whatever else the machine does.

Batches of 64 from 256 connections make at most 64 / (0.005 + 0.0001 * 64) = 5 614 requests a second, and a lone caller
gets 196.  What is missing from that is time in which the device had nothing to do, or too little.  `device.py` has
its figures, and the variables that this reads.

    penstock serve accelerator:service
    ACCELERATOR_MAX_WAIT=0.002 penstock serve accelerator:service
"""

from __future__ import annotations

import os
import time

import penstock as ps
from device import MAX_SIZE, NOTES_VARIABLE, WAIT_VARIABLE, SleepNotes, device_seconds

WAIT = os.environ.get(WAIT_VARIABLE)


class Accelerator(ps.Stage):
    """Sleep as long as the device would compute, and give each list back."""

    batch = ps.Batch(max_size=MAX_SIZE, max_wait=float(WAIT)) if WAIT else ps.Batch(max_size=MAX_SIZE)

    def setup(self) -> None:
        path = os.environ.get(NOTES_VARIABLE)
        self.notes = SleepNotes(path) if path else None

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        begin = time.perf_counter()
        time.sleep(device_seconds(len(xs)))
        if self.notes is not None:
            self.notes.add(len(xs), time.perf_counter() - begin)
        return xs


service = ps.Service(ps.stage(Accelerator), name="accelerator")
