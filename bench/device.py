"""The device that `accelerator.py` plays: what it takes, what the best server could get of it, what sleeps added.

A sleep takes longer than it is asked to, the more the busier the machine.  A device that is a sleep can be no faster
than that, so the stage notes how long each batch slept, and the ideal of a measurement counts what was noted in it.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import msgspec

MAX_SIZE = 64
"""Most items in a batch."""
BATCH_SECONDS = 0.005
ITEM_SECONDS = 0.0001

NOTES_VARIABLE = "ACCELERATOR_NOTES"
"""The environment variable with the path of the file where the stage notes its sleeps; it notes nothing without."""
WAIT_VARIABLE = "ACCELERATOR_MAX_WAIT"
"""The one with the `max_wait` of its batches, in seconds; the default policy without, or where it is empty."""

_NOTES = struct.Struct("=QQd")


def device_seconds(items: int) -> float:
    """What the device needs for a batch of so many items."""
    return BATCH_SECONDS + ITEM_SECONDS * items


def ideal_rate(callers: int, oversleep: float = 0.0) -> float:
    """Requests a second that so many callers in a closed loop could get, if each batch sleeps `oversleep` too long.

    The device is never idle then, and has all callers in one batch, or as many as a batch may have.
    """
    items = min(callers, MAX_SIZE)
    return items / (device_seconds(items) + oversleep)


class Sleeps(msgspec.Struct, frozen=True):
    """How many batches the device has had, of how many items together, and the seconds that their sleeps took."""

    batches: int = 0
    items: int = 0
    seconds: float = 0.0

    def __sub__(self, earlier: Sleeps) -> Sleeps:
        return Sleeps(self.batches - earlier.batches, self.items - earlier.items, self.seconds - earlier.seconds)

    @property
    def oversleep(self) -> float:
        """Seconds that a batch slept longer than it was asked to, on average; 0 without batches."""
        asked = BATCH_SECONDS * self.batches + ITEM_SECONDS * self.items
        return (self.seconds - asked) / self.batches if self.batches else 0.0


class Ideal(msgspec.Struct, frozen=True):
    """What so many callers could have got of the device in one measurement, in requests a second."""

    asked: float
    """With sleeps as long as they are asked to be."""
    real: float
    """With sleeps as long as they were in that measurement."""
    oversleep: float
    """Seconds a batch; the difference between the two."""
    mean_batch: float
    """Items in a batch, as the server made them."""

    @staticmethod
    def of(callers: int, sleeps: Sleeps) -> Ideal:
        """That of so many callers, by the sleeps of a measurement."""
        mean = sleeps.items / sleeps.batches if sleeps.batches else 0.0
        return Ideal(ideal_rate(callers), ideal_rate(callers, sleeps.oversleep), sleeps.oversleep, mean)


class SleepNotes:
    """The file where a stage notes its sleeps, for the bench to read meanwhile.

    It is mapped into memory, so that a note costs the device no system call.
    """

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _NOTES.size)
        self._sleeps = read_sleeps(path)  # a worker that is started again counts on

    def add(self, items: int, seconds: float) -> None:
        """Note a batch."""
        seen = self._sleeps
        self._sleeps = Sleeps(seen.batches + 1, seen.items + items, seen.seconds + seconds)
        _NOTES.pack_into(self._memory, 0, self._sleeps.batches, self._sleeps.items, self._sleeps.seconds)


def new_notes(path: Path) -> None:
    """Make the file, with no sleep in it."""
    path.write_bytes(_NOTES.pack(0, 0, 0.0))


def read_sleeps(path: str | Path) -> Sleeps:
    """All that was noted so far."""
    return Sleeps(*_NOTES.unpack(Path(path).read_bytes()))
