"""Decide when a dead worker is started again, when a live one is examined or recycled, and when a stage has failed.

Pure: it is told what happened and when.  A death before READY counts towards FAILED; a later one only costs a restart.
A recycle counts towards FAILED too, until an item ends well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0
FAILED_AFTER_STARTS = 5
"""A stage has failed when no worker is ready and so many starts in a row of each did not reach READY."""
SICK_AFTER_BATCHES = 5
"""A worker is suspected of being broken after so many whole failures in a row: batches in which all items failed."""
EXAMINATION_INTERVAL_SECONDS = 1.0
"""A worker is examined at most once in so long: an examination takes time from its clients."""
FAILED_AFTER_RECYCLES = 3
"""A stage has failed after so many recycles in a row with no good item between them."""
FIRST_REST_SECONDS = 30.0
"""How long a stage rests the first time it failed in this way; each time that follows is twice as long."""
LONGEST_REST_SECONDS = 300.0
MEMORY_SECONDS = 30.0
"""For how long after its end a process may hold memory: a driver frees that of a device late, and what the process has
started may have some too."""


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


class Verdict(IntEnum):
    """What a worker's last batch, or its examination, means for the worker."""

    SERVE = 0
    """It goes on."""
    EXAMINE = 1
    """It runs the stage's first example, after what it holds."""
    RECYCLE = 2
    """It is ended, and another one is started."""


class WorkerHealth:
    """One worker's record: how soon it is restarted, and whether it should be examined or ended.

    A client may send what makes a stage raise, as often as it likes.  So failures alone say nothing about a worker.
    With `examined`, the stage has examples, and the first one tells whether the worker or its input is at fault.
    Without, the worker is ended when nothing but failures came from it for `recycle_after` seconds.
    """

    def __init__(self, *, examined: bool = False, recycle_after: float = 0.0) -> None:
        self.restart = Backoff()
        self._examined = examined
        self._recycle_after = recycle_after
        self._recycle = Backoff()
        self._recycle_from = 0.0
        self._unwell = Backoff()
        self._unwell_from = 0.0
        self._memory = Backoff()
        self._memory_from = 0.0
        """When a process that finds too little memory has failed by that."""
        self._begin()

    def _begin(self) -> None:
        self._failures = 0
        """Whole failures in a row."""
        self._failing_since = 0.0
        """When the first of them was reported."""
        self._examining = False
        self._examine_from = 0.0

    def made_room(self, now: float) -> None:
        """The process before the next one has ended, or the server has started and others may have ended before it."""
        self._memory_from = now + MEMORY_SECONDS
        self._memory.reset()

    def memory_wait(self, now: float) -> float:
        """In how many seconds a process that has found too little memory is started once more; 0: it has failed.

        The last such start is when no memory is hoped for any more.  These delays are a backoff of their own, because
        they say nothing of how soon a worker is started again that has died.
        """
        left = self._memory_from - now
        return min(max(FIRST_DELAY_SECONDS, self._memory.next_delay()), left) if left > 0 else 0.0

    def batch_finished(self, *, succeeded: bool, failed: bool, now: float, on_trial: bool = False) -> Verdict:
        """Record a batch.

        `succeeded`: an item had a result.  `failed`: an item failed by no fault of its caller.  A batch with neither
        says nothing.  `on_trial`: the stage has failed before, and so many batches are enough.  Recycling keeps its own
        backoff: bad input that looks like a fault cannot keep a worker down.
        """
        if succeeded or not failed:
            self.restart.reset()
        if succeeded:
            self._failures = 0
            self._recycle.reset()
        if succeeded or not failed:
            return Verdict.SERVE
        if not self._failures:
            self._failing_since = now
        self._failures += 1
        if self._failures < SICK_AFTER_BATCHES:
            return Verdict.SERVE
        return self._judge(now, on_trial)

    def _judge(self, now: float, on_trial: bool) -> Verdict:
        """What enough whole failures in a row mean."""
        if now < self._recycle_from and not (on_trial and self._recycle_from < math.inf):
            return Verdict.SERVE
        if self._examined:
            if self._examining or now < self._examine_from:
                return Verdict.SERVE
            self._examining = True
            self._examine_from = now + EXAMINATION_INTERVAL_SECONDS
            return Verdict.EXAMINE
        if now - self._failing_since < self._recycle_after and not on_trial:
            return Verdict.SERVE
        return self._end()

    def examination_finished(self, *, well: bool) -> Verdict:
        """Record that the example ran.  Where it ran well, so is the worker, and the count starts again."""
        self._examining = False
        self._failures = 0
        return Verdict.SERVE if well else self._end()

    def checked(self, *, well: bool, now: float) -> Verdict:
        """Record what the stage's own `health` says, or that it took too long.

        It ends a worker once in its backoff, which is a third one: batches that succeed do not reset it.  Such an end
        does not count towards FAILED, because all workers may ask the same thing that is gone for a moment.
        """
        if well:
            self._unwell.reset()
            return Verdict.SERVE
        if now < self._unwell_from:
            return Verdict.SERVE
        self._unwell_from = math.inf  # until it is ready again
        return Verdict.RECYCLE

    def _end(self) -> Verdict:
        self._failures = 0
        self._recycle_from = math.inf  # until it is ready again
        return Verdict.RECYCLE

    def became_ready(self, now: float) -> None:
        """The worker reached READY.

        The delay to the next recycling counts from here: a model that takes long to load must serve for a while too.
        """
        self._begin()
        if self._recycle_from == math.inf:
            self._recycle_from = now + self._recycle.next_delay()
        if self._unwell_from == math.inf:
            self._unwell_from = now + self._unwell.next_delay()


class StageHealth:
    """A stage's record: it has failed when none of its workers is ready, and none can be started or does any good.

    After three recycles in a row without one good item between them the stage *rests*: it has no workers.  When the
    rest is over, its workers are started again.  The stage is then on trial until an item ends well.  The next recycle
    begins a rest that is twice as long, and so does a start that fails before any worker is ready.  The latter holds
    back no worker that can be started: one broken GPU must not keep the other seven from their trial.
    """

    def __init__(self, workers: int) -> None:
        self.ever_ready = False
        self.failed_starts = [0] * workers
        """For each worker, its starts in a row that did not reach READY."""
        self.reason = ""
        self.resting = False
        self.rest_ends = 0.0
        """When a stage that rests is tried again."""
        self._rests_after_recycle = False
        """Whether the rest began with a recycle, and not with a start that failed."""
        self._recycles = 0
        """Recycles in a row without a good item between them."""
        self._rest_seconds = 0.0
        self._rested = False
        """Whether the stage has begun a rest, and has not recovered from it."""

    @property
    def on_trial(self) -> bool:
        """Whether the stage has rested, and no item has ended well since."""
        return self._rest_seconds > 0 and not self.resting

    def may_serve(self, now: float) -> bool:
        """Whether a worker that reaches READY now may serve; one that was being started when a rest began may not."""
        return not (self.resting and self._rests_after_recycle and now < self.rest_ends)

    def became_ready(self, index: int) -> None:
        """Worker `index` reached READY, and may serve."""
        self.ever_ready = True
        self.failed_starts[index] = 0
        self.resting = False
        self.reason = ""

    def died_before_ready(self, index: int, reason: str, now: float) -> None:
        """Worker `index` ended before READY; `reason` says why."""
        self.failed_starts[index] += 1
        self.reason = reason
        if self.resting and now >= self.rest_ends:
            self._rest(now, after_recycle=False)

    def recycled(self, reason: str, now: float) -> bool:
        """A worker was ended because all its items failed, the last with `reason`; True if the stage rests from now."""
        self._recycles += 1
        if self.resting or self._recycles < FAILED_AFTER_RECYCLES:
            return False
        self.reason = reason
        self._rest(now, after_recycle=True)
        return True

    def _rest(self, now: float, *, after_recycle: bool) -> None:
        self.resting = self._rested = True
        self._rests_after_recycle = after_recycle
        self._rest_seconds = min(max(FIRST_REST_SECONDS, 2 * self._rest_seconds), LONGEST_REST_SECONDS)
        self.rest_ends = now + self._rest_seconds

    def item_succeeded(self) -> bool:
        """An item of the stage ended well: forget all recycles before it.  True if the stage has recovered by that.

        A worker that is being ended may answer well while the rest begins.  That is no recovery.
        """
        self._recycles = 0
        self._rest_seconds = 0.0
        recovered = self._rested and not self.resting
        if recovered:
            self._rested = False
        return recovered

    def failed(self, live_workers: int) -> bool:
        """Whether the stage has failed, with `live_workers` of its workers ready.

        A worker that was ready and died has all its tries again, whatever became of the others.
        """
        return live_workers == 0 and (self.resting or min(self.failed_starts) >= FAILED_AFTER_STARTS)

    def rest_left(self, now: float) -> float | None:
        """In how many seconds a stage that rests is tried again, 0 while it is being tried; None without a rest."""
        return max(0.0, self.rest_ends - now) if self.resting else None

    def delay(self, backoff: Backoff, live_workers: int, now: float, *, innocent: bool = False) -> float:
        """How long to wait before a dead worker is started again; `innocent` says that we ended it."""
        rest_left = self.rest_left(now)
        if rest_left is not None:
            return rest_left
        if innocent:
            return 0.0
        return LONGEST_DELAY_SECONDS if self.failed(live_workers) else backoff.next_delay()


def longest_rest(stages: Iterable[StageHealth], now: float) -> float:
    """In how many seconds each stage that rests will have been tried again; 0 if none rests."""
    return max((stage.rest_left(now) or 0.0 for stage in stages), default=0.0)


def share_threads(cores: Sequence[frozenset[int]]) -> list[int]:
    """Threads for each worker of a stage, from the cores each may use: its cores divided by the workers on them."""
    return [max(1, len(own) // sum(1 for other in cores if other & own)) for own in cores]
