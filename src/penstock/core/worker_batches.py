"""Which batches of one stage are with its workers, as far as the batching has to know.  Pure: it is told the time."""

from __future__ import annotations

import math
from typing import Final

from penstock.core.run_times import RunTimes

PEAKS: Final = 8
"""How many answers ago what was in hand still counts."""


class WorkerBatch:
    """What one worker has: the sizes of its batches, the oldest first."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.began = 0.0
        """When the oldest of them began."""
        self.free_since = -1.0
        """When it had none any more; -1 where that is not known."""


class WorkerBatches:
    """The batches of a stage with at most `workers` live workers.

    `came_free` says that a worker has come free since that was last looked at.  Set it to False then.
    """

    def __init__(self, workers: int, max_batches: int | None = None) -> None:
        self.workers = workers
        self.came_free = False
        self._max_batches = max_batches
        self._known: dict[int, WorkerBatch] = {}
        self._busy = 0
        self._out = 0
        """The batches that are with workers."""
        self._items_out = 0
        self._peak = 0
        """The most items in hand since the last answer."""
        self._peaks: list[int] = [0] * PEAKS

    @property
    def live(self) -> int:
        """How many workers may run at once."""
        most = self._max_batches
        return self.workers if most is None or most > self.workers else most

    @property
    def free(self) -> int:
        """How many workers are free."""
        free = self.workers - self._busy
        if self._max_batches is not None:
            free = min(free, self._max_batches - self._out)
        return max(0, free)

    def in_hand(self, waiting: int) -> None:
        """Note that so many items wait, before some of them leave or a worker's batch does."""
        self._peak = max(self._peak, waiting + self._items_out)

    def all_here(self, waiting: int) -> bool:
        """Whether as many wait as a worker could have, by the most that were in hand between two answers lately."""
        most = 0
        for peak in self._peaks:
            most = max(most, peak)
        return waiting * max(1, self.live) >= most

    def sent(self, worker: int, size: int, now: float) -> None:
        """A worker has been given a batch."""
        found = self._known.get(worker)
        if found is None:
            found = self._known[worker] = WorkerBatch()
        if not found.sizes:
            found.began = now
            self._busy += 1
        found.sizes.append(size)
        self._out += 1
        self._items_out += size

    def back(self, worker: int, waiting: int, now: float) -> None:
        """The oldest batch of a worker has come back, where so many items wait."""
        found = self._known.get(worker)
        if found is None or not found.sizes:
            return
        self.in_hand(waiting)
        self._items_out -= found.sizes.pop(0)
        self._out -= 1
        found.began = now
        if not found.sizes:
            self._busy -= 1
            found.free_since = now
            self.came_free = True
        self._peaks.pop(0)
        self._peaks.append(self._peak)
        self._peak = 0

    def unsent(self, worker: int, waiting: int) -> None:
        """The latest batch of a worker was not sent, where so many items wait."""
        self.in_hand(waiting)
        found = self._known[worker]
        self._items_out -= found.sizes.pop()
        self._out -= 1
        if not found.sizes:
            self._busy -= 1

    def lost(self, worker: int, waiting: int) -> None:
        """A worker is gone, and what it had, where so many items wait."""
        self.in_hand(waiting)
        found = self._known.pop(worker, None)
        if found is not None and found.sizes:
            self._busy -= 1
            self._out -= len(found.sizes)
            self._items_out -= sum(found.sizes)

    def idle_for(self, worker: int, moment: float) -> float:
        """How long a worker had been free at `moment`; 0 where that is not known."""
        found = self._known.get(worker)
        return moment - found.free_since if found is not None and found.free_since >= 0.0 else 0.0

    def free_for(self, now: float) -> float:
        """How long some worker has been free, at the most; 0 if none is, inf where one has had no batch yet."""
        if not self.free:
            return 0.0
        if len(self._known) < self.workers:
            return math.inf
        longest = 0.0
        for found in self._known.values():
            if not found.sizes and now - found.free_since > longest:
                longest = now - found.free_since
        return longest

    def soonest(self, runs: RunTimes, now: float) -> float:
        """In how many seconds the first of the workers that have one batch should be free; inf if there is none."""
        soonest = math.inf
        if self._busy:
            for found in self._known.values():
                if len(found.sizes) == 1:
                    left = found.began + runs.expected(found.sizes[0]) - now
                    soonest = min(soonest, left)
        return max(0.0, soonest)
