"""Crowds in virtual time: a real engine, workers that take as long as they are told, and clients that obey."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from night import histories
from penstock.codec.formats import Codec
from penstock.config import Batch, ServiceOptions
from penstock.core.alarm import LaterTimer
from penstock.core.outcome import Result
from penstock.errors import Overloaded
from penstock.runtime.engine import Engine
from penstock.runtime.spec import stage
from penstock.testing.fake_workers import FakeIncarnation, FakeWorkers
from rows import each

ITEMS = histories(20_000)


class Call:
    """A call that is due; `cancel` forgets it."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class World:
    """A service, its workers, and the time, which jumps from one event to the next.

    It lets the event loop turn a few times after each event, not a hundred as `VirtualClock` does: there are many.
    """

    def __init__(self, *specs, run: Callable[[int], float], **options) -> None:
        self._now = 1000.0
        self._order = count()
        self._calls: list[tuple[float, int, Call]] = []
        self._run = run
        self.busy = 0.0
        """Seconds that the workers have run."""
        self.workers = FakeWorkers()
        self.engine = Engine(
            "service", specs, ServiceOptions(**options), clock=self, start_incarnation=self.workers.start
        )

    @property
    def now(self) -> Callable[[], float]:
        return lambda: self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> Call:
        call = Call(callback)
        heapq.heappush(self._calls, (self._now + delay, next(self._order), call))
        return call

    fine_step = 1e-6

    def fine_timer(self, callback: Callable[[], object]) -> LaterTimer:
        return LaterTimer(self, callback)

    async def start(self) -> None:
        starting = asyncio.get_running_loop().create_task(self.engine.start())
        await self._turn(20)
        for worker in self.workers.alive:
            worker.become_ready()
        await starting
        self._running: dict[FakeIncarnation, bool] = dict.fromkeys(self.workers.alive, False)

    async def go(self, until: float = math.inf) -> None:
        """Let time pass until nothing is due any more, or until so many seconds have passed."""
        end = self._now + until
        await self._turn(3)
        while self._calls and self._calls[0][0] <= end:
            due, _, call = heapq.heappop(self._calls)
            callback, call.callback = call.callback, None
            if callback is not None:
                self._now = max(self._now, due)
                callback()
                await self._turn(3)

    async def stop(self) -> None:
        stopping = asyncio.get_running_loop().create_task(self.engine.stop(0))
        await self._turn(20)
        await self.go()
        await stopping

    async def _turn(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)
        for worker in self.workers.alive:
            self._begin(worker)

    def _begin(self, worker: FakeIncarnation) -> None:
        if worker.frames and not self._running.get(worker, True):
            self._running[worker] = True
            seconds = self._run(len(worker.frames[0].ids))
            self.call_later(seconds, lambda: self._finish(worker, seconds))

    def _finish(self, worker: FakeIncarnation, seconds: float) -> None:
        self._running[worker] = False
        if not worker.ended:
            self.busy += seconds
            worker.answer(seconds=seconds)
            self._begin(worker)


# -- who is refused comes back when there is room ---------------------------------------------------------------------


class Crowd:
    """Clients that all come at once, and come back as they are told; of those refused only `loyal` do."""

    def __init__(self, world: World, size: int, loyal: Callable[[], bool]) -> None:
        self.world = world
        self.tries = 0
        self.answered = 0
        self.lost = 0
        self._loyal = loyal
        self.began = self.ended = world.now()
        for _ in range(size):
            self.ask()

    def ask(self) -> None:
        self.tries += 1
        try:
            self.world.engine.submit((b"1",), Codec.JSON, Codec.JSON, math.inf, self.told)
        except Overloaded as refusal:
            if self._loyal():
                self.world.call_later(refusal.retry_after_ms / 1000, self.ask)
            else:
                self.lost += 1

    def told(self, outcomes) -> None:
        assert isinstance(outcomes[0], Result)
        self.answered += 1
        self.ended = self.world.now()

    @property
    def idle(self) -> float:
        """The fraction of the time until the last answer in which the worker had nothing to do."""
        return 1 - self.world.busy / (self.ended - self.began)


SINGLES = (None, lambda n: 0.010)
BATCHES = (Batch(max_size=8), lambda n: 0.080)
"""Each of these ends a hundred items a second."""


async def crowd(batch, run, loyal=lambda: True):
    world = World(stage(math.sqrt, batch=batch), run=run, max_in_flight=64, timeout=math.inf)
    await world.start()
    found = Crowd(world, 1000, loyal)
    await world.go()
    await world.stop()
    assert found.answered + found.lost == 1000
    return found


@pytest.mark.parametrize(("batch", "run"), [SINGLES, BATCHES])
async def test_a_crowd_that_comes_back_as_it_was_told_finds_room_and_keeps_the_worker_busy(batch, run):
    found = await crowd(batch, run)
    assert found.tries <= 2.5 * 1000
    assert found.idle <= 0.02


@pytest.mark.parametrize(("batch", "run"), [SINGLES, BATCHES])
@each("seed", range(histories(3)))
async def test_who_never_comes_back_keeps_nobody_else_waiting(batch, run, seed):
    random = Random(seed)
    found = await crowd(batch, run, lambda: random.random() < 0.5)
    assert found.tries <= 3.5 * found.answered
    assert found.ended - found.began < 11.0


# -- who would end too late is not let in -----------------------------------------------------------------------------


class Arrivals:
    """Items that come at 1.5 times what the worker can do, each with a deadline of its own; what became of them."""

    def __init__(self, world: World, seed: int, items: int, rate: float) -> None:
        self.world = world
        self.let_in = self.in_time = self.late = self.refused = 0
        self._random = Random(seed)
        self._left = items
        self._rate = rate
        self._next()

    def _next(self) -> None:
        if self._left:
            self._left -= 1
            self.world.call_later(self._random.expovariate(self._rate), self._come)

    def _come(self) -> None:
        self._next()
        deadline = self.world.now() + self._random.uniform(0.1, 2.0)
        try:
            self.world.engine.submit((b"1",), Codec.JSON, Codec.JSON, deadline, self._told)
            self.let_in += 1
        except Overloaded:
            self.refused += 1

    def _told(self, outcomes) -> None:
        if isinstance(outcomes[0], Result):
            self.in_time += 1
        else:
            self.late += 1


async def arrivals(seed, items, admission, **options):
    random = Random(seed)
    spec = stage(math.sqrt, batch=Batch(max_size=8))
    world = World(
        spec, run=lambda n: random.uniform(0.020, 0.060), max_in_flight=100_000, admission=admission, **options
    )
    await world.start()
    found = Arrivals(world, seed + 1, items, 1.5 * 8 / 0.040)
    await world.go()
    await world.stop()
    assert found.in_time + found.late == found.let_in
    return found


@pytest.mark.timeout(180)  # twice as many items; at night it takes 20 s, and a busy machine is slower
@each("seed", range(histories(2)))
async def test_of_those_let_in_few_miss_their_deadlines_and_no_fewer_are_answered_in_time(seed):
    by_room = await arrivals(seed, ITEMS, "capacity")
    by_deadline = await arrivals(seed, ITEMS, "deadline")
    assert by_room.late >= by_room.let_in / 4
    assert by_deadline.late <= 0.05 * by_deadline.let_in
    assert by_deadline.in_time >= 0.98 * by_room.in_time


@pytest.mark.parametrize("slower", [5.0, 10.0])
async def test_a_stage_that_becomes_much_slower_under_load_is_soon_known_to_be(slower):
    """Every size was seen before; from then on only full batches run, as of a device that is throttled."""
    pace = 1.0
    world = World(
        stage(math.sqrt, batch=Batch(max_size=32, max_wait=0)),
        run=lambda n: pace * (0.005 + 0.0001 * n),
        max_in_flight=100_000,
        admission="deadline",
    )
    await world.start()
    capacity = 32 / 0.0082
    for share in (0.02, 0.1, 0.3, 0.6, 0.9, 0.98):
        Arrivals(world, 3, 1000, share * capacity)
        await world.go()
    pace = slower
    found = Arrivals(world, 5, ITEMS, 2.0 * capacity / slower)
    await world.go()
    await world.stop()
    assert found.refused >= 0.3 * ITEMS, "half of it is more than the stage can do"
    assert found.late <= 0.05 * found.let_in
    assert found.in_time >= 0.4 * ITEMS


async def test_where_the_earliest_deadline_goes_first_nobody_comes_in_who_makes_others_late():
    found = await arrivals(7, 6000, "deadline", queue_order="edf")
    assert found.late <= 0.05 * found.let_in
    assert found.in_time >= 0.62 * 6000, "what the worker can do is two thirds"
