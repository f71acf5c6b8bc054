"""End attempts in the store, many at a time, and again until the store has answered.

What was computed is kept until its end is known, so nothing is computed twice because a store was gone for a while.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from penstock.core.clock import Clock
from penstock.core.leases import reconnect_delay
from penstock.errors import PenstockError
from penstock.hosting.fault_points import hit
from penstock.hosting.loop_clock import wait_on
from penstock.jobs.held_work import HeldWork, JobStep
from penstock.jobs.store import STORE_TROUBLE, Answer, AttemptEnd

MOST_AT_ONCE = 256
"""The most attempts that one call ends."""


class Commits:
    """The ends of attempts that the store has not heard of yet.

    `end_attempts` is the store's method, made awaitable.  `may_begin` says whether a job's lease can be relied on;
    where not, it takes care that the job is put once more.  `load` gives a job's end with its result, wherever that
    lies.  `ended` is told of each end that the store has answered, and `store_up` whether it did.
    """

    def __init__(
        self,
        end_attempts: Callable[[Sequence[AttemptEnd]], Awaitable[list[Answer]]],
        *,
        clock: Clock,
        may_begin: Callable[[HeldWork], bool],
        load: Callable[[HeldWork], Awaitable[AttemptEnd]],
        ended: Callable[[HeldWork, Answer], None],
        store_up: Callable[[PenstockError | None], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._end_attempts = end_attempts
        self._clock = clock
        self._may_begin = may_begin
        self._load = load
        self._ended = ended
        self._store_up = store_up
        self._draw = draw
        self._waiting: deque[HeldWork] = deque()
        self._unrenewed: set[HeldWork] = set()
        """Jobs that are put once more when their leases have been renewed."""
        self._changed = asyncio.Event()
        self._store_is_back = asyncio.Event()
        self.behind = False
        """Whether the store was away, or a lease had run out, and not all of what was to be committed then is."""

    def put(self, job: HeldWork) -> None:
        """End the attempt of `job` as `job.end` says."""
        job.enter(JobStep.COMMIT, self._clock.now())
        if self._unrenewed:
            self._unrenewed.discard(job)
        self._waiting.append(job)
        self._changed.set()

    def try_now(self) -> None:
        """The store answers again: wait no longer before the next try."""
        self._store_is_back.set()

    async def run(self) -> None:
        """End attempts until this is cancelled."""
        failures = 0
        while True:
            jobs = self._next()
            if not jobs:
                self.behind = bool(self._unrenewed)
                self._changed.clear()
                await self._changed.wait()
                continue
            failures = 0 if await self._commit(jobs) else failures + 1
            if failures:
                self._store_is_back.clear()
                await wait_on(self._clock, self._store_is_back, reconnect_delay(failures, self._draw()))

    def _next(self) -> list[HeldWork]:
        found: list[HeldWork] = []
        while self._waiting and len(found) < MOST_AT_ONCE:
            job = self._waiting.popleft()
            if not job.lost and self._may_begin(job):
                found.append(job)
            elif job.lost:
                self._ended(job, Answer.LOST)
            else:
                self._unrenewed.add(job)
        return found

    async def _commit(self, jobs: list[HeldWork]) -> bool:
        """Returns whether the store answered for all of them."""
        hit("before_commit")
        ends = [await self._load(job) for job in jobs]
        for job in jobs:
            job.end_sent += 1
        try:
            answers = await self._end_attempts(ends)
        except STORE_TROUBLE as error:
            self._store_up(error)
            self._waiting.extendleft(reversed(jobs))
            self.behind = True
            return False
        hit("after_commit")
        self._store_up(None)
        unknown = []
        for job, answer in zip(jobs, answers, strict=True):
            if answer is Answer.UNKNOWN:
                unknown.append(job)
            else:
                self._ended(job, answer)
        if not self._waiting:  # those that the store has answered for, and has no room for, keep nothing else back
            self.behind = bool(self._unrenewed)
        self._waiting.extendleft(reversed(unknown))
        return not unknown
