"""Claim jobs as there is room for them: the loop in which a consumer asks its store for work.

Contract
--------
* Room is counted for each service by itself.  A service that is not READY or BUSY, is short of memory, or has filled
  its part of the spool is left out of the claims, and holds up no other.
* Jobs of a service that are held and not begun are bounded, and so are the inputs that are fetched
  (`rules/credit.py`).
* A service without a job is asked for again after `poll` seconds, and a store that does not answer after rests that
  grow.
* After the store was away, or this process stood still, nothing is claimed before what is held has been renewed and
  what is finished committed.
* A job that is held already, and comes from a claim once more, goes on with a new lease.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.core.clock import Clock
from penstock.hosting.fault_points import hit
from penstock.hosting.loop_clock import wait_on
from penstock.jobs.held_work import HeldWork, Holding
from penstock.jobs.host_places import host_share
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.rules.credit import credit
from penstock.jobs.spool import Spool
from penstock.jobs.store import STORE_TROUBLE, ClaimedJob, Room
from penstock.jobs.store_watch import StoreWatch
from penstock.jobs.work_options import WorkOptions

MOST_CLAIMED: Final = 1024
"""The most jobs of a service that one call claims."""
MOST_NAMELESS: Final = 64
"""The most jobs held that name no service where here are several: each is refused as soon as it is claimed."""
TICK_SECONDS: Final = 1.0
"""How often it is looked for room where nothing has told of any."""

Kind: TypeAlias = tuple[str, bool]
"""Jobs that have a room of their own: those of a service whose input is in the store, or, with True, is fetched."""


class Claiming:
    """The claims of one consumer.  Every call is made on the event loop's thread.

    `catch_up` renews what has to be, and says after how many seconds it is to be asked again before a claim; 0: claim.
    `claim` asks the store for what fits into rooms.  `begin` takes each job that is held from then on, `renewed` each
    that was held before.  `is_done` says whether nothing is left to do in the queue.  `downloads` is how many inputs of
    a service are fetched at a time, and `max_held_bytes` how many bytes may be held for one.
    """

    def __init__(
        self,
        targets: Mapping[str, JobTarget],
        holding: Holding,
        options: WorkOptions,
        *,
        catch_up: Callable[[], Awaitable[float]],
        claim: Callable[[Sequence[Room]], Awaitable[list[ClaimedJob]]],
        begin: Callable[[HeldWork], None],
        renewed: Callable[[HeldWork], None],
        is_done: Callable[[], Awaitable[bool]],
        spool: Spool,
        store_watch: StoreWatch,
        downloads: Mapping[str, int],
        max_held_bytes: int,
        clock: Clock,
        boot: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._targets = targets
        self._holding = holding
        self._options = options
        self._catch_up = catch_up
        self._claim = claim
        self._begin_one = begin
        self._renewed = renewed
        self._is_done = is_done
        self._spool = spool
        self._store_watch = store_watch
        self._downloads = downloads
        self._max_held_bytes = max_held_bytes
        self._default = next(iter(targets)) if len(targets) == 1 else ""
        """The service of jobs that name none; "" where it could be one of several."""
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
        self._fetched_first = False
        """Whether jobs whose input is fetched go first where there is room for few; each claim changes it."""
        self._rests: dict[Kind, float] = {}
        """Until when jobs of a kind are not asked for by themselves, because there were none."""

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
            rooms = self._rooms()
            rests = {kind: self._rests.get(kind, 0.0) - self.turned for kind in rooms}
            rest = min(rests.values(), default=math.inf)
            if rest > 0:
                await wait_on(self._clock, self._changed, min(rest, TICK_SECONDS))
                continue
            # Kinds that are to be asked for soon are asked for now: else an idle consumer would call for each of them.
            rooms = {kind: room for kind, room in rooms.items() if rests[kind] <= self._options.poll_interval / 2}
            try:
                if rest := await self._catch_up():
                    await self._rest(rest)
                    continue
                sent = self._boot()
                self._holding.dropped.clear()
                claimed = await self._claim(list(rooms.values()))
            except STORE_TROUBLE as error:
                await self._rest(self._store_watch.claim_failed(error, self._draw()))
                continue
            self._store_watch.claim_answered()
            hit("after_claim")
            self._begin(claimed, sent + self._options.lease)
            # Where there were fewer than asked for there may be more all the same: bytes are bounded, too.
            with_jobs = {(job.service, job.input_url is not None) for job in claimed}
            with_jobs = {(service or self._default, fetched) for service, fetched in with_jobs}
            self._rests |= {kind: self._clock.now() + self._options.poll_interval for kind in rooms.keys() - with_jobs}
            self._fetched_first = not self._fetched_first
            if not claimed and self._options.until_empty and await self._is_done():
                return True
        return False

    def _rooms(self) -> dict[Kind, Room]:
        """The rooms of each service that has some."""
        of_service: defaultdict[str, list[HeldWork]] = defaultdict(list)
        if self._default:
            of_service[self._default] = self._holding.jobs()
        else:
            for job in self._holding.jobs():
                of_service[job.service].append(job)
        rooms: dict[Kind, Room] = {}
        for name, target in self._targets.items():
            engine = target.service.engine
            if engine is None or not engine.state.accepting or engine.memory_short or self._spool.full(name):
                continue
            held, downloads = of_service[name], self._downloads[name]
            fetching = [job for job in self._holding.elsewhere if job.fetching and job.service == name]
            jobs, fetched, nbytes = credit(
                held=len(held),
                fetching=len(fetching),
                ready=len(held) - len(fetching) - sum([job.begun for job in held]),
                held_bytes=self._holding.bytes_of(name),
                window=target.batch_items,
                downloads=downloads,
                concurrency=self._options.max_in_flight_jobs,
                max_bytes=self._max_held_bytes,
                fetched_first=self._fetched_first,
            )
            services = (name, "") if name == self._default else (name,)
            if jobs:
                rooms[name, False] = Room(services, min(jobs, MOST_CLAIMED), nbytes)
            if fetched:
                at_hosts = Counter([job.claimed.host for job in fetching])
                rooms[name, True] = Room(services, fetched, nbytes, host_share(downloads), at_hosts)
        if rooms and not self._default and (nameless := MOST_NAMELESS - len(of_service[""])) > 0:
            rooms["", False] = Room(("",), nameless, 0)
            rooms["", True] = Room(("",), nameless, 0, nameless)
        return rooms

    def _begin(self, claimed: Sequence[ClaimedJob], lease_until: float) -> None:
        now = self._clock.now()
        for each in claimed:
            job = HeldWork(each, lease_until, now, each.service or self._default)
            held = self._holding.get(job.hold)
            if held is not None:
                held.lease_until = lease_until
                self._renewed(held)
                continue
            if job.hold in self._holding.dropped:
                continue
            self._holding.add(job)
            job.released = self.stopped
            self._begin_one(job)

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until this is stopped."""
        self._rested.clear()
        if not self.stopped:
            await wait_on(self._clock, self._rested, seconds)
