"""Claim jobs as there is room for them: the loop in which a consumer asks its store for work.

Contract
--------
* Nothing is claimed unless every service is READY or BUSY, nor while the spool is full or a service short of memory.
* What is held and not begun is bounded (`rules/credit.py`).
* An empty queue is asked again after `poll` seconds, and a store that does not answer after rests that grow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.core.clock import Clock
from penstock.hosting.fault_points import hit
from penstock.hosting.loop_clock import wait_on
from penstock.jobs.held_work import HeldWork, Holding
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.rules.credit import NO_CREDIT, Credit, credit
from penstock.jobs.spool import Spool
from penstock.jobs.store import STORE_TROUBLE, ClaimedJob
from penstock.jobs.store_watch import StoreWatch
from penstock.jobs.work_options import WorkOptions

MOST_CLAIMED: Final = 1024
"""The most jobs that one call claims."""
TICK_SECONDS: Final = 1.0
"""How often it is looked for room where nothing has told of any."""


class Claiming:
    """The claims of one consumer.  Every call is made on the event loop's thread.

    `claim` asks the store for so many jobs with so many bytes.  `begin` takes each job that is held from then on.
    `is_done` says whether nothing is left to do in the queue.  `downloads` is how many inputs are fetched at a time.
    """

    def __init__(
        self,
        targets: Sequence[JobTarget],
        holding: Holding,
        options: WorkOptions,
        *,
        claim: Callable[[int, int], Awaitable[list[ClaimedJob]]],
        begin: Callable[[HeldWork], None],
        is_done: Callable[[], Awaitable[bool]],
        spool: Spool,
        store_watch: StoreWatch,
        downloads: int,
        clock: Clock,
        boot: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._targets = targets
        self._holding = holding
        self._options = options
        self._claim = claim
        self._begin_one = begin
        self._is_done = is_done
        self._spool = spool
        self._store_watch = store_watch
        self._downloads = downloads
        self._clock = clock
        self._boot = boot
        self._draw = draw
        self.stopped = False
        """Whether nothing more is claimed."""
        self.turned = clock.now()
        """When the last attempt to claim began."""
        self._changed = asyncio.Event()
        """Set when there may be more room."""
        self._rested = asyncio.Event()
        """Set when a rest is over."""
        self._look_is_due = False
        self._fetches = False
        """Whether a job that was claimed lately has an input to be fetched."""

    def stop(self) -> None:
        """Claim nothing more.  What a call that is under way brings is held, and released."""
        self.stopped = True
        self._changed.set()
        self._rested.set()

    def look(self) -> None:
        """There may be more room."""
        self._look_is_due = False
        self._changed.set()

    def look_soon(self) -> None:
        """Look for room when the engine has sent what it has, which is when the model begins."""
        if not self._look_is_due:
            self._look_is_due = True
            asyncio.get_running_loop().call_soon(self.look)

    async def run(self) -> bool:
        """Claim until this is stopped, or until nothing is left to do where that is when to end: then True."""
        while not self.stopped:
            self.turned = self._clock.now()
            self._changed.clear()
            allowed = self._credit()
            if not allowed.jobs:
                await wait_on(self._clock, self._changed, TICK_SECONDS)
                continue
            sent = self._boot()
            try:
                claimed = await self._claim(min(allowed.jobs, MOST_CLAIMED), allowed.nbytes)
            except STORE_TROUBLE as error:
                await self._rest(self._store_watch.claim_failed(error, self._draw()))
                continue
            self._store_watch.claim_answered()
            hit("after_claim")
            self._begin(claimed, sent + self._options.lease)
            if claimed:
                continue  # there may be more, also where there were fewer than asked for: bytes are bounded, too
            if self._options.until_empty and await self._is_done():
                return True
            await self._rest(self._options.poll)
        return False

    def _credit(self) -> Credit:
        engines = [(target, target.service.engine) for target in self._targets]
        ready = [t for t, e in engines if e is not None and e.state.accepting and not e.memory_short]
        if len(ready) < len(self._targets) or self._spool.full:
            return NO_CREDIT
        jobs = self._holding.jobs()
        return credit(
            held=len(jobs),
            begun=sum([job.begun for job in jobs]),
            held_bytes=self._holding.nbytes,
            window=sum([target.batch_items for target in ready]),
            downloads=self._downloads if self._fetches else 0,
            concurrency=self._options.concurrency,
            max_bytes=self._options.max_held_bytes,
        )

    def _begin(self, claimed: Sequence[ClaimedJob], lease_until: float) -> None:
        now = self._clock.now()
        if claimed:
            self._fetches = any(job.input_url is not None for job in claimed)
        for each in claimed:
            job = HeldWork(each, lease_until, now)
            self._holding.add(job)
            job.released = self.stopped
            self._begin_one(job)

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until this is stopped."""
        self._rested.clear()
        if not self.stopped:
            await wait_on(self._clock, self._rested, seconds)
