"""A running service: its stages are started, watched and stopped here; its requests pass through `Flow`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from penstock.codec.formats import Codec
from penstock.config import IN_A_PROGRAM, LogOptions, ServiceOptions
from penstock.core.arriving import ArrivingBody
from penstock.core.clock import Clock, calling_later
from penstock.core.counters import ServiceCounters
from penstock.core.item import Done, Request
from penstock.core.lanes import Lane
from penstock.core.load_progress import Loading, loading_words
from penstock.core.payload import Payload
from penstock.core.retry_slots import whole_seconds
from penstock.core.shown_tenants import shown_rows
from penstock.core.state import State
from penstock.core.supervision import longest_rest
from penstock.core.tenant_rules import TenantRules
from penstock.core.tenants import USUAL_URGENCY, TenantNumbers, Tenants
from penstock.core.token_bucket import Allowance
from penstock.errors import (
    ConfigError,
    NotReady,
    RequestError,
    StartFailed,
)
from penstock.hosting.available_memory import available_memory
from penstock.hosting.servable import SlabView
from penstock.hosting.tenants_file import read_tenants
from penstock.runtime.affinity import pin
from penstock.runtime.external_door import ExternalDoor
from penstock.runtime.external_stage import ExternalStageDriver
from penstock.runtime.flow import Flow
from penstock.runtime.incarnation import StartIncarnation
from penstock.runtime.launching import plan as plan_workers
from penstock.runtime.memory_watch import MemoryWatch
from penstock.runtime.shared_memory import SharedMemory
from penstock.runtime.slabs import OpenSlabs
from penstock.runtime.spec import StageSpec
from penstock.runtime.stage_driver import BatchSent, StageDriver

TEARDOWN_GRACE_SECONDS = 5.0
"""How long a worker may take to tear its stage down after the last answer; then it is killed."""
CANCEL_GRACE_SECONDS = 1.0
"""How long a stop lets cancelled tasks of waiting stages go on: long enough to close a connection in good order."""


class Engine:
    """One run of a service.  Made stopped; `start` starts it, once; `stop` may be called any time, any number of times.

    It lives on one event loop, and everything but `abandon` is called on that loop's thread.  `clock` tells it the
    time, and `start_incarnation` starts its workers; `inline` says that those are threads of this process.  `logs` is
    how workers in processes of their own write their log lines.  `served` says that every caller comes over HTTP.
    `rules` is what the file of tenants says, None where nobody has read it yet.  `read_memory` tells how many bytes of
    memory are available, for `min_free_memory`.  `open_slabs` makes the shared memory; without it all travels inline.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[StageSpec],
        options: ServiceOptions,
        *,
        clock: Clock,
        start_incarnation: StartIncarnation,
        cpus: Sequence[int] | None = None,
        inline: bool = False,
        logs: LogOptions = IN_A_PROGRAM,
        served: bool = False,
        rules: TenantRules | None = None,
        read_memory: Callable[[], int | None] = available_memory,
        open_slabs: OpenSlabs | None = None,
    ) -> None:
        self.name = name
        self.options = options
        self._specs = tuple(specs)
        self._clock = clock
        self._logs = logs
        self._served = served
        self._cpus = tuple(cpus) if cpus is not None else None
        self._in_process = inline  # not `_inline`: mypyc would write `__inline`, which C compilers take for a keyword
        self._now = clock.now
        rules = rules or read_tenants(options.tenants_file)
        self._tenants = Tenants(rules.named, rules.others)
        self._flow = Flow(
            self,
            name,
            self._specs,
            options,
            inline=inline,
            clock=clock,
            start_incarnation=start_incarnation,
            tenants=self._tenants,
        )
        self.stages: list[StageDriver] = self._flow.stages
        self.counters: ServiceCounters = self._flow.counters
        self._ledger = self._flow.ledger
        self._memory_watch: MemoryWatch | None = None
        if options.min_free_memory:
            self._memory_watch = MemoryWatch(
                name, options.min_free_memory, read=read_memory, clock=clock, changed=self._flow.set_memory_short
            )
        self._memory = SharedMemory(name, self._specs, options, self.stages, clock, open_slabs)
        self._affinity_before: frozenset[int] | None = None
        self._pinned_by = 0
        """The thread that was pinned."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Future[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Set whenever something happened that a stop may wait for."""
        self._hurried = False
        """Whether the time that a further call of `stop` gave is up."""
        self._overdue = False
        """Whether the time of the wait in `_until` is up."""
        self._phase = State.STOPPED
        self._leaving = False
        """Whether it is DRAINING for those who ask, although it accepts."""
        self._door: ExternalDoor | None = None
        external = [stage for stage in self.stages if isinstance(stage, ExternalStageDriver)]
        if external and options.remote_worker_socket is not None:
            self._door = ExternalDoor(
                name,
                options.remote_worker_socket,
                options.remote_worker_socket_mode,
                external,
                only=len(self.stages) == 1,
                clock=clock,
            )

    # -- what hosts read --------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:  # see `HostedEngine`
        state = self._own_state
        return State.DRAINING if self._leaving and state.accepting else state

    @property
    def accepting(self) -> bool:  # see `HostedEngine`
        return self._flow.accepting

    @property
    def _own_state(self) -> State:
        """The state, also while it is about to end."""
        if self._phase is not State.READY:
            return self._phase
        if any(stage.failed for stage in self.stages):
            return State.FAILED
        if not all(stage.health.ever_ready for stage in self.stages):
            return State.STARTING
        if any(stage.stalled for stage in self.stages):
            return State.STALLED
        return State.READY if self._flow.feeding.has_room(0) else State.BUSY

    @property
    def reason(self) -> str:  # see `HostedEngine`
        for stage in self.stages:
            if stage.failed:
                return stage.reason
        state = self.state
        if state is State.STALLED:
            stage = max(self.stages, key=lambda stage: stage.progress_age)
            return f"stage {stage.name!r} has work but has completed nothing for {stage.progress_age:.0f} s"
        return loading_words(self.loading) if state is State.STARTING else ""

    @property
    def loading(self) -> list[Loading]:  # see `HostedEngine`
        starting = self._started is not None
        stages = [stage for stage in self.stages if starting or stage.awaits_others]
        return [loading for stage in stages if (loading := stage.loading) is not None]

    @property
    def queued(self) -> int:  # see `HostedEngine`
        return self._flow.queued

    @property
    def backlog_seconds(self) -> float:  # see `HostedEngine`
        return self._flow.prediction.backlog_seconds

    @property
    def held_bytes(self) -> int:  # see `HostedEngine`
        return self._ledger.held

    @property
    def answer_bytes(self) -> int:  # see `HostedEngine`
        return self._ledger.answers

    @property
    def answers_overfull(self) -> bool:  # see `HostedEngine`
        return self._ledger.answers_overfull

    @property
    def memory_short(self) -> bool:  # see `HostedEngine`
        return self._ledger.memory_short

    @property
    def memory_available(self) -> int | None:  # see `HostedEngine`
        return None if self._memory_watch is None else self._memory_watch.available

    def refusal(  # see `HostedEngine`
        self,
        nbytes: int = 0,
        deadline: float = math.inf,
        lane: Lane = Lane.SINGLE,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> RequestError | None:
        flow = self._flow
        if not flow.accepting:
            return self.not_ready()
        whose = flow.find_tenant(tenant)
        if lane is not Lane.BACK and flow.newcomers.open_to(whose, nbytes):
            return None  # most requests; what follows only says why not
        return flow.newcomers.refusal(nbytes, deadline, lane, urgency, whose)

    def not_ready(self) -> NotReady:  # see `Supervisor`
        state = self._own_state
        reason = f": {self.reason}" if state in (State.FAILED, State.STARTING) else ""
        retry_after = self._retry_failed_after() if state is State.FAILED else 1
        return NotReady(f"service {self.name!r} is {state}{reason}", state=state, retry_after=retry_after)

    def allowance(self, tenant: str) -> Allowance | None:  # see `HostedEngine`
        bucket = self._flow.find_tenant(tenant).bucket
        return None if bucket is None else bucket.allowance(self._now())

    def note_refused(self, tenant: str) -> None:  # see `HostedEngine`
        self._flow.find_tenant(tenant).refused += 1

    def tenant_rows(self) -> list[tuple[str, TenantNumbers]]:  # see `HostedEngine`
        return shown_rows(self._tenants, self._now())

    def _retry_failed_after(self) -> int:
        """In how many seconds a service is worth another try that has failed."""
        return whole_seconds(longest_rest([stage.health for stage in self.stages], self._now()))

    # -- requests ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        payloads: Sequence[Payload],
        codec_in: Codec,
        codec_out: Codec,
        deadline: float,
        done: Done,
        request_id: bytes = b"",
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
        *,
        lane: Lane = Lane.SINGLE,
        wait: bool = False,
        nbytes: int | None = None,
        hold_results: bool = False,
        alone: bool = False,
    ) -> Request:
        """Accept a request; `done(outcomes)` is called exactly once, on the loop, after this has returned.

        `deadline` is a moment of the monotonic clock, or inf.  `lane` is where the request and its items wait; those of
        `Lane.BULK` do not wait for company; those of `Lane.BACK` get what the others leave, need no room and count in
        no bound, so that who submits them must bound them.  With `wait` the request waits for room until its deadline;
        without, a full service refuses.  `nbytes` is what the payloads take in memory, where that is known; else they
        are measured.  With `hold_results` the results of several items count as held until the last one is there; when
        they take more than `max_queued_bytes`, what no worker has yet ends as Overloaded.  Without, and in `Lane.BACK`,
        their caller holds them.  With `alone` each item is a batch of its own in every stage.  `urgency` goes from 0,
        first, to 7, last; `tenant` is the name of one, or "".
        `request_id` is what the stages are told of the request's name: letters, digits and ``._-``, or b"" for none.
        The request that is returned is what `cancel` takes.

        Raises:
            NotReady: the service is not serving.
            Overloaded: it is full, and `wait` is False.
        """
        return self._flow.submit(
            payloads,
            codec_in,
            codec_out,
            deadline,
            done,
            request_id,
            urgency,
            tenant,
            lane=lane,
            wait=wait,
            nbytes=nbytes,
            hold_results=hold_results,
            alone=alone,
        )

    def submit_probe(  # see `HostedEngine`
        self, example: Any, deadline: float, done: Done, codec_out: Codec | None = None
    ) -> None:
        self._flow.submit_probe(example, deadline, done, codec_out)

    def cancel(self, request: Request) -> None:
        """Settle the rest of `request` as Cancelled: its caller has left.

        Queued items are never run.  An item that runs is finished by its worker, and goes to no further stage.
        """
        self._flow.cancel(request)

    def recall(self, request: Request) -> None:
        """Take back the items of `request` that no worker has begun.

        A queued item is Cancelled at once.  An item that was sent ahead is so when its worker has said that it left it
        out; where that was too late, it has the outcome of its run.  Items that have begun, and those that a worker
        from outside has, end as if nobody had asked.
        """
        self._flow.recall(request)

    def begun(self, request: Request) -> bool:
        """Whether a worker has been at work on any item of `request`, as far as is known here.

        It has begun where it is settled, or past the first stage, or a suspect, or in the frame that its worker runs
        now, and not in a frame that was sent ahead.
        """
        return self._flow.begun(request)

    def watch_batches(self, sent: BatchSent) -> None:  # see `HostedEngine`
        for stage in self.stages:
            stage.on_sent = sent

    def piece(self, nbytes: int) -> memoryview | None:  # see `HostedEngine`
        return self._memory.piece(nbytes)

    def piece_for(self, body: ArrivingBody) -> memoryview | None:  # see `HostedEngine`
        return self._memory.piece_for(body)

    def arrived(self, body: ArrivingBody) -> None:  # see `HostedEngine`
        self._memory.arrived(body)

    @property
    def slabs(self) -> Sequence[SlabView]:  # see `HostedEngine`
        return self._memory.slabs

    @property
    def inline_reasons(self) -> dict[str, int]:  # see `HostedEngine`
        return self._memory.inline_reasons

    def hold(self, nbytes: int) -> None:  # see `HostedEngine`
        self._flow.hold(nbytes)

    def hold_answer(self, nbytes: int) -> None:  # see `HostedEngine`
        self._flow.hold_answer(nbytes)

    async def worker_stacks(self) -> dict[str, str]:  # see `HostedEngine`
        workers = [worker for stage in self.stages for worker in stage.workers]
        names = [f"{worker} (pid {worker.pid})" for worker in workers]
        stacks = await asyncio.gather(*[worker.stacks() for worker in workers])
        return {name: text for name, text in zip(names, stacks, strict=True) if text}

    # -- start ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every worker; returns when each has reached READY or ended once, and every stage had a ready one.

        Raises:
            ConfigError: a stage cannot be run as described: cores not allowed, a class no worker can import.  Or
                `min_free_memory` is set where nothing tells how much memory is available.
            StartFailed: a stage's `setup` raised, with the remote traceback, or its workers keep dying.  Or workers
                from outside cannot be listened for.
        """
        if self._loop is not None:
            raise ConfigError(f"service {self.name!r} is already {self.state}: an engine can be started only once")
        plan = plan_workers(
            self.name,
            self._specs,
            self.options,
            cpus=self._cpus,
            inline=self._in_process,
            logs=self._logs,
            served=self._served,
        )
        self._loop = asyncio.get_running_loop()
        self._begin_memory(self._loop)
        self._pin(plan.allowed)
        self._flow.begin(self._loop)
        self._phase = State.READY
        failure: BaseException | None = None
        try:
            await self._open_door()
            self._started = self._loop.create_future()
            for stage, launch, places in zip(self.stages, plan.launch, plan.places, strict=True):
                stage.start(launch, places)
            self._look_whether_started()
            await self._started
        except BaseException as error:  # noqa: BLE001  # raised below; also where `start` is cancelled
            failure = error
        try:
            if failure is not None:
                # Nothing that was started may stay.  It is awaited behind the handler: in compiled code an error in
                # whose handler something is awaited stays the one that the thread handles, and the context of others.
                await asyncio.shield(self.stop(drain=0))
                raise failure
        finally:
            self._started = failure = None

    def _begin_memory(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._memory.start(loop)
            if self._memory_watch is not None:
                self._memory_watch.start()
        except ConfigError:
            self._end_memory()
            raise

    def pool_changed(self, stage: StageDriver, failure: StartFailed | None) -> None:
        """Look again at what the service's workers allow."""
        self._changed.set()
        started = self._started
        if started is not None and not started.done():
            if failure is not None and (failure.traceback or stage.failed):
                started.set_exception(failure)
            else:
                self._look_whether_started()
        self._refresh()
        if stage.failed and self._phase in (State.READY, State.DRAINING):
            retry_after = self._retry_failed_after()
            self._flow.settle_all(
                lambda _: NotReady(
                    f"stage {stage.name!r} has failed: {stage.reason}",
                    state=State.FAILED,
                    retry_after=retry_after,
                )
            )

    def _look_whether_started(self) -> None:
        started = self._started
        if started is None or started.done() or self._phase is not State.READY:
            return
        if all(stage.started for stage in self.stages):
            started.set_result(None)

    def _refresh(self) -> None:
        self._flow.accepting = self._own_state.accepting

    # -- stop -------------------------------------------------------------------------------------------------------

    def leave_soon(self) -> None:  # see `HostedEngine`
        self._leaving = True

    async def stop(self, drain: float = 30.0) -> None:
        """Finish what was accepted for up to `drain` seconds, settle the rest as NotReady, end the workers.

        A second call while it drains can only bring the end forward.
        """
        task = self._stop_task
        if task is None:
            if self._phase is State.STOPPED:
                return
            self._phase = State.DRAINING
            self._refresh()
            task = self._stop_task = asyncio.get_running_loop().create_task(self._stop(drain))
            task.add_done_callback(self._stop_ended)
            await asyncio.shield(task)
            return
        with calling_later(self._clock, drain, self._hurry):
            await asyncio.shield(task)

    def _hurry(self) -> None:
        self._hurried = True
        self._changed.set()

    async def _stop(self, drain: float) -> None:
        for stage in self.stages:
            stage.queue.draining = True
        self._flow.on_pumped = self._changed.set
        self._flow.wake()
        await self._until(lambda: self._flow.idle or self._hurried, drain)
        drained = self._flow.idle and drain > 0
        self._settle_stopped()
        self._close_door()
        if drained:
            for stage in self.stages:
                stage.close()
            await self._until(lambda: self._hurried or not self._workers_alive, TEARDOWN_GRACE_SECONDS)
        else:  # what waiting stages have in progress was cancelled when its items were settled
            await self._until(lambda: self._hurried or not self._unwinds, CANCEL_GRACE_SECONDS)
        for stage in self.stages:
            stage.kill()
        await self._until(lambda: not self._workers_alive, math.inf)
        self._finish()

    @property
    def _unwinds(self) -> bool:
        return any(stage.waits and stage.in_flight for stage in self.stages)

    async def _open_door(self) -> None:
        if self._door is None:
            return
        await self._door.open()
        if self._phase is not State.READY:  # nothing may be started any more
            raise self._stopped_early()

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()

    def _stop_ended(self, _: asyncio.Task[None]) -> None:
        """End the service at once if the stop went wrong or was cancelled.

        This is a callback of the task and no `finally` in it.  A task that is cancelled before its first step runs no
        `finally`, and in compiled code an `await` in a `finally` loses the exception that led there.
        """
        if self._phase is not State.STOPPED:
            self.abandon()

    def _settle_stopped(self) -> None:
        self._flow.settle_all(lambda _: NotReady(f"service {self.name!r} has stopped", state=State.STOPPED))

    def _finish(self) -> None:
        """Fail a start that still waits, and cancel what could come later."""
        self._phase = State.STOPPED
        self._stop_task = None
        self._flow.on_pumped = None
        self._flow.forget_deadlines()
        for stage in self.stages:
            stage.forget_timers()
        self._close_door()
        self._end_memory()
        if self._started is not None and not self._started.done():
            self._started.set_exception(self._stopped_early())
        self._unpin()

    def _end_memory(self) -> None:
        if self._memory_watch is not None:
            self._memory_watch.stop()
        self._memory.stop()

    def _stopped_early(self) -> StartFailed:
        return StartFailed(f"service {self.name!r} was stopped while it was starting")

    @property
    def _workers_alive(self) -> bool:
        # An abandoned worker does not report its end.
        return self._phase is not State.STOPPED and any(
            worker.alive for stage in self.stages for worker in stage.workers
        )

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until `condition` is true, at most `seconds`.  Only the stop waits, so one wait at a time."""
        self._overdue = False
        with calling_later(self._clock, seconds, self._time_is_up):
            while not (condition() or self._overdue):
                self._changed.clear()
                await self._changed.wait()

    def _time_is_up(self) -> None:
        self._overdue = True
        self._changed.set()

    def abandon(self) -> None:
        """End every worker at once, from any thread and without an event loop; the engine is stopped.

        Callers that wait are told on the engine's loop, if that runs once more.
        """
        for stage in self.stages:
            stage.abandon()
        if self._door is not None:
            self._door.abandon()
        self._phase = State.STOPPED
        self._flow.accepting = False
        self._stop_task = None
        self._unpin()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed, and nobody waits there
                self._loop.call_soon_threadsafe(self._abandoned)

    def _abandoned(self) -> None:
        self._settle_stopped()
        self._finish()
        self._changed.set()

    # -- the coordinator's own cores --------------------------------------------------------------------------------

    def _pin(self, allowed: frozenset[int]) -> None:
        """Pin this thread to the service's cores, if it has any.  `allowed` are the cores it had before."""
        if self._cpus is not None and not self._in_process:
            self._affinity_before = allowed
            self._pinned_by = threading.get_ident()
            pin(self._cpus)

    def _unpin(self) -> None:
        before, self._affinity_before = self._affinity_before, None
        # Another thread may have abandoned the engine; the engine must not change the cores of that thread.
        if before is not None and self._pinned_by == threading.get_ident():
            pin(before)
