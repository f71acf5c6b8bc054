"""The hub of a service: takes requests in, moves their items through the stages, settles each exactly once.

The engine knows neither HTTP nor futures: whoever submits gives a function that is told the outcomes.  It lives on
one event loop, and everything here is called on that loop's thread.

Hops of an item, and no more: `submit -> stage queue -> worker -> settle`, with `stage queue -> worker` once per stage.
Within one turn of the loop all arrivals are gathered before anything is sent: one pump per turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from penstock.codec.formats import Codec
from penstock.config import ServiceOptions
from penstock.core.admission import Admission
from penstock.core.counters import ServiceCounters
from penstock.core.deadlines import Deadlines
from penstock.core.item import OFFER, Done, Item, ItemState, Payload, Request, payload_size
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.state import State
from penstock.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    InvalidItem,
    NotReady,
    Overloaded,
    ProtocolError,
    RequestError,
    StageFailed,
    StartFailed,
    WorkerLost,
)
from penstock.runtime.affinity import allowed_cores, check_cores, pin
from penstock.runtime.launching import launcher, worker_cores
from penstock.runtime.spec import StageSpec
from penstock.runtime.stage import TIMER_TICK, StageDriver
from penstock.transport.framing import Frame, Status
from penstock.transport.messages import Problem, invalid_item, stage_failure, unpack

log = logging.getLogger("penstock.runtime")

# After the last answer a worker tears its stage down; one that takes longer is killed.
TEARDOWN_GRACE = 5.0
SECONDS_PER_MARK = 1.0


class Engine:
    """A running service.  Made stopped; `start` starts it, `stop` may be called any time, any number of times."""

    def __init__(
        self,
        name: str,
        specs: Sequence[StageSpec],
        options: ServiceOptions,
        *,
        cpus: Sequence[int] | None = None,
        inline: bool = False,
    ) -> None:
        self.name = name
        self.options = options
        self.counters = ServiceCounters()
        self.stages: list[StageDriver] = []
        self._specs = tuple(specs)
        self._cpus = tuple(cpus) if cpus is not None else None
        self._in_process = inline
        self._affinity_before: frozenset[int] | None = None
        self._admission = Admission(options.max_queued, options.max_queued_bytes)
        self._deadlines = Deadlines()
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._item_ids = count(1)
        self._share = options.max_queued_bytes // max(1, len(specs))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Future[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._hurried = False
        """Whether somebody who asked to stop waits no longer."""
        self._changed: asyncio.Event | None = None
        self._phase = State.STOPPED
        self._accepting = False
        self._waking = False
        self._last_mark = 0.0
        self._first_limit = specs[0].max_queued

    # -- what others read -----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the service is doing."""
        if self._phase is not State.READY:
            return self._phase
        if any(stage.failed for stage in self.stages):
            return State.FAILED
        if not all(stage.health.ever_ready for stage in self.stages):
            return State.STARTING
        return State.READY if self._has_room(0) else State.BUSY

    @property
    def reason(self) -> str:
        """Why the service is FAILED, else ""."""
        return next((stage.health.reason for stage in self.stages if stage.failed), "")

    @property
    def queued(self) -> int:
        """Items accepted and not yet settled, wherever they are."""
        return self._admission.items

    @property
    def held_bytes(self) -> int:
        """Bytes held for requests in hand: payloads, half-received bodies, unread answers."""
        return self._admission.held

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand."""
        return self._admission.items == 0 and self._admission.waiting == 0

    def now(self) -> float:
        """The time: seconds on the host's monotonic clock, the same in every process."""
        return time.monotonic()

    # -- requests ---------------------------------------------------------------------------------------------------

    def refusal(self, nbytes: int = 0) -> RequestError | None:
        """Why a request of `nbytes` would be refused now, or None."""
        if not self._accepting:
            state = self.state
            reason = f": {self.reason}" if state is State.FAILED else ""
            return NotReady(f"service {self.name!r} is {state}{reason}", state=state)
        if not self._has_room(nbytes):
            retry_after = self._admission.retry_after(self.now())
            return Overloaded(f"service {self.name!r} is full; try again in {retry_after} s", retry_after=retry_after)
        return None

    def submit(
        self,
        payloads: Sequence[Payload],
        codec_in: Codec,
        codec_out: Codec,
        deadline: float,
        done: Done,
        *,
        bulk: bool = False,
        wait: bool = False,
    ) -> Request:
        """Accept a request; `done(outcomes)` is called exactly once, on the loop, after this has returned.

        `deadline` is a moment of the monotonic clock, or inf.  `bulk` marks items that came as one and are not held
        for company.  With `wait` the request waits for room until its deadline; without, a full service refuses.
        What is returned is what `cancel` takes.

        Raises:
            NotReady: the service is not serving.
            Overloaded: it is full, and `wait` is False.
        """
        n = len(payloads)
        nbytes = payload_size(payloads[0]) if n == 1 else sum(map(payload_size, payloads))
        has_room = self._accepting and self._has_room(nbytes)
        if not has_room and not (wait and self._accepting):
            self.counters.refused += n
            refusal = self.refusal(nbytes)
            assert refusal is not None
            raise refusal
        request = Request(payloads, codec_in, codec_out, deadline, done, bulk)
        self.counters.accepted += n
        if n == 0:
            self._running_loop().call_soon(done, [])
            return request
        admission = self._admission
        admission.held += nbytes
        if self._deadlines.add(request):
            self._arm_deadlines()
        if has_room and not (wait and admission.must_wait(bulk)):
            admission.enter(bulk)
            self._feed_one(request)
        if request.fed < n:
            admission.wait(request)
        if not self._waking:
            self.wake()
        return request

    def cancel(self, request: Request) -> None:
        """The caller has left: what is queued is forgotten, what runs is masked from the next stage."""
        before = request.unsettled
        self._end(request, lambda _: Cancelled())
        if before:
            self.wake()

    def hold(self, nbytes: int) -> None:
        """Count bytes held outside the queues; negative gives them back."""
        self._admission.held += nbytes

    def _has_room(self, nbytes: int) -> bool:
        return self._admission.has_room(nbytes) and (self._first_limit is None or self._first_queue_open)

    @property
    def _first_queue_open(self) -> bool:
        return self._first_limit is None or len(self.stages[0].queue) < self._first_limit

    def _feed(self) -> bool:
        """Let in who waits, as far as there is room; whether that was anybody."""
        fed = False
        while self._first_queue_open:
            request = self._admission.next_fed()
            if request is None:
                break
            self._feed_one(request)
            fed = True
        return fed

    def _feed_one(self, request: Request) -> None:
        index = request.fed
        payload = request.payloads[index]
        item = Item(next(self._item_ids), payload, payload_size(payload), request, index)
        request.fed = index + 1
        request.items.append(item)
        item.state = OFFER[item.state]
        self.stages[0].queue.offer(item, time.monotonic())

    # -- the one pump -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Pump once at the end of this turn of the event loop."""
        if not self._waking:
            self._waking = True
            self._running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._waking = False
        now = self.now()
        if self._admission.waiting:
            self._feed()
        # The last stage first: what it takes makes room for the stage before it, in the same turn.
        for stage in reversed(self.stages):
            if len(stage.queue):
                stage.pump(now, self._rooms[stage.index])
        if self._admission.waiting and self._feed():
            self.wake()
        if self._changed is not None:
            self._changed.set()

    def _room_behind(self, index: int) -> Callable[[], int | None]:
        """How many items the queue behind stage `index` takes now: None is any number, 0 is not now."""
        if index + 1 == len(self.stages):
            return lambda: None
        stage, behind = self.stages[index], self.stages[index + 1]
        limit = behind.spec.max_queued

        def room() -> int | None:
            # One batch always passes: an empty queue takes whatever comes, so a large result cannot block for ever.
            if behind.queue.nbytes > self._share and len(behind.queue):
                return 0
            return None if limit is None else max(0, limit - len(behind.queue) - stage.in_flight)

        return room

    # -- what stages report -------------------------------------------------------------------------------------------

    def batch_answered(self, stage: StageDriver, items: list[Item], frame: Frame) -> None:
        """Move each item on, or settle it."""
        last = stage.last
        now = self.now()
        for item, status, payload in zip(items, frame.statuses, frame.payloads, strict=True):
            if item.state is ItemState.SETTLED:
                continue  # cancelled or expired meanwhile: masked from the next stage
            if status != Status.OK:
                self._settle(item, Failure(self._failure(stage, status, payload)))
            elif last:
                self._settle(item, Result(payload))
            else:
                self._advance(item, payload, now)
        if now - self._last_mark >= SECONDS_PER_MARK:
            self._last_mark = now
            self._admission.mark(now)

    def worker_lost(self, stage: StageDriver, items: list[Item]) -> None:
        """Settle the items whose worker died under them for good."""
        for item in items:
            self._settle(item, Failure(WorkerLost(stage=stage.name)))

    def pool_changed(self, stage: StageDriver, failure: StartFailed | None) -> None:
        """Look again at what the service's workers allow."""
        if self._changed is not None:
            self._changed.set()
        started = self._started
        if started is not None and not started.done():
            if failure is not None and (failure.traceback or stage.failed):
                started.set_exception(failure)
            elif self._phase is State.READY and all(
                s.health.ever_ready and all(w.tried for w in s.workers) for s in self.stages
            ):
                started.set_result(None)
        self._refresh()
        if stage.failed and self._phase is State.READY:
            self._settle_all(
                lambda _: NotReady(f"stage {stage.name!r} has failed: {stage.health.reason}", state=State.FAILED)
            )

    def _failure(self, stage: StageDriver, status: int, payload: Payload) -> RequestError:
        if status == Status.EXPIRED:
            return DeadlineExceeded(ran=False)
        try:
            problem = unpack(payload, Problem)
        except ProtocolError as broken:
            # The batch has left the worker's hands already: the item must be settled here, or nobody would.
            return StageFailed(str(broken), stage=stage.name)
        return invalid_item(problem) if status == Status.INVALID else stage_failure(problem, stage.name)

    def _advance(self, item: Item, payload: Payload, now: float) -> None:
        nbytes = payload_size(payload)
        self._admission.held += nbytes - item.nbytes
        item.payload, item.nbytes = payload, nbytes
        item.suspect = False
        item.stage += 1
        item.state = OFFER[item.state]
        self.stages[item.stage].queue.offer(item, now)

    # -- the one function that settles --------------------------------------------------------------------------------

    def _settle(self, item: Item, outcome: Outcome) -> None:
        """Give `item` its outcome; the first one stands, and a caller who has gone is no trouble."""
        before = item.state
        if before is ItemState.SETTLED:
            return
        item.state = ItemState.SETTLED
        if before is ItemState.QUEUED:
            self.stages[item.stage].queue.discard(item)
        request = item.request
        self._admission.leave(request.bulk)
        self._admission.held -= item.nbytes
        item.payload = item.frame = None
        self._record(request, item.index, outcome)

    def _record(self, request: Request, index: int, outcome: Outcome) -> None:
        counters = self.counters
        if isinstance(outcome, Result):
            counters.succeeded += 1
        else:
            _count_failure(counters, outcome.error)
        request.outcomes[index] = outcome
        request.unsettled -= 1
        if request.unsettled:
            return
        self._deadlines.discard(request)
        request.items = []  # they refer to the request: without this only the cycle collector could free either
        try:
            request.done(request.outcomes)
        except Exception:  # whoever was waiting: their fault must not reach the other items of this batch
            log.exception("service %r: a caller failed to take its outcomes", self.name)

    def _end(self, request: Request, error: Callable[[Item | None], RequestError]) -> None:
        """Settle all that is unsettled of `request`, fed or not."""
        if not request.wholly_fed:
            self._admission.forget(request)
            first, request.fed = request.fed, len(request.payloads)
            for index in range(first, request.fed):
                self._admission.held -= payload_size(request.payloads[index])
                self._record(request, index, Failure(error(None)))
        for item in request.items:
            if item.state is not ItemState.SETTLED:
                self._settle(item, Failure(error(item)))

    def _settle_all(self, error: Callable[[Item | None], RequestError]) -> None:
        for request in self._in_hand():
            self._end(request, error)

    def _in_hand(self) -> Iterable[Request]:
        found: dict[Request, None] = dict.fromkeys(self._admission.requests())
        for stage in self.stages:
            found.update((item.request, None) for item in stage.queue)
            found.update((item.request, None) for w in stage.workers for sent in w.frames for item in sent.items)
        return list(found)

    # -- deadlines ------------------------------------------------------------------------------------------------

    def _arm_deadlines(self) -> None:
        moment = self._deadlines.next_moment()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if moment is not None:
            delay = math.ceil(max(moment - self.now(), 0.0) / TIMER_TICK) * TIMER_TICK
            self._deadline_timer = self._running_loop().call_later(delay, self._deadlines_rang)

    def _deadlines_rang(self) -> None:
        self._deadline_timer = None
        for request in self._deadlines.expired(self.now()):
            self._end(request, _deadline_exceeded)
        self._arm_deadlines()
        self.wake()

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every worker, and return when each has come to READY (or to its first end, with another ready).

        Raises:
            ConfigError: a stage cannot be run as described: cores not allowed, a class no worker can import.
            StartFailed: a stage's `setup` raised, with the remote traceback, or its workers keep dying.
        """
        if self._phase is not State.STOPPED:
            raise ConfigError(f"service {self.name!r} is {self.state}: it can be started once it is stopped")
        self._loop = asyncio.get_running_loop()
        self._prepare()
        self._phase = State.READY
        self._started = self._loop.create_future()
        self._changed = asyncio.Event()
        for stage in self.stages:
            stage.start()
        try:
            await self._started
        except BaseException:
            # Also when start itself is cancelled: nothing that was started may stay.
            await asyncio.shield(self.stop(drain=0))
            raise
        finally:
            self._started = None

    def _prepare(self) -> None:
        allowed = allowed_cores()
        if self._cpus is not None:
            check_cores(f"service {self.name!r}", self._cpus, allowed)
        launch = [
            launcher(self.name, self._specs, i, self.options, inline=self._in_process) for i in range(len(self._specs))
        ]
        cores = [worker_cores(spec, allowed) for spec in self._specs]
        if self._cpus is not None and not self._in_process:
            self._affinity_before = allowed
            pin(self._cpus)
        self._admission = Admission(self.options.max_queued, self.options.max_queued_bytes)
        self._deadlines = Deadlines()
        self.stages = [
            StageDriver(
                self, spec, i, launch=launch[i], inline=self._in_process, cores=cores[i][0], threads=cores[i][1]
            )
            for i, spec in enumerate(self._specs)
        ]
        self.stages[-1].last = True
        self._rooms = [self._room_behind(i) for i in range(len(self.stages))]

    async def stop(self, drain: float = 30.0) -> None:
        """Finish what was accepted for up to `drain` seconds, settle the rest as NotReady, end the workers.

        Called again while it drains, the sooner end counts.
        """
        task = self._stop_task
        if task is None:
            if self._phase is State.STOPPED:
                return
            self._hurried = False
            task = self._stop_task = asyncio.get_running_loop().create_task(self._stop(drain))
        else:
            done, _ = await asyncio.wait((task,), timeout=None if drain == math.inf else drain)
            if not done:
                self._hurried = True
                if self._changed is not None:
                    self._changed.set()
        await asyncio.shield(task)

    async def _stop(self, drain: float) -> None:
        self._phase = State.DRAINING
        self._refresh()
        for stage in self.stages:
            stage.queue.draining = True
        self.wake()
        await self._until(lambda: self.idle or self._hurried, drain)
        drained = self.idle and drain > 0
        self._settle_all(lambda _: NotReady(f"service {self.name!r} has stopped", state=State.STOPPED))
        if drained:
            for stage in self.stages:
                stage.close()
            await self._until(lambda: self._hurried or not self._workers_alive, TEARDOWN_GRACE)
        for stage in self.stages:
            stage.kill()
        await self._until(lambda: not self._workers_alive, math.inf)
        self._finish()

    def _finish(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._affinity_before is not None:
            pin(self._affinity_before)
            self._affinity_before = None
        if self._started is not None and not self._started.done():
            self._started.set_exception(StartFailed(f"service {self.name!r} was stopped while it was starting"))
        self._phase = State.STOPPED
        self._stop_task = None

    @property
    def _workers_alive(self) -> bool:
        return any(worker.alive for stage in self.stages for worker in stage.workers)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        assert self._changed is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def abandon(self) -> None:
        """End every worker without an event loop: the service was dropped and never stopped."""
        for stage in self.stages:
            stage.stopping = True
            for worker in stage.workers:
                worker.abandon()
        self._phase = State.STOPPED
        self._accepting = False

    def _refresh(self) -> None:
        self._accepting = self.state.serving

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the engine was never started"
        return self._loop


def _deadline_exceeded(item: Item | None) -> DeadlineExceeded:
    return DeadlineExceeded(ran=item is not None and item.frame is not None and item.frame.running)


def _count_failure(counters: ServiceCounters, error: RequestError) -> None:
    match error:
        case InvalidItem():
            counters.invalid += 1
        case StageFailed():
            counters.failed += 1
        case DeadlineExceeded():
            counters.expired += 1
        case Cancelled():
            counters.cancelled += 1
        case WorkerLost():
            counters.lost += 1
        case _:
            counters.turned_away += 1
