"""Upkeep of a queue by a consumer, beside its jobs and their outputs: forget what is old, count.

Every consumer does it, and the queue needs none to.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from penstock.core.clock import Clock
from penstock.hosting.loop_clock import sleep_on
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.job_counters import JobCounters
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.store import STORE_TROUBLE, Store
from penstock.jobs.work_options import WorkOptions

ROUND_SECONDS = 5.0
"""How often the queue is tended and counted."""


class Tended(Protocol):
    """The consumer, as its upkeep sees it."""

    counters: JobCounters

    @property
    def store(self) -> Store:
        """The store."""


class Upkeep:
    """The upkeep of one consumer; `threads` make the calls of the store."""

    def __init__(
        self,
        consumer: Tended,
        targets: Sequence[JobTarget],
        options: WorkOptions,
        threads: CallThreads,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._consumer = consumer
        self._targets = targets
        self._options = options
        self._threads = threads
        self._clock = clock
        self._draw = draw
        self._speed = Speed()

    async def run(self) -> None:
        """Tend the queue until this is cancelled."""
        while True:
            with contextlib.suppress(*STORE_TROUBLE):  # the claim loop says so, and asks again
                await self._tend()
            await sleep_on(self._clock, ROUND_SECONDS * (0.8 + 0.4 * self._draw()))

    async def _tend(self) -> None:
        store, options = self._consumer.store, self._options
        await self._threads.run(
            partial(
                store.tend,
                keep=options.result_ttl,
                keep_dead=options.dead_ttl,
                seconds_per_job=self._speed.measure(self._targets),
            )
        )
        self._consumer.counters.stats = await self._threads.run(store.stats)


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
                seconds, items = stage.counters.run_seconds.total, stage.counters.batch_size.total
                seconds_before, items_before = self._before.get(key, (0.0, 0.0))
                if items > items_before:
                    share = (seconds - seconds_before) / (items - items_before)
                    totals[service.name] = totals.get(service.name, 0.0) + max(share, 0.0)
                    self._before[key] = (seconds, items)
        if totals:
            self._seconds = sum(totals.values()) / len(totals)
        return self._seconds
