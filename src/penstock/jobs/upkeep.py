"""What a consumer does for its queue beside its jobs: move outputs to their places, forget what is old, count.

Every consumer does it, and none is needed: what one has begun and not ended another does again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from penstock.core.clock import Clock
from penstock.errors import TransferFailed, TransferRefused
from penstock.hosting.fault_points import hit
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.loop_clock import wait_on
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.job_counters import JobCounters
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.store import STORE_TROUBLE, Delivery, Store
from penstock.jobs.work_options import WorkOptions
from penstock.transfer.transfers import Transfers

log = guarded_logger("penstock.jobs")

ROUND_SECONDS = 5.0
"""How often the queue is tended and counted."""
DELIVERIES_AT_ONCE = 64


class Tended(Protocol):
    """The consumer, as its upkeep sees it."""

    counters: JobCounters

    @property
    def store(self) -> Store:
        """The store."""


class Upkeep:
    """The upkeep of one consumer; `threads` make the calls of the store, and move outputs."""

    def __init__(
        self,
        consumer: Tended,
        targets: Sequence[JobTarget],
        transfers: Transfers,
        options: WorkOptions,
        threads: CallThreads,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._consumer = consumer
        self._targets = targets
        self._transfers = transfers
        self._options = options
        self._threads = threads
        self._clock = clock
        self._draw = draw
        self._asked = asyncio.Event()
        self._speed = Speed()
        self._left_to_others: set[tuple[str, int]] = set()
        """The deliveries that this consumer may not make, by job and last fence."""

    def ask(self) -> None:
        """An output waits to be moved."""
        self._asked.set()

    async def run(self) -> None:
        """Tend the queue until this is cancelled."""
        while True:
            try:
                await self._tend()
                while await self._deliver():
                    pass
            except STORE_TROUBLE:
                pass  # the claim loop says so, and asks again
            await self._rest(ROUND_SECONDS * (0.8 + 0.4 * self._draw()))

    async def _rest(self, seconds: float) -> None:
        await wait_on(self._clock, self._asked, seconds)
        self._asked.clear()

    async def _tend(self) -> None:
        store, options = self._consumer.store, self._options
        await self._threads.run(
            partial(
                store.tend,
                keep=options.keep,
                keep_dead=options.keep_dead,
                seconds_per_job=self._speed.measure(self._targets),
            )
        )
        self._consumer.counters.stats = await self._threads.run(store.stats)

    async def deliver_all(self) -> bool:
        """Move every output; returns whether none is left but those that this consumer may not move.

        One that another consumer is moving is left: that consumer may have been killed.
        """
        try:
            while await self._deliver():
                pass
            stats = await self._threads.run(self._consumer.store.stats)
        except STORE_TROUBLE:
            return False
        return stats.undelivered <= len(self._left_to_others)

    async def _deliver(self) -> bool:
        """Move some outputs; returns whether there may be more."""
        store = self._consumer.store
        # Who is killed with a delivery holds it up no longer than a job.  One that is made twice does no harm.
        found = await self._threads.run(partial(store.deliveries, limit=DELIVERIES_AT_ONCE, lease=self._options.lease))
        if not found:
            return False
        hit("before_delivery")
        done = [each for each in found if await self._threads.run(partial(self._move, each))]
        hit("after_delivery")
        if done:
            await self._threads.run(partial(store.delivered, done))
        return len(found) == DELIVERIES_AT_ONCE and len(done) == len(found)

    def _move(self, delivery: Delivery) -> bool:
        """Move one output, and remove what other attempts have left; returns whether it is done."""
        try:
            self._transfers.check_output(delivery.output)
        except TransferRefused as error:
            left = (delivery.job_id, delivery.last_fence)
            if left not in self._left_to_others:
                self._left_to_others.add(left)
                log.error("the output of job %s is left to a consumer that may move it: %s", delivery.job_id, error)  # noqa: TRY400
            return False
        try:
            if delivery.fence:
                self._transfers.finish_output(delivery.output, delivery.job_id, delivery.fence)
            for fence in range(delivery.first_fence, delivery.last_fence + 1):
                if fence != delivery.fence:
                    self._transfers.discard_output(delivery.output, delivery.job_id, fence)
        except TransferFailed as error:
            log.warning("the output of job %s is not in its place yet: %s", delivery.job_id, error)
            return False
        except TransferRefused as error:  # to ask again would be in vain
            what = "is lost" if delivery.fence else "had nothing to be moved, and what is beside it stays"
            log.error("the output of job %s %s: %s", delivery.job_id, what, error)  # noqa: TRY400
        return True


class Speed:
    """How many seconds of the model a job takes, as the stages' counters say."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        self._seconds: float | None = None

    def measure(self, targets: Sequence[JobTarget]) -> float | None:
        """The seconds for one job since the last measurement, or before where nothing ran; None where nothing ever did.

        With several services it is the sum over their stages divided by the services that ran.
        """
        totals: dict[str, float] = {}
        for target in targets:
            service = target.service
            for stage in service.engine.stages if service.engine is not None else ():
                key = (service.name, stage.name)
                seconds, items = stage.counters.computed.total, stage.counters.batch_size.total
                seconds_before, items_before = self._before.get(key, (0.0, 0.0))
                if items > items_before:
                    share = (seconds - seconds_before) / (items - items_before)
                    totals[service.name] = totals.get(service.name, 0.0) + max(share, 0.0)
                    self._before[key] = (seconds, items)
        if totals:
            self._seconds = sum(totals.values()) / len(totals)
        return self._seconds
