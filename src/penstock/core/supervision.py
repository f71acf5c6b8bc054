"""Decide when a dead worker is started again, when a live one is recycled, and when a stage has failed.

Pure: it is told what happened and when.  A death before READY counts towards FAILED; a later one only costs a restart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0
FAILED_AFTER_STARTS = 5
"""A stage has failed when no worker is ready and so many starts in a row of each did not reach READY."""
SICK_AFTER_BATCHES = 5
"""A worker is recycled after so many whole failures in a row; `WorkerHealth.batch_finished` says what one is."""


class Backoff:
    """The delay before each next try: 0, 0.1 s, doubling to 30 s; `reset` starts over."""

    def __init__(self) -> None:
        self._delay = 0.0

    def next_delay(self) -> float:
        """The delay to keep now; the next one is longer."""
        delay = self._delay
        self._delay = min(max(FIRST_DELAY_SECONDS, delay * 2), LONGEST_DELAY_SECONDS)
        return delay

    def reset(self) -> None:
        """The last try worked."""
        self._delay = 0.0


class WorkerHealth:
    """One worker's record: how soon it is restarted, and whether it should be ended."""

    def __init__(self) -> None:
        self.restart = Backoff()
        self._recycle = Backoff()
        self._recycle_from = 0.0
        self._whole_failures = 0

    def batch_finished(self, *, whole_failure: bool, now: float) -> bool:
        """Record a batch; True if the worker must be recycled now.

        `whole_failure`: no item had a result and at least one failed by no fault of its caller.  Recycling keeps
        its own backoff: a model that fails on every input is not restarted over and over, and bad input that looks
        like a fault cannot keep its worker down.
        """
        if not whole_failure:
            self._whole_failures = 0
            self.restart.reset()
            self._recycle.reset()
            return False
        self._whole_failures += 1
        if self._whole_failures < SICK_AFTER_BATCHES or now < self._recycle_from:
            return False
        self._whole_failures = 0
        self._recycle_from = math.inf  # until it is ready again
        return True

    def became_ready(self, now: float) -> None:
        """The worker reached READY.

        The delay to the next recycling counts from here: a model that takes long to load must serve for a while too.
        """
        if self._recycle_from == math.inf:
            self._recycle_from = now + self._recycle.next_delay()


class StageHealth:
    """A stage's record of starts: it has failed when none of its workers is ready and none can be started."""

    def __init__(self, workers: int) -> None:
        self.ever_ready = False
        self.failed_starts = [0] * workers
        """For each worker, its starts in a row that did not reach READY."""
        self.reason = ""

    def became_ready(self, index: int) -> None:
        """Worker `index` reached READY."""
        self.ever_ready = True
        self.failed_starts[index] = 0
        self.reason = ""

    def died_before_ready(self, index: int, reason: str) -> None:
        """Worker `index` ended before READY; `reason` says why."""
        self.failed_starts[index] += 1
        self.reason = reason

    def failed(self, live_workers: int) -> bool:
        """Whether the stage has failed, with `live_workers` of its workers ready.

        A worker that was ready and died has all its tries again, whatever became of the others.
        """
        return live_workers == 0 and min(self.failed_starts) >= FAILED_AFTER_STARTS

    def delay(self, backoff: Backoff, live_workers: int) -> float:
        """How long to wait before starting a dead worker again."""
        return LONGEST_DELAY_SECONDS if self.failed(live_workers) else backoff.next_delay()


def share_threads(cores: Sequence[frozenset[int]]) -> list[int]:
    """Threads for each worker of a stage, from the cores each may use: its cores divided by the workers on them."""
    return [max(1, len(own) // sum(1 for other in cores if other & own)) for own in cores]
