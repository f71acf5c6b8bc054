"""Drives one stage: its queue, its workers, the timer between them.  The decisions are in `core`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from penstock.codec.formats import Codec
from penstock.codec.text import cut_line
from penstock.config import ServiceOptions
from penstock.core.abandonment import Abandonment
from penstock.core.alarm import Alarm
from penstock.core.batching import BatchQueue
from penstock.core.clock import Clock
from penstock.core.counters import StageCounters
from penstock.core.cuts import CutBatch
from penstock.core.dispatch import SentFrame, count_taking, least_busy, reclaim
from penstock.core.item import OFFER, SEND, Item, ItemState
from penstock.core.lanes import Lane
from penstock.core.load_progress import Loading
from penstock.core.memory_limit import GROW_AFTER_SECONDS, MemoryLimit
from penstock.core.payload import any_large
from penstock.core.request_ids import join_ids
from penstock.core.series import MOST_SERIES, series_of, shown
from penstock.core.supervision import StageHealth, Verdict, WorkerHealth
from penstock.core.tenants import Tenants
from penstock.errors import ConfigError, ProtocolError, StartFailed
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.idle_rounds import IdleRounds
from penstock.runtime.incarnation import StartIncarnation, WorkerStart
from penstock.runtime.launching import WorkerPlace
from penstock.runtime.process import worker_environment
from penstock.runtime.slabs import NO_SLAB, StageSlabs
from penstock.runtime.spec import StageSpec
from penstock.runtime.stage_failures import (
    fault_kind,
    first_error,
    short_reason,
    split_answers,
    start_failure,
    start_words,
)
from penstock.runtime.stage_memory import StageMemory, released_note
from penstock.runtime.stall_watch import StallWatch
from penstock.runtime.waiting_slot import WaitingSlot
from penstock.runtime.worker_slot import IncarnationEnd, WorkerSlot
from penstock.transport.framing import Frame, Kind, Status, encode_batch, encode_control, encode_slab_note
from penstock.transport.messages import Counts, Launch, Lost, Problem, Well, pack
from penstock.worker.stage import has_health, waiting_methods

log = guarded_logger("penstock.runtime")

ROUND_TRIP_SECONDS = 0.010
"""How long a batch takes to the worker and back, besides its run; timers and a busy event loop are included.

Items that wait for company are sent so much earlier than their deadlines require.
"""
DEVICE_LOST: Final = "device lost"
SERVE: Final = Verdict.SERVE  # asked for each batch: a constant costs nothing once compiled
BACK: Final = int(Lane.BACK)
SETTLED: Final = ItemState.SETTLED
EXPIRED: Final = int(Status.EXPIRED)
RECALLED: Final = int(Status.RECALLED)
MOST_WITH_BACK: Final = 2
"""The most batches that a worker may hold and still be given items of BACK, or as many as it runs at once: an item of
the lanes in front waits for these at most."""


BatchSent: TypeAlias = Callable[[Callable[[], None] | None, list[bytes]], None]
"""Is told of a batch: what kills its worker, None for a thread, and the ids of its requests that are not of BACK."""


class Hub(Protocol):
    """Where the items of all stages come together."""

    def wake(self) -> None:
        """Pump the stages, once, at the end of this turn of the event loop."""

    def batch_answered(self, stage: StageDriver, items: list[Item], frame: Frame) -> None:
        """A batch has come back."""

    def missed(self, items: list[Item]) -> None:
        """The deadline of these items passed before they could be sent."""

    def worker_lost(self, stage: StageDriver, items: list[Item], *, hung: bool, alone: bool) -> None:
        """The worker of these items died, and they are not tried again.

        `hung` says that it was killed for its time, `alone` that its batch had no other item.
        """

    def recalled(self, items: list[Item]) -> None:
        """These items were taken back from a worker that ended before it had begun them."""

    def pool_changed(self, stage: StageDriver, failure: StartFailed | None) -> None:
        """A worker of `stage` became ready or ended; `failure` is why, where it ended before it was ready."""


class StageDriver:
    """One running stage."""

    memory: StageMemory | None = None
    """What of its inputs and results lies in slabs; None where nothing does."""
    _well: Well | None = None
    """An item that ended well, for new workers to be examined by."""
    _memory_limit: MemoryLimit | None = None
    """How large batches may be, while that is less than the policy says."""
    _told_dropped = False
    """Whether the log has told that its workers count more series than there may be."""
    _unstartable = False
    """Whether the log has told that no worker can be started, and not yet that the stage is back."""
    _started_at = 0.0
    on_sent: BatchSent | None = None
    """Is told of each batch, where somebody wants to know."""
    recalls = True
    """Whether its workers can be told to leave out what they have not begun."""

    def __init__(
        self,
        hub: Hub,
        service: str,
        spec: StageSpec,
        index: int,
        *,
        codec_in: Codec | None,
        codec_out: Codec | None,
        options: ServiceOptions,
        inline: bool,
        clock: Clock,
        start_incarnation: StartIncarnation,
    ) -> None:
        self.hub = hub
        self.service = service
        self.spec = spec
        self.index = index
        self.last = codec_out is None
        """Whether its results go to the callers."""
        self.codec_in = codec_in
        """The format of its items; None where that is their callers' choice."""
        self.codec_out = codec_out
        """The format of its results, likewise."""
        self.seats = seats = spec.workers if spec.external is None else options.max_remote_workers
        """The most workers that it can have."""
        self._clock = clock
        self.inline = inline
        """Whether its workers are threads: a thread is never ended, and its items are not retried."""
        self.waits = spec.concurrency > 0
        """Whether its workers run several batches at once, and answer them in any order."""
        self.concurrency = max(1, spec.concurrency)
        """The batches that a worker runs at once."""
        self.queue = BatchQueue(
            spec.policy,
            0,
            max_batches=spec.options.max_in_flight_batches,
            round_trip_seconds=ROUND_TRIP_SECONDS,
            back_share=options.background_share,
            by_deadline=options.queue_order == "edf",
            timer_step=clock.fine_step,
        )
        self.counters = StageCounters()
        self.health = StageHealth(seats)
        self.in_flight = 0
        self.back_in_flight = 0
        """Those of `in_flight` that are of BACK."""
        self.window = self.concurrency + spec.options.prefetch
        # A thread cannot be killed.
        self._abandonment = None if inline else _abandonment(spec)
        self.workers = [
            self._slot(
                i,
                _worker_health(spec),
                start_incarnation,
            )
            for i in range(spec.workers)
        ]
        self.held = False
        """Whether a free worker leaves waiting what waits: for company, or for room behind the stage."""
        self.stall = StallWatch(spec.name, options.progress_deadline, clock)
        self.tenants: Tenants | None = None
        """The tenants of the service, whose waiting is counted while any has a name."""
        self.ending = "killed"
        """What is done to a worker that has to end, as the log says it."""
        self.fate = "restarted"
        """What becomes of it then."""
        self.most_batches = spec.options.max_in_flight_batches
        self.stopping = False
        self._now = clock.now
        self._launch: Callable[[int], Launch] | None = None
        self._places: list[WorkerPlace] = []
        self._frame_ids = count(1)
        self._errors = [""] * seats
        """For each worker, the error that led to its last examination."""
        self._alarm = Alarm(clock, hub.wake, fine=self.queue.learns)
        self._rounds = self._make_rounds() if has_health(spec.target) else None
        self._faults = FaultLog(clock, log)

    def _slot(self, index: int, health: WorkerHealth, start_incarnation: StartIncarnation) -> WorkerSlot:
        kind = WaitingSlot if self.waits else WorkerSlot
        return kind(
            self,
            self.spec.name,
            index,
            timeout=self.spec.options.timeout,
            abandonment=self._abandonment,
            health=health,
            clock=self._clock,
            start_incarnation=start_incarnation,
        )

    def _make_rounds(self) -> IdleRounds:
        return IdleRounds(self.workers, self.seats, self._clock, self._ask, self._unwell)

    # -- what others read -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.spec.name

    @property
    def max_size(self) -> int:
        """The most items of a batch now: fewer than the policy says while memory is short."""
        return self.queue.max_size

    @property
    def queued(self) -> int:
        """Items that wait for this stage."""
        return len(self.queue)

    @property
    def live_workers(self) -> int:
        """Workers that are ready."""
        return sum(worker.ready for worker in self.workers)

    @property
    def in_turn(self) -> bool:  # see `SlotOwner`
        return not self.waits or "predict" not in waiting_methods(self.spec.target)

    @property
    def known_rate(self) -> float:
        """How many items a second it can end, by its latest runs, those of BACK alone aside; 0 before the first."""
        size = self.spec.policy.max_size
        run = self.queue.expected_run(size)
        return self._batches_at_once(self.live_workers or len(self.workers)) * size / run if run > 0 else 0.0

    @property
    def most_at_once(self) -> int:
        """The items that its workers take at once."""
        return self._batches_at_once(max(1, len(self.workers))) * self.spec.policy.max_size

    def _batches_at_once(self, workers: int) -> int:
        batches = workers * self.concurrency
        return batches if self.most_batches is None else min(batches, self.most_batches)

    @property
    def failed(self) -> bool:
        """Whether no worker is left and none can be started."""
        return self.health.failed(self.live_workers)

    @property
    def reason(self) -> str:
        """Why it has failed."""
        return self.health.reason

    @property
    def started(self) -> bool:
        """Whether the service's start waits for it no more: each worker was tried, and one has been ready."""
        return self.health.ever_ready and all(worker.tried for worker in self.workers)

    @property
    def awaits_others(self) -> bool:
        """Whether workers from outside are what it waits for."""
        return False

    @property
    def progress_age(self) -> float:
        """For how long it has had work and given nothing back, in seconds."""
        return self.stall.progress.age(self._now()) if self._at_work else 0.0

    @property
    def stalled(self) -> bool:
        """Whether that is too long."""
        return self._at_work and self.stall.progress.stalled(self._now())

    @property
    def _at_work(self) -> bool:
        return self.in_flight > 0 or (len(self.queue) > 0 and not self.held)

    @property
    def hold_seconds(self) -> float:
        """For how long a free worker was last held for company, as that was decided; 0 where it was not."""
        return self.queue.last_hold

    @property
    def held_seconds(self) -> float:
        """For how long a worker was free and items were held for company, all in all."""
        return self.queue.held_seconds

    @property
    def retry_in_seconds(self) -> float | None:
        """In how many seconds a stage that rests is tried again; None without a rest."""
        return self.health.rest_left(self._now())

    @property
    def loading(self) -> Loading | None:
        """What the service's start still waits for here, or None.

        A start waits for the first try of each worker, and for one that is ready.
        """
        if self.started:
            return None
        left, seconds = len(self.workers) - self.live_workers, self._now() - self._started_at
        return Loading(self.name, left, len(self.workers), seconds, self.health.reason)

    # -- from queue to workers ------------------------------------------------------------------------------------

    def pump(self, now: float, room: Callable[[], int | None], back_room: Callable[[], bool]) -> None:
        """Send every batch that may leave now.

        `room` returns how many items of the lanes in front the next stage's queue takes; None is any number.
        `back_room` returns whether it takes items of BACK.
        """
        queue = self.queue
        if self._memory_limit is not None:
            self._grow(self._memory_limit, now)
        self.held = False
        while len(queue):
            workers = [worker for worker in self.workers if not worker.alone] if self.waits else self.workers
            worker = least_busy(workers, self.window, self.most_batches)
            if worker is None:
                return
            held = len(worker.frames)
            idle = held < self.concurrency
            at_most = room()
            back = queue.back_items > 0 and held < max(MOST_WITH_BACK, self.concurrency) and back_room()
            if at_most == 0 and not back:
                self.held = idle
                return
            if held and self.waits and queue.suspect_is_next(at_most=at_most, back=back):
                return  # it runs alone: nothing more is sent until a worker has answered all that it holds
            seat = worker.free_seat()
            batch = queue.take(now, idle=idle, at_most=at_most, back=back, worker=seat)
            if batch is None:
                if idle:
                    self.held = True
                    self._alarm.set(queue.next_deadline(back=back))
                return
            for item in batch.items:
                item.state = SEND[item.state]
            late = [item for item in batch.items if item.deadline <= now]
            if late:  # the deadline timer has not rung for them yet: they end as if it had, and are not run
                self.hub.missed(late)
                # Not those whose deadline is to come: a caller that was told may have cancelled others of the batch.
                batch.items = [item for item in batch.items if item.state is not SETTLED]
                batch.back = sum([item.request.lane == BACK for item in batch.items])
            if batch.items:
                self._send(worker, batch, seat, now)
            else:
                queue.unsent(seat)

    def _grow(self, limit: MemoryLimit, now: float) -> None:
        if limit.grow(now):
            self.queue.max_size = limit.size
            log.info("stage %r: memory is available again, batches may have %d items", self.name, limit.size)
            if limit.lifted:
                self._memory_limit = None

    def ran_out_of_memory(self, worker: WorkerSlot, failed: int, ran: int) -> None:  # see `SlotOwner`
        self.counters.shortages += 1
        limit = self._memory_limit or MemoryLimit(self.spec.policy.max_size)
        if limit.ran_out(failed, ran, self._now()):
            self.queue.max_size = limit.size
            log.warning(
                "%s: out of memory with a batch of %d items; the stage's batches are limited to %d, doubled after "
                "each %g s without such an error",
                worker,
                failed,
                limit.size,
                GROW_AFTER_SECONDS,
            )
        self._memory_limit = None if limit.lifted else limit

    def count_workers(self, now: float) -> None:
        """Tell the queue how many workers may be given batches, and of which it will hear no more."""
        taking = count_taking(self.workers)
        if taking != self.queue.workers:
            self.queue.workers = taking
            for worker in self.workers:
                if not worker.ready:
                    self._forget_batches(worker, now)

    def note_work(self, now: float) -> None:
        """Note whether there is work now: after each pump, which may have changed that."""
        at_work = self._at_work
        if at_work is not self.stall.progress.at_work:
            self.stall.work_changed(at_work, now)

    def _send(self, worker: WorkerSlot, batch: CutBatch, seat: int, now: float) -> None:
        items = batch.items
        sent = SentFrame(next(self._frame_ids), items, worker, batch.back, now)
        sent.seat = seat
        for item in items:
            item.frame = sent
        self.counters.queue_seconds.add_many([now - item.arrived for item in items])
        if self.tenants is not None and self.tenants.in_use:
            for item in items:
                if item.request.lane != BACK:
                    item.request.tenant.waited += now - item.arrived
        n = len(items)
        lengths = [item.nbytes for item in items]
        memory = self.memory
        handles = None
        if memory is not None and any_large(lengths, memory.least):
            handles = memory.name_inputs(sent, self.kept_bytes)
        codec_in, codec_out = self.codec_in, self.codec_out
        self.in_flight += n
        self.back_in_flight += batch.back
        self.counters.batches += 1
        self.counters.batch_size.add(n)
        self.counters.batches_closed[batch.reason] = self.counters.batches_closed.get(batch.reason, 0) + 1
        buffers = encode_batch(
            sent.frame_id,
            now,
            [item.id for item in items],
            [item.payload for item in items],
            lengths,
            [item.deadline - now for item in items],
            [item.request.codec_in for item in items] if codec_in is None else [codec_in] * n,
            [item.request.codec_out for item in items] if codec_out is None else [codec_out] * n,
            join_ids(items),
            handles,
        )
        if items[0].suspect and self.recalls and not self.waits:
            buffers.insert(0, encode_slab_note(Kind.SUSPECT, b""))
        if worker.part is not None and worker.part.any_ended:
            buffers.insert(0, released_note(worker.part))
        worker.send(sent, buffers, now)
        if self.on_sent is not None:
            kill = None if self.inline else worker.strike
            self.on_sent(kill, [item.request.id for item in items if item.request.lane != BACK])

    def recall(self, item: Item) -> None:
        """Have the worker that `item` was sent ahead to leave it out; the item settles when the worker has answered."""
        sent: SentFrame = item.frame
        if self.recalls and item not in sent.recalled:
            sent.recalled = [*sent.recalled, item]
            sent.holder.recall(sent, [sent.items.index(item)])

    @property
    def kept_bytes(self) -> int:
        """The bytes of inputs of which the stage keeps views."""
        return sum([worker.kept_bytes for worker in self.workers])

    def keeps_inputs(self, worker: WorkerSlot) -> None:  # see `SlotOwner`
        assert self.memory is not None, "only a worker that reads a slab keeps anything of it"
        if not self.memory.told_kept:
            self.memory.told_kept = True
            log.warning(
                "%s keeps views of its inputs after the batch is done, directly or in reference cycles, so their "
                "shared memory cannot be reused; copy inputs that you keep, with bytes(x) or x.copy()",
                worker,
            )

    # -- from workers -----------------------------------------------------------------------------------------------

    def start_of(self, index: int) -> WorkerStart:
        """Where and how worker `index` starts.  Its environment is made of this process's at this moment."""
        place = self._places[index]
        env = worker_environment(place.threads, place.variables)
        slabs = (NO_SLAB, NO_SLAB) if self.memory is None else self.memory.slabs.descriptors()
        return WorkerStart(self.service, self.name, index, self.spec.target, place.cores, env, slabs)

    def launch_of(self, index: int) -> bytes:  # see `SlotOwner`
        assert self._launch is not None, "the stage was never started"
        launch = self._launch(index)
        if self.memory is not None:
            launch = replace(launch, slabs=self.memory.slabs.order(index))
        if self._well is not None:
            launch = replace(launch, well=self._well)
        return pack(launch)

    def launch_in(self) -> float:
        """At once: a worker that may not serve yet is not started."""
        return 0.0

    def disbelieved(self, worker: WorkerSlot, why: str) -> None:  # see `SlotOwner`
        log.error("%s: %s; the worker is %s", worker, why, self.ending)

    def check_answers(self, sent: SentFrame, frame: Frame) -> None:
        """Nothing more than the slot has checked: these are our own workers."""

    def answered(  # see `SlotOwner`
        self, worker: WorkerSlot, sent: SentFrame, frame: Frame, now: float
    ) -> None:
        self.in_flight -= len(sent.items)
        self.back_in_flight -= sent.back
        self.stall.answered(now)
        counters = self.counters
        counters.run_seconds.add(frame.seconds)
        if frame.calls > 1 and self.spec.batch is not None:
            counters.bisected += 1
        if self.memory is not None and frame.nbytes >= self.memory.least:
            self.memory.count_unplaced(frame)
        ran = len(frame.statuses) - frame.statuses.count(EXPIRED) - frame.statuses.count(RECALLED)
        if sent.cancelled:
            ran = 0  # its time says nothing of how long a batch runs
        back = sent.back == len(sent.items)
        self.queue.ran(frame.seconds, ran, now, sent.seat, back=back, calls=frame.calls)
        if self._abandonment is not None:
            self._abandonment.answered(frame.seconds)
        succeeded = Status.OK in frame.statuses
        if succeeded and self.health.item_succeeded():
            log.info("stage %r has recovered: an item succeeded after the pause", self.name)
        verdict = worker.health.batch_finished(
            succeeded=succeeded, failed=Status.FAILED in frame.statuses, now=now, on_trial=self.health.on_trial
        )
        self.hub.batch_answered(self, sent.items, frame)
        if verdict is not SERVE and worker.ready and not self.stopping and not self.inline:
            error = first_error(frame)
            if verdict is Verdict.EXAMINE:
                self._errors[worker.index] = error
                frame_id = next(self._frame_ids)
                worker.send(SentFrame(frame_id, [], worker), encode_control(Kind.EXAMINE, b"", frame_id), now)
            else:
                log.error("%s: every batch fails, the last with %s; the worker is %s", worker, error, self.fate)
                self._recycle(worker, error)
        self.hub.wake()

    def device_lost(self, worker: WorkerSlot, lost: Lost) -> None:  # see `SlotOwner`
        self.counters.devices_lost += 1
        self._well = lost.well
        error = short_reason(lost.problem)
        worker.reason = f"{DEVICE_LOST}: {error}"
        log.error(
            "%s: device lost: a batch failed, and an input that succeeded before now fails too, with %s; restarting "
            "the worker and retrying the failed items alone\n%s",
            worker,
            error,
            lost.problem.traceback,
        )

    def counted(self, worker: WorkerSlot, counts: Counts) -> None:  # noqa: ARG002  # see `SlotOwner`
        for each in counts.series:
            series = series_of(each.name, each.labels)
            try:
                fits = self.counters.series.add(series, each.n)
            except ConfigError as error:
                raise ProtocolError(f"invalid counter from the worker: {error}") from None
            if not fits and not self._told_dropped:
                self._told_dropped = True
                log.warning(
                    "stage %r: more than %d counter series: dropping %s and every further one; use labels with few "
                    "values, and no ids (logged once)",
                    self.name,
                    MOST_SERIES,
                    cut_line(shown(series), 500),
                )

    def examined(self, worker: WorkerSlot, problem: Problem | None) -> None:  # see `SlotOwner`
        verdict = worker.health.examination_finished(well=problem is None)
        if verdict is Verdict.RECYCLE and problem is not None and worker.ready and not self.stopping:
            error = short_reason(problem)
            log.error(
                "%s: batches fail, the last with %s, and the stage's first example fails too, with %s; restarting the "
                "worker\n%s",
                worker,
                self._errors[worker.index],
                error,
                problem.traceback,
            )
            self._recycle(worker, error)
        self.hub.wake()

    def _ask(self, worker: WorkerSlot) -> None:
        worker.check(next(self._frame_ids), self._now())

    def checked(self, worker: WorkerSlot, problem: Problem | None) -> None:  # see `SlotOwner`
        assert self._rounds is not None, "no worker of this stage is checked"
        self._rounds.ended(worker)
        if problem is not None:
            self._unwell(worker, short_reason(problem), problem.traceback)
        else:
            worker.health.checked(well=True, now=self._now())
            if worker.reason:
                log.info("%s: healthy again; the last error was: %s", worker, worker.reason)
                worker.reason = ""
        self.hub.wake()

    def _unwell(self, worker: WorkerSlot, error: str, traceback: str = "health() has not returned.") -> None:
        """Restart a worker whose `health` has failed with `error`, unless it was for that shortly before."""
        verdict = worker.health.checked(well=False, now=self._now())
        ends = verdict is Verdict.RECYCLE and worker.ready and not self.stopping and not self.inline
        if not ends and worker.reason != error:
            log.error("%s health check failed: %s; the worker keeps running for now\n%s", worker, error, traceback)
        worker.reason = error
        if ends:
            log.error("%s health check failed: %s; the worker is %s\n%s", worker, error, self.fate, traceback)
            self.counters.unhealthy_restarts += 1
            assert self._rounds is not None, "no health check is due"
            self._rounds.replaced(worker)
            worker.recycle(f"health check failed: {error}")

    def _recycle(self, worker: WorkerSlot, error: str) -> None:
        """Restart a worker that only fails, the last time with `error`; all of the stage, after a rest, if that is all.

        Several such ends without a good item between them say that no worker of the stage does any good.
        """
        self.counters.unhealthy_restarts += 1
        now = self._now()
        rests = self.health.recycled(error, now)  # first: it decides when a worker that ends is started again
        worker.recycle(f"every batch fails, the last with {error}")
        if rests:
            log.error(
                "stage %r has failed: every batch of every worker fails, the last with %s; next attempt in %g s",
                self.name,
                error,
                self.health.rest_ends - now,
            )
            for other in list(self.workers):
                if other.ready:
                    other.recycle("the stage is paused: every batch of every worker fails")
            self.hub.pool_changed(self, None)

    def abandoned(self, worker: WorkerSlot) -> None:  # noqa: ARG002  # see `SlotOwner`
        self.counters.orphan_kills += 1
        assert self._abandonment is not None
        self._abandonment.abandoned()

    def worker_ready(self, worker: WorkerSlot) -> None:  # see `SlotOwner`
        if not self.health.may_serve(self._now()):
            worker.recycle("the stage is paused")
            return
        if worker.reason.startswith(DEVICE_LOST):
            worker.reason = ""
        self.health.became_ready(worker.index)
        worker.health.became_ready(self._now())
        self._tell_ready(f"{worker} is ready (pid {worker.pid})")
        if self._rounds is not None:
            self._rounds.became_ready(worker)
        if self._unstartable:
            self._unstartable = False
            log.info("stage %r has recovered: a worker was started", self.name)
        self.hub.pool_changed(self, None)
        self.hub.wake()

    def _tell_ready(self, words: str) -> None:
        log.info("%s", words)

    def worker_detached(self, worker: WorkerSlot) -> None:
        """Only workers from outside leave, and none of them is here."""
        raise ProtocolError(f"{worker} is not external, and sent a DETACH frame")

    def worker_ended(self, worker: WorkerSlot, end: IncarnationEnd) -> None:
        """A worker is gone: its items are queued again or settled, and it is started again when that is due."""
        if self._rounds is not None:
            self._rounds.ended(worker)
        self._reclaim(worker, end.frames, innocent=end.innocent, hung=end.hung)
        if self.stopping:
            self.hub.pool_changed(self, None)
            return
        failure = None
        wait = self._memory_wait(worker, end.problem)
        ends_start = not wait and end.problem is not None and not self.health.ever_ready
        if wait and end.problem is not None:
            log.warning(
                "%s: %s: a process that ended recently may still hold memory; next attempt in %.1f s",
                start_words(worker, end.problem),
                short_reason(end.problem),
                wait,
            )
        elif end.was_ready:
            # What we ended ourselves was told with its reason before, and must not look as if the system had done it.
            log.log(logging.INFO if end.innocent else logging.ERROR, "%s ended: %s", worker, end.reason)
        else:
            failure = start_failure(worker, end)
            reason = str(failure).splitlines()[0]
            self.health.died_before_ready(worker.index, reason, self._now())
            if not ends_start:  # else `Engine.start` raises it
                kind = fault_kind(self.name, end.problem)
                self._faults.report_start(kind, start_words(worker, end.problem), reason, failure.traceback)
                # The first start is told by who waits for it, and a rest was told when it began.
                told = self._unstartable or not self.health.ever_ready or self.health.resting
                if self.failed and not told:
                    self._unstartable = True
                    log.error("stage %r has failed: no worker can be started", self.name)  # each start told why
        if not ends_start:
            self.counters.restarts += 1
            worker.restart_in(
                wait or self.health.delay(worker.health.restart, self.live_workers, self._now(), innocent=end.innocent)
            )
        self.hub.pool_changed(self, failure)
        self.hub.wake()

    def _memory_wait(self, worker: WorkerSlot, problem: Problem | None) -> float:
        """In how many seconds a worker is started again that found memory still taken, which is no failure; else 0."""
        if problem is not None and problem.out_of_memory and not self.inline:
            return worker.health.memory_wait(self._now())
        worker.health.made_room(self._now())
        return 0.0

    def _forget_batches(self, worker: WorkerSlot, now: float) -> None:
        for seat in worker.seats():
            self.queue.lost(seat, now)

    def _reclaim(self, worker: WorkerSlot, frames: list[SentFrame], *, innocent: bool, hung: SentFrame | None) -> None:
        self._forget_batches(worker, self._now())
        for sent in frames:
            sent.views = ()  # nobody reads there any more; items that wait for their turn still refer to the frame
            self.in_flight -= len(sent.items)
            self.back_in_flight -= sent.back
        retry = self.spec.options.retry and not self.inline
        answered = split_answers(frames[0], retry=retry) if frames and frames[0].answers is not None else None
        found = reclaim(frames, innocent=innocent or self.stopping, retry=retry, concurrency=self.concurrency)
        for item in found.suspects:
            item.suspect = True
        self.counters.retried += len(found.suspects)
        self._requeue([*found.returned, *found.suspects])
        # These come last: a caller that is told may cancel another request, and all its items must be queued by then.
        if found.recalled:
            self.hub.recalled(found.recalled)
        if answered is not None:
            self.hub.batch_answered(self, *answered)
        begun = frames[: self.concurrency]
        for sent in begun if found.lost else ():
            lost = [item for item in found.lost if item.frame is sent]
            if lost:
                self.hub.worker_lost(self, lost, hung=sent is hung, alone=len(begun) == 1 and len(sent.items) == 1)

    def _requeue(self, items: list[Item]) -> None:
        for item in items:
            item.state = OFFER[item.state]
        self.queue.retry([item for item in items if item.suspect])
        self.queue.put_back([item for item in items if not item.suspect])

    # -- life ---------------------------------------------------------------------------------------------------

    def use_slabs(self, slabs: StageSlabs, inline_reasons: dict[str, int]) -> None:
        """Have workers that start from now on read and write large payloads in shared memory.

        What travels inline all the same is counted in `inline_reasons`.
        """
        self.memory = StageMemory(slabs, inline_reasons)
        for worker, part in zip(self.workers, slabs.parts, strict=True):
            worker.part = part

    def forget_slabs(self) -> None:
        """Let go of them after the last worker has ended; one that was abandoned may still name what lies there."""
        if self.memory is not None and all(worker.pid is None for worker in self.workers):
            self.memory = None
            for worker in self.workers:
                worker.part = None

    def start(self, launch: Callable[[int], Launch], places: list[WorkerPlace]) -> None:
        """Start every worker; `launch` makes the launch order of worker i, which runs at place i."""
        self._launch, self._places = launch, places
        self._started_at = self._now()
        for worker in self.workers:
            worker.health.made_room(self._started_at)
            worker.start()

    def close(self) -> None:
        """Let every worker end in good order."""
        self._begin_stop()
        for worker in list(self.workers):  # a worker from outside that ends is none of them any more
            worker.close()

    def kill(self) -> None:
        """End every worker now."""
        self._begin_stop()
        for worker in list(self.workers):
            worker.kill()

    def abandon(self) -> None:
        """End every worker now, from any thread and without an event loop."""
        self.stopping = True
        self.stall.stop()
        for worker in list(self.workers):
            worker.abandon()

    def forget_timers(self) -> None:
        """Look no more after what the stage does: it ends."""
        self.stall.cancel()
        if self._rounds is not None:
            self._rounds.cancel()

    def _begin_stop(self) -> None:
        """Note the stop: a worker that ends is not started again, and the alarm sends nothing more."""
        self.stopping = True
        self._alarm.cancel()
        self.forget_timers()
        self._faults.flush()


def _worker_health(spec: StageSpec) -> WorkerHealth:
    if spec.concurrency:  # a restart does not cure what a waiting stage waits for
        return WorkerHealth(recycle_after=math.inf)
    return WorkerHealth(examined=bool(spec.examples), recycle_after=spec.options.unhealthy_after)


def _abandonment(spec: StageSpec) -> Abandonment:
    setting = spec.options.orphan_timeout
    return Abandonment(None if isinstance(setting, str) else setting, has_examples=bool(spec.examples))
