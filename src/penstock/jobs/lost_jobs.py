"""Tell why jobs that were held are ours no longer: another has them, or the store has lost them.

A store says of both that the hold is `LOST`, and is asked for the jobs then.  A job that it does not know, or knows
only by older claims, it has lost, as after FLUSHALL or when an older state was put back.  Jobs that are lost share a
line, of which there is one in `REST_SECONDS` at most: the ends of attempts come in over some time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.core.clock import Clock
from penstock.hosting.fault_log import list_ids
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.loop_clock import sleep_on
from penstock.jobs.job import Job
from penstock.jobs.rules.pauses import IDS_IN_LOOK
from penstock.jobs.store import STORE_TROUBLE, Hold

log = guarded_logger("penstock.jobs")

GATHER_SECONDS: Final = 1.0
"""How long jobs are waited for before the first line: those of one event come in several answers."""
REST_SECONDS: Final = 60.0


class LostJobs:
    """The jobs of one consumer that the store says are not ours.  `get` is the store's method, made awaitable."""

    def __init__(self, get: Callable[[Sequence[str]], Awaitable[list[Job | None]]], clock: Clock) -> None:
        self._get = get
        self._clock = clock
        self._lost: dict[str, Hold] = {}
        self._added = asyncio.Event()
        self._told = -math.inf

    def add(self, hold: Hold) -> None:
        """Tell of this one, too."""
        self._lost[hold.job_id] = hold
        self._added.set()

    async def run(self) -> None:
        """Tell until this is cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            rest = self._told + REST_SECONDS - self._clock.now()
            await sleep_on(self._clock, max(GATHER_SECONDS, rest))
            await self.tell()

    async def tell(self) -> None:
        """Tell of all that were added, now; of none where the store does not answer."""
        holds = list(self._lost.values())
        found: list[Job | None] = []
        try:
            for first in range(0, len(holds), IDS_IN_LOOK):
                found += await self._get([hold.job_id for hold in holds[first : first + IDS_IN_LOOK]])
        except STORE_TROUBLE:
            self._added.set()
            return
        gone = []
        for hold, job in zip(holds, found, strict=True):
            if self._lost.get(hold.job_id) == hold:
                del self._lost[hold.job_id]
            if is_forgotten(hold, job):
                gone.append(hold.job_id)
            else:
                log.warning(
                    "lease of job %s lost: another consumer holds the job, or it has finished; dropping its work here",
                    hold.job_id,
                )
        if gone:
            self._told = self._clock.now()
            log.error(
                "the store does not know %d jobs that this consumer holds. It was emptied or restored, or "
                "the jobs finished elsewhere and were purged: %s",
                len(gone),
                list_ids(gone, len(gone)),
            )


def is_forgotten(hold: Hold, job: Job | None) -> bool:
    """Whether a store that knows `job` so, None where it knows none, has forgotten that it gave this hold."""
    if job is None:
        return True
    return not job.attempts or job.attempts[-1].fencing_token < hold.fence
