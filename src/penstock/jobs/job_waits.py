"""Wait for the ends of many jobs at once: one poller asks for all of them, and no wait has a thread.

Contract
--------
* A job is looked at soon after its wait began, and then at growing intervals; the more waits there are, the longer.
* A wait ends in its time, whatever the store does.
* A wait whose caller has left costs nothing more.
* After `let_go` every wait ends at once, as if its time were up.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Final

from penstock.core.clock import Clock, calling_later
from penstock.errors import JobNotFound, Overloaded, StoreUnavailable
from penstock.hosting.loop_clock import sleep_on
from penstock.jobs.endings import no_such_job
from penstock.jobs.job import Job
from penstock.jobs.rules.pauses import IDS_IN_LOOK, longer_pause

TICK_SECONDS: Final = 0.02
"""How often the poller looks whose turn it is, and the first interval of a wait."""
LONGEST_PAUSE_SECONDS: Final = 0.25

Look = Callable[[Sequence[str]], Awaitable[list[Job | None]]]
"""The jobs of these ids as they are now; None for each that is not there."""


class _Wait:
    """One wait.  `job` is as it was last seen; `error` is why that is no longer known."""

    def __init__(self, job: Job, over: asyncio.Future[None]) -> None:
        self.job = job
        self.over = over
        self.pause = TICK_SECONDS
        self.error: StoreUnavailable | JobNotFound | None = None

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class JobWaits:
    """The waits of one host."""

    def __init__(self, look: Look, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._waits: set[_Wait] = set()
        self._due: list[tuple[float, int, _Wait]] = []
        """A heap of when each wait is to be looked at next."""
        self._order = count()
        self._poller: asyncio.Task[None] | None = None
        self._let_go = False

    def __len__(self) -> int:
        return len(self._waits)

    async def until_ended(self, job: Job, seconds: float) -> Job:
        """`job` as soon as it has ended, or as it is after `seconds`.

        Raises:
            JobNotFound: somebody has purged it meanwhile.
            StoreUnavailable: the time is up, and the store did not answer lately.
        """
        if job.is_finished or seconds <= 0 or self._let_go:
            return job
        wait = _Wait(job, asyncio.get_running_loop().create_future())
        self._waits.add(wait)
        self._look_later(wait)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())
        try:
            with calling_later(self._clock, seconds, wait.end):
                await wait.over
        finally:
            self._waits.discard(wait)
        if wait.error is not None:
            raise wait.error
        return wait.job

    def let_go(self) -> None:
        """End every wait now, and each further one as it comes."""
        self._let_go = True
        for wait in self._waits:
            wait.end()

    async def _poll(self) -> None:
        """Look at each wait when it is due, until there are none."""
        while self._waits:
            await sleep_on(self._clock, TICK_SECONDS)
            while due := self._take_due():
                await self._look_at(due)
        self._due.clear()

    def _take_due(self) -> list[_Wait]:
        """At most `IDS_IN_LOOK` waits that are due."""
        now, found = self._clock.now(), list[_Wait]()
        while self._due and self._due[0][0] <= now and len(found) < IDS_IN_LOOK:
            wait = heapq.heappop(self._due)[2]
            if not wait.over.done():
                found.append(wait)
        return found

    async def _look_at(self, waits: Sequence[_Wait]) -> None:
        ids = list(dict.fromkeys(wait.job.id for wait in waits))
        try:
            seen = dict(zip(ids, await self._look(ids), strict=True))
        except Overloaded:
            seen = {wait.job.id: wait.job for wait in waits}
        except StoreUnavailable as error:
            seen = {wait.job.id: wait.job for wait in waits}
            for wait in waits:
                wait.error = error
        else:
            for wait in waits:
                wait.error = None
        for wait in waits:
            job = seen[wait.job.id]
            if job is None:
                wait.error = no_such_job(wait.job.id)
            else:
                wait.job = job
            if job is None or job.is_finished:
                wait.end()
            else:
                self._look_later(wait)

    def _look_later(self, wait: _Wait) -> None:
        heapq.heappush(self._due, (self._clock.now() + wait.pause, next(self._order), wait))
        wait.pause = longer_pause(wait.pause, LONGEST_PAUSE_SECONDS, len(self._waits))
