"""Tells how long what is in hand will take, and whether a newcomer would end in time.

`core/predicted_end.py` decides it.  Here is what it is told of the stages.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final

from penstock.config import ServiceOptions
from penstock.core.admission import Admission
from penstock.core.batching import BatchQueue
from penstock.core.clock import FOREVER_SECONDS, Clock
from penstock.core.dispatch import SentFrame, least_busy, may_hold_another
from penstock.core.lanes import Lane
from penstock.core.predicted_end import (
    PACKED_RUN,
    StageLoad,
    predicted_end,
    seconds_others_miss,
    seconds_to_clear,
    seconds_until_free,
)
from penstock.core.tenants import Tenant
from penstock.runtime.retry_times import RetryTimes
from penstock.runtime.stage_driver import StageDriver
from penstock.runtime.worker_slot import WorkerSlot

BACK: Final = Lane.BACK


class Prediction:
    """What is foreseen of one service.  `refuses` says whether newcomers are refused by it."""

    def __init__(
        self,
        stages: Sequence[StageDriver],
        admission: Admission,
        retry_times: RetryTimes,
        options: ServiceOptions,
        clock: Clock,
    ) -> None:
        self.refuses = options.admission == "deadline"
        self._overtakes = options.queue_order == "edf"
        self._back_share = options.background_share
        self._stages = list(stages)
        self._admission = admission
        self._retry_times = retry_times
        self._now = clock.now

    def seconds_too_late(self, deadline: float, lane: Lane, urgency: int, tenant: Tenant) -> float:
        """By how many seconds a newcomer would miss its deadline, or make others miss theirs; 0 if it does neither.

        It is 0 too where newcomers are refused by room alone, for what is of BACK, where nothing waits for an idle
        worker of the first stage, and while some stage has run nothing or has no worker.
        """
        if not self.refuses or lane is BACK or deadline > FOREVER_SECONDS:
            return 0.0
        first = self._stages[0]
        if not first.queue.front_items and _has_idle_worker(first):
            return 0.0
        now = self._now()
        loads = []
        for stage in self._stages:
            load = self._load(stage, now, stage.queue.ahead_of(urgency, tenant, lane, deadline))
            if load is None:
                return 0.0
            if self._overtakes:
                load.run *= PACKED_RUN
            loads.append(load)
        late = now + predicted_end(loads) - deadline
        if late > 0 or not self._overtakes:
            return max(0.0, late)
        behind = first.queue.deadlines_behind(urgency, tenant, lane, deadline)
        return seconds_others_miss(loads, now, behind) if behind else 0.0

    @property
    def backlog_seconds(self) -> float:
        """How long what is in hand will take, but for what is of BACK; 0 while nothing is in hand."""
        items = self._admission.items
        if not items:
            return 0.0
        now = self._now()
        loads = [self._load(stage, now, stage.queue.front_items) for stage in self._stages]
        known = [load for load in loads if load is not None]
        return items / self._retry_times.rate() if len(known) < len(loads) else seconds_to_clear(known)

    def _load(self, stage: StageDriver, now: float, waiting: int) -> StageLoad | None:
        """What lies before one who comes behind `waiting` items of `stage`.

        None while it has run nothing, or no worker of it is ready.
        """
        queue = stage.queue
        size = stage.spec.policy.max_size
        run = queue.expected_run(min(size, waiting + 1))  # what goes before a newcomer fills its batches
        free = []
        for worker in stage.workers:
            if worker.ready and stage.waits:
                free += _free_places(queue, worker, now)
            elif worker.ready:
                batches = [sent for sent in worker.frames if sent.items]
                runs = [_expected_run(queue, sent) for sent in batches]
                # A run of `health` or of an example is no batch: what lies behind it has not begun.
                elapsed = now - worker.running_since if batches and batches[0].running else 0.0
                free.append(seconds_until_free(runs, elapsed))
        if run == 0.0 or not free:
            return None
        if stage.most_batches is not None:
            # While its bound is reached a worker that holds nothing gets nothing; those are the first of the free.
            free = sorted(free)[-stage.most_batches :]
        front = size * (1.0 - self._back_share) if queue.back_items else float(size)
        return StageLoad(waiting, stage.in_flight - stage.back_in_flight, front, run, free)


def _expected_run(queue: BatchQueue, sent: SentFrame) -> float:
    """How long `sent` should run."""
    n = len(sent.items)
    run = queue.expected_run(n)
    return (queue.expected_back_run(n) or run) if sent.back == n else run


def _free_places(queue: BatchQueue, worker: WorkerSlot, now: float) -> list[float]:
    """In how many seconds each place of a worker should be free that runs several batches at once.

    A batch behind these begins at the place that is free first.
    """
    batches = [sent for sent in worker.frames if sent.items]
    n = worker.concurrency
    running = [seconds_until_free([_expected_run(queue, sent)], now - sent.began) for sent in batches[:n]]
    free = sorted([*running, *[0.0] * (n - len(running))])
    for sent in batches[n:]:
        insort(free, free.pop(0) + _expected_run(queue, sent))
    return free


def _has_idle_worker(stage: StageDriver) -> bool:
    """Whether a ready worker has no batch, and may be given one.

    One that runs `health` or an example has none, and is soon back.
    """
    if not may_hold_another(stage.workers, stage.most_batches):
        return False
    if least_busy(stage.workers, stage.concurrency) is not None:
        return True
    return any(w.ready and not any(sent.items for sent in w.frames) for w in stage.workers)
