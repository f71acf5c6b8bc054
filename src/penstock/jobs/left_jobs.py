"""Tell why a consumer that ends when its queue is empty does not: nobody here may claim what is left.

Contract
--------
* A queue that is paused, and jobs of services that are not here, are looked for at once and then once in
  `REST_SECONDS`, and told each time.
* Jobs that will be claimed here, or that others hold, are nothing to tell of.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from penstock.core.clock import Clock
from penstock.hosting.fault_log import list_ids
from penstock.hosting.guarded_log import guarded_logger
from penstock.jobs.job import Job, Stats
from penstock.jobs.rules.job_states import JobState

log = guarded_logger("penstock.jobs")

REST_SECONDS: Final = 60.0
MOST_LOOKED_AT: Final = 100
"""The most jobs of a state that are looked at: a claim that brought nothing has passed over every one that waits."""


class LeftJobs:
    """The jobs that are left to a consumer of `services`.  `first` lists the first jobs in a state."""

    def __init__(
        self, services: Collection[str], first: Callable[[JobState, int], Awaitable[list[Job]]], clock: Clock
    ) -> None:
        self._services = services
        self._first = first
        self._clock = clock
        self._looked = -math.inf

    async def tell(self, stats: Stats) -> None:
        """Tell why the jobs of `stats`, of which nothing was claimed just now, are not worked on.

        Raises:
            StoreUnavailable, ConfigError: the store does not answer.
        """
        left = stats.queued + stats.scheduled
        if not left or self._clock.now() < self._looked + REST_SECONDS:
            return
        self._looked = self._clock.now()
        if stats.paused:
            why = "the queue is paused; continue with `penstock jobs resume`"
        else:
            jobs = [*await self._of(JobState.QUEUED), *await self._of(JobState.SCHEDULED)]
            names = sorted({job.service for job in jobs} - {"", *self._services})
            why = (
                f"they are for services that this consumer does not have: {list_ids(names, len(names))}"
                if names
                else ""
            )
        if why:
            log.warning(
                "--until-empty keeps this consumer running, and it cannot claim the %d jobs left: %s", left, why
            )

    async def _of(self, state: JobState) -> list[Job]:
        return await self._first(state, MOST_LOOKED_AT)
