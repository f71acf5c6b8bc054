"""Decide which batches of a stage are measured, and what follows from their times and memory.  No clock, no process.

Contract
--------
* The sizes are 1, 2, 4 ... and `max_size` itself.  Each runs once to warm up, then at least LEAST_RUNS times.
* Once STAGE_SECONDS are spent nothing more begins, but for one timed run of size 1.
* The size to use is the smallest whose rate is at least GOOD_ENOUGH of the best one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.cli.findings import BatchRan, Memory, MemoryShort, SetupTook

STAGE_SECONDS: Final = 10.0
"""How long the batches of one stage run."""
SIZE_SECONDS: Final = 0.2
"""A size whose runs take less is run more often, for so long: a short run varies more."""
LEAST_RUNS: Final = 3
GOOD_ENOUGH: Final = 0.95
SEEN_RESIDENT: Final = 2 * 1024 * 1024
"""Growth of resident memory that is told from none: the kernel counts it roughly, and the C library keeps some."""
SEEN_ON_DEVICE: Final = 512
"""Torch gives out the memory of a device in multiples of this."""
_UNITS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def sizes_up_to(max_size: int) -> list[int]:
    """The sizes that are tried, in this order."""
    return [2**power for power in range(max_size.bit_length()) if 2**power < max_size] + [max_size]


def begins(size: int, stage_seconds: float) -> bool:
    """Whether `size` is tried at all, after `stage_seconds` in which smaller ones have run."""
    return size == 1 or stage_seconds < STAGE_SECONDS


def runs_again(size: int, timed: int, size_seconds: float, stage_seconds: float) -> bool:
    """Whether a batch of `size` runs once more, which was timed `timed` times in `size_seconds`."""
    if stage_seconds >= STAGE_SECONDS:
        return size == 1 and timed == 0
    return timed < LEAST_RUNS or size_seconds < SIZE_SECONDS


def recommended_size(seconds: Mapping[int, float]) -> int:
    """The smallest size that does nearly as many items in a second as the best one.

    `seconds` says for each size, of which there is at least one, how long a batch takes.
    """
    rates = {size: size / max(taken, 1e-9) for size, taken in seconds.items()}
    best = max(rates.values())
    return min(size for size, rate in rates.items() if rate >= GOOD_ENOUGH * best)


class SeenMemory(NamedTuple):
    """Memory by which a process has grown, as exactly as that can be seen."""

    nbytes: int
    seen: bool
    """Whether it can be told from nothing; else it is less than `nbytes`."""
    on_device: bool

    @classmethod
    def of(cls, grown: Memory, parts: int = 1) -> SeenMemory:
        """Each of so many `parts` of what a process has grown by."""
        least = SEEN_ON_DEVICE if grown.on_device else SEEN_RESIDENT
        if grown.nbytes < least:
            return cls(math.ceil(least / parts), seen=False, on_device=grown.on_device)
        return cls(grown.nbytes // parts, seen=True, on_device=grown.on_device)

    def __str__(self) -> str:
        words = f"{_bytes(self.nbytes)}, {'on the device' if self.on_device else 'resident'}"
        return words if self.seen else f"less than {words}: too little to measure"


def memory_of_an_item(ran: Sequence[BatchRan]) -> SeenMemory:
    """Memory of one more item: by the smallest and the largest size of `ran`, which has at least one.

    Where one size alone can be compared, its memory is told over what was taken before.  Sizes of before the stage
    began to compute on a device are left out.
    """
    most = ran[-1]
    alike = [batch for batch in ran if batch.peak.on_device == most.peak.on_device]
    least = alike[0]
    if least.size < most.size:
        grown, items = most.peak.nbytes - least.peak.nbytes, most.size - least.size
    else:
        before = most.before.nbytes if most.before.on_device == most.peak.on_device else 0
        grown, items = most.peak.nbytes - before, most.size
    return SeenMemory.of(Memory(grown, most.peak.on_device), items)


@dataclasses.dataclass
class StageFigures:
    """Everything that was measured of one stage."""

    stage: str
    max_size: int
    batched: bool
    concurrency: int = 0
    """How many batches one of its workers has in progress, where it is a waiting stage; else 0."""
    setup: Memory | None = None
    ran: list[BatchRan] = dataclasses.field(default_factory=list)
    """In the order of their sizes."""
    short: int | None = None
    """For how many items at once there was no memory."""
    finished: bool = False
    """Whether nothing went wrong."""

    def take(self, report: object) -> None:
        """Note what the stage's process reports."""
        match report:
            case SetupTook(memory):
                self.setup = memory
            case BatchRan():
                self.ran.append(report)
            case MemoryShort(size):
                self.short = size

    def rows(self) -> list[tuple[str, str]]:
        """Pairs of what was measured, and what was found."""
        rows = []
        if self.setup is not None:
            rows.append(("memory of setup", str(SeenMemory.of(self.setup))))
        if self.ran:
            what = "memory of one more item" if self.batched else "memory of one item"
            rows.append((what, str(memory_of_an_item(self.ran))))
        rows += [(f"batch of {batch.size}", _pace(batch, self.concurrency)) for batch in self.ran]
        if self.batched and (self.ran or self.short is not None):
            rows.append(("largest batch", self._largest()))
        return rows

    def line(self) -> str:
        """A line to copy from; "" for a stage without a batch policy, and for one that was not timed.

        A waiting stage has none: its other batches go on while one waits, so the time of one is no rate.
        """
        seconds = {batch.size: batch.seconds for batch in self.ran if batch.seconds is not None}
        if not self.batched or not seconds or self.concurrency:
            return ""
        return f"stage {self.stage}: batch=ps.Batch(max_size={recommended_size(seconds)})"

    def _largest(self) -> str:
        largest = self.ran[-1].size if self.ran else 0
        if self.short is not None:
            return f"{largest} ran, but {self.short} ran out of memory (max_size is {self.max_size})"
        if largest == self.max_size:
            return f"{largest} ran, which is max_size"
        why = f"before the {STAGE_SECONDS:g} s of the stage were over" if self.finished else "before it failed"
        return f"{largest} ran {why} (max_size is {self.max_size})"


def _pace(batch: BatchRan, concurrency: int) -> str:
    if batch.seconds is None:
        return f"it ran, but the {STAGE_SECONDS:g} s of the stage were over"
    few = "" if batch.runs >= LEAST_RUNS else f", by {'1 run' if batch.runs == 1 else f'{batch.runs} runs'}"
    if concurrency:
        return f"{batch.seconds * 1000:.3f} ms, alone; a worker has {concurrency} in progress{few}"
    return f"{batch.seconds * 1000:.3f} ms, {batch.size / max(batch.seconds, 1e-9):.1f} items/s{few}"


def _bytes(nbytes: int) -> str:
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"
