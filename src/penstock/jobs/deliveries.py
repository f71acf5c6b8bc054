"""Move the outputs of jobs that have ended to their places, many at a time.

Every consumer does it, and none is needed: what one has begun and not ended another does again.

Contract
--------
* The outputs of one target, a folder or a bucket, are moved in threads of their own, `LANE_WIDTH` at a time.  A target
  that is down or hangs holds up its own outputs, and others for `STALL_SECONDS` at most.
* Each output has a time limit of its own.  After a failure it is moved again when the
  store lends it again.
* A target of which so many moves in a row have failed rests for `REST_SECONDS`; what it has waiting goes back.
* Nothing is begun that was lent for a time that has passed: it may be another consumer's by now.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from penstock.core.clock import Clock, calling_later
from penstock.errors import TransferFailed, TransferRejected
from penstock.hosting.fault_points import hit
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.loop_clock import wait_on
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.store import STORE_TROUBLE, Delivery, Store
from penstock.jobs.work_options import WorkOptions
from penstock.transfer.transfers import Transfers

log = guarded_logger("penstock.jobs")

LANE_WIDTH: Final = 16
"""The most outputs of one target that are moved at a time, and the failures in a row after which it counts as down."""
MOST_WAITING: Final = 256
"""The most outputs of one target that are lent to this consumer and not begun."""
LENT_AT_ONCE: Final = 64
STALL_SECONDS: Final = 2.0
"""After so long without a move that has ended, a target with many outputs waiting holds up no others."""
REST_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 5.0
"""How often the store is asked, besides when a job with an output has ended here."""

Key = tuple[str, int]
"""A delivery, by its job and last fence."""


@dataclass(slots=True)
class Move:
    """An output on its way."""

    delivery: Delivery
    lent_until: float
    late: bool = False
    """Whether it has taken longer than it may; its thread may still be at it."""


@dataclass(slots=True)
class Lane:
    """The outputs of one target.  It decides, and is told the time."""

    progressed: float
    """When a move has ended well, or the first of several began."""
    waiting: deque[Move] = field(default_factory=deque)
    moving: int = 0
    failures: int = 0
    """The failures in a row."""
    rests_until: float = 0.0

    def takes(self, now: float) -> bool:
        """Whether an output that was lent may wait here; else it goes back when its time is over."""
        return now >= self.rests_until and len(self.waiting) < MOST_WAITING

    def holds_up(self, now: float) -> bool:
        """Whether nothing more should be lent before this lane has room."""
        return len(self.waiting) > MOST_WAITING - LENT_AT_ONCE and now < self.progressed + STALL_SECONDS

    def begin(self, now: float) -> Move | None:
        """The output that is next, None where there is none or no room; its move begins if it is still lent."""
        if not self.waiting or self.moving == LANE_WIDTH:
            return None
        move = self.waiting.popleft()
        if now < move.lent_until:
            if not self.moving:
                self.progressed = now
            self.moving += 1
        return move

    def succeeded(self, now: float) -> None:
        """A move has ended well."""
        self.failures = 0
        self.progressed = now

    def failed(self, now: float) -> list[Move]:
        """A move has failed, or is late.  Returns what goes back because the target is down."""
        self.failures += 1
        if self.failures < LANE_WIDTH:
            return []
        self.rests_until = now + REST_SECONDS
        given_back = list(self.waiting)
        self.waiting.clear()
        return given_back


class WithStore(Protocol):
    """The consumer, as its deliveries see it."""

    @property
    def store(self) -> Store:
        """The store."""


class Deliveries:
    """The deliveries of one consumer.

    Args:
        consumer: has the store.
        transfers: moves outputs.
        options: how long the store lends a delivery, and a move may take.
        store_threads: make the calls of the store.
        threads: makes the threads of a target.
        clock: tells the time.
        broke: told what a move has raised that is a mistake of ours.
        draw: a number between 0 and 1.
    """

    def __init__(
        self,
        consumer: WithStore,
        transfers: Transfers,
        options: WorkOptions,
        *,
        store_threads: CallThreads,
        threads: Callable[[int, str], CallThreads],
        clock: Clock,
        broke: Callable[[BaseException], object],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._consumer = consumer
        self._transfers = transfers
        self._options = options
        self._store_threads = store_threads
        self._make_threads = threads
        self._clock = clock
        self._broke = broke
        self._draw = draw
        self._lanes: dict[str, Lane] = {}
        self._lane_threads: dict[str, CallThreads] = {}
        self._moves: dict[Key, Move] = {}
        """All that wait in a lane or are moved."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._made: list[Delivery] = []
        """Deliveries of which the store has not heard."""
        self._asked = asyncio.Event()
        self._left_to_others: set[Key] = set()
        """The deliveries that this consumer may not make."""

    def ask(self) -> None:
        """An output waits to be moved."""
        self._asked.set()

    async def run(self) -> None:
        """Move outputs until this is cancelled."""
        while True:
            self._asked.clear()
            try:
                await self._tell_made()
                while not self._held_up() and await self._lend():
                    pass
            except STORE_TROUBLE:
                pass  # the claim loop says so; what was moved is told at the next look
            seconds = STALL_SECONDS if self._held_up() else LOOK_SECONDS
            await wait_on(self._clock, self._asked, seconds * (0.8 + 0.4 * self._draw()))

    async def deliver_all(self) -> bool:
        """Have every output moved; returns whether none is left but those that this consumer may not move.

        It waits for no move: whoever asks has other work, and asks again.
        An output that another consumer is moving is left: that consumer may have been killed.
        """
        try:
            while not self._held_up() and await self._lend():
                pass
            await self._tell_made()
            stats = await self._store_threads.run(self._consumer.store.stats)
        except STORE_TROUBLE:
            return False
        return not self._moves and stats.pending_outputs <= len(self._left_to_others)

    def end(self) -> None:
        """Begin nothing more; what a thread is at goes on until it is done, and nobody hears of it."""
        for task in self._tasks:
            task.cancel()
        for threads in self._lane_threads.values():
            threads.end()

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _lend(self) -> bool:
        """Have some outputs lent, and begin with them; returns whether there may be more."""
        # Who is killed with a delivery holds it up no longer than a job.  One that is made twice does no harm.
        lease, asked = self._options.lease, self._clock.now()
        found = await self._store_threads.run(partial(self._consumer.store.deliveries, limit=LENT_AT_ONCE, lease=lease))
        if found:
            hit("before_delivery")
            self._take(found, asked + lease)
        return len(found) == LENT_AT_ONCE

    async def _tell_made(self) -> None:
        """Have the store forget what is done."""
        while self._made:
            made, self._made = self._made, []
            hit("after_delivery")
            try:
                await self._store_threads.run(partial(self._consumer.store.delivered, made))
            except STORE_TROUBLE:
                self._made += made
                raise

    # -- the targets --------------------------------------------------------------------------------------------------

    def _held_up(self) -> bool:
        now = self._clock.now()
        return any(lane.holds_up(now) for lane in self._lanes.values())

    def _take(self, found: Iterable[Delivery], lent_until: float) -> None:
        now = self._clock.now()
        for delivery in found:
            key = _key(delivery)
            if key in self._moves:
                self._moves[key].lent_until = lent_until
                continue
            try:
                target = self._transfers.target_of(delivery.output)
            except TransferRejected as error:
                if key not in self._left_to_others:
                    self._left_to_others.add(key)
                    log.error(  # noqa: TRY400
                        "this consumer may not move the output of job %s and leaves it to another consumer: %s",
                        delivery.job_id,
                        error,
                    )
                continue
            lane = self._lanes.setdefault(target, Lane(now))
            if lane.takes(now):
                self._moves[key] = Move(delivery, lent_until)
                lane.waiting.append(self._moves[key])
        for target in list(self._lanes):
            self._begin(target)

    def _begin(self, target: str) -> None:
        """Begin what has room.  A target of which nothing is left is forgotten, with its threads."""
        lane, now = self._lanes[target], self._clock.now()
        while (move := lane.begin(now)) is not None:
            if now >= move.lent_until:
                self._forget([move])
                continue
            if target not in self._lane_threads:
                self._lane_threads[target] = self._make_threads(LANE_WIDTH, "penstock-outputs")
            task = asyncio.ensure_future(self._make(target, lane, move))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        if not lane.moving and not lane.waiting and now >= lane.rests_until:
            del self._lanes[target]
            if target in self._lane_threads:
                self._lane_threads.pop(target).end()

    async def _make(self, target: str, lane: Lane, move: Move) -> None:
        """Move one output, and begin with the next."""
        with calling_later(self._clock, self._options.transfer_timeout, partial(self._late, lane, move)):
            made = await self._lane_threads[target].run(partial(self._move, move.delivery))
        now = self._clock.now()
        lane.moving -= 1
        self._forget([move])
        if made:
            lane.succeeded(now)
            self._made.append(move.delivery)
        elif not move.late:
            self._forget(lane.failed(now))
        self._begin(target)
        self._asked.set()

    def _late(self, lane: Lane, move: Move) -> None:
        move.late = True
        seconds = self._options.transfer_timeout
        log.warning(
            "the output of job %s was not moved to its URL within %g s (transfer_timeout); still trying",
            move.delivery.job_id,
            seconds,
        )
        self._forget(lane.failed(self._clock.now()))

    def _move(self, delivery: Delivery) -> bool:
        """Move one output, and remove what other attempts have left; returns whether it is done."""
        try:
            if delivery.fence:
                self._transfers.finish_output(delivery.output, delivery.job_id, delivery.fence)
            for fence in range(delivery.first_fence, delivery.last_fence + 1):
                if fence != delivery.fence:
                    self._transfers.discard_output(delivery.output, delivery.job_id, fence)
        except TransferFailed as error:
            log.warning("cannot move the output of job %s to its URL, trying again later: %s", delivery.job_id, error)
            return False
        except TransferRejected as error:  # to ask again would be in vain
            what = (
                "was lost, it cannot be moved to its URL"
                if delivery.fence
                else "is not to be moved, but partial files of it cannot be removed"
            )
            log.error("the output of job %s %s: %s", delivery.job_id, what, error)  # noqa: TRY400
        return True

    def _forget(self, moves: Iterable[Move]) -> None:
        for move in moves:
            del self._moves[_key(move.delivery)]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broke(error)


def _key(delivery: Delivery) -> Key:
    return delivery.job_id, delivery.last_fence
