"""A worker's slot in its stage: the incarnation that fills it now, and the frames that incarnation holds.

A slot outlives its incarnations.  What it does is a state, and what may happen to it is a table of moves; both are in
`runtime/slot_states.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

from penstock.core.abandonment import Abandonment, warning_after
from penstock.core.clock import FOREVER_SECONDS, Clock, Timer
from penstock.core.dispatch import FrameHolder, SentFrame
from penstock.core.moves import Move
from penstock.core.payload import Payload, handle_of, payload_size
from penstock.core.state import WorkerState
from penstock.core.supervision import WorkerHealth
from penstock.errors import ProtocolError
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.incarnation import Incarnation, StartIncarnation, WorkerStart
from penstock.runtime.slabs import ResultPart
from penstock.runtime.slot_states import (
    ABANDON,
    BECOME_READY,
    CLOSE,
    END,
    FILL,
    LEAVE,
    REPLACE,
    START,
    STOP,
    SlotState,
)
from penstock.transport.framing import (
    SLAB_VERSION,
    Frame,
    Kind,
    Status,
    encode_control,
    encode_recall,
    read_device_memory,
    read_shortage,
)
from penstock.transport.messages import Counts, Hello, Kept, Lost, Problem, unpack
from penstock.worker.problems import describe_error

log = guarded_logger("penstock.runtime")

STOOD_STILL_SECONDS = 0.1
"""A timer that rings later than this tells that the event loop stood still, and read no answer meanwhile."""
LEAVE_SECONDS: Final = 10.0
"""How long a worker that leaves, and has answered all its batches, may take to close its connection."""

NOT_BELIEVED: Final = "protocol violation"

READY: Final = SlotState.READY  # asked for each batch: a constant costs nothing once compiled
OK: Final = int(Status.OK)
AT_WORK: Final = (SlotState.READY, SlotState.LEAVING)


class SlotOwner(Protocol):
    """The stage that a slot belongs to: it gives the orders, and is told what became of them."""

    ending: str
    """What is done to a worker that has to end, as the log says it."""
    recalls: bool
    """Whether its workers can be told to leave out what they have not begun."""
    concurrency: int
    """The batches that a worker runs at once."""
    window: int
    """The most batches that a worker holds."""

    @property
    def in_turn(self) -> bool:
        """Whether the batches in progress wait for each other: `predict` is plain, and takes one after the other."""

    def start_of(self, index: int) -> WorkerStart:
        """Where and how an incarnation of worker `index` starts."""

    def launch_of(self, index: int) -> bytes:
        """What worker `index` is told to be: the payload of its LAUNCH."""

    def launch_in(self) -> float:
        """In how many seconds a worker that is there may be told what to be."""

    def disbelieved(self, worker: WorkerSlot, why: str) -> None:
        """The worker sent what no worker sends, and is being ended."""

    def check_answers(self, sent: SentFrame, frame: Frame) -> None:
        """Raise ProtocolError where `frame` is no answer to `sent`, as far as a worker of this stage is not trusted."""

    def answered(self, worker: WorkerSlot, sent: SentFrame, frame: Frame, now: float) -> None:
        """The worker answered the batch `sent` with `frame` at `now`."""

    def examined(self, worker: WorkerSlot, problem: Problem | None) -> None:
        """The worker ran the example; `problem` says why that failed."""

    def checked(self, worker: WorkerSlot, problem: Problem | None) -> None:
        """The worker ran `health`; `problem` says what that raised."""

    def abandoned(self, worker: WorkerSlot) -> None:
        """The worker is being killed, because it went on with a batch that nobody waits for."""

    def ran_out_of_memory(self, worker: WorkerSlot, failed: int, ran: int) -> None:
        """The worker had no memory for `failed` items at once, and for `ran`."""

    def device_lost(self, worker: WorkerSlot, lost: Lost) -> None:
        """The worker's device is lost, and the worker ends: what it answers next holds only where nobody else can."""

    def keeps_inputs(self, worker: WorkerSlot) -> None:
        """The stage keeps views of inputs beyond the answers to them."""

    def counted(self, worker: WorkerSlot, counts: Counts) -> None:
        """The stage has counted so much more in the worker.

        Raises:
            ProtocolError: no worker counts such a thing.
        """

    def worker_ready(self, worker: WorkerSlot) -> None:
        """The worker reached READY."""

    def worker_detached(self, worker: WorkerSlot) -> None:
        """The worker wants to leave, and will be sent nothing more.

        Raises:
            ProtocolError: no worker of this stage leaves.
        """

    def worker_ended(self, worker: WorkerSlot, end: IncarnationEnd) -> None:
        """The worker's incarnation is gone."""


class IncarnationEnd:
    """How an incarnation ended, and what it held."""

    __slots__ = ("detached", "disbelieved", "frames", "hung", "innocent", "problem", "reason", "was_ready")

    def __init__(
        self,
        reason: str,
        frames: list[SentFrame],
        was_ready: bool,
        innocent: bool,
        problem: Problem | None,
        hung: SentFrame | None = None,
        detached: bool = False,
        disbelieved: bool = False,
    ) -> None:
        self.reason = reason
        """In words, as the system tells it."""
        self.frames = frames
        """The batches it held, oldest first."""
        self.was_ready = was_ready
        self.innocent = innocent
        """Whether it was recycled: then nothing it held is suspect."""
        self.problem = problem
        """Why it could not be set up, where it said so."""
        self.hung = hung
        """The one of `frames` that ran too long, where it was killed for that."""
        self.detached = detached
        """Whether it had said that it wants to leave."""
        self.disbelieved = disbelieved
        """Whether it was ended for what it sent."""


class WorkerSlot(FrameHolder):
    """One of a stage's workers, across its deaths and restarts."""

    def __init__(
        self,
        owner: SlotOwner,
        stage: str,
        index: int,
        *,
        timeout: float | None,
        abandonment: Abandonment | None = None,
        health: WorkerHealth,
        clock: Clock,
        start_incarnation: StartIncarnation,
    ) -> None:
        super().__init__(owner.concurrency)
        self.stage = stage
        """The stage's name."""
        self.index = index
        self.restarts = 0
        self.language = ""
        """What a worker from outside is written in, by its own words; "" for one of ours."""
        self.has_health = True
        """Whether it can be asked to run its stage's `health`, where that has one."""
        self.reason = ""
        """What the last run of the stage's `health` raised here, in a line; "" where it went well or there is none."""
        self.device_memory: int | None = None
        """The bytes that torch has reserved on its devices, as it has told last; None where it has told nothing."""
        self.health = health
        self.tried = False
        """History: whether its first start has come to READY or to an end."""
        self.part: ResultPart | None = None
        """Where its results are read, as far as they are not sent."""
        self.kept: dict[int, Payload] = {}
        """The inputs that its stage keeps views of, by their serial numbers."""
        self._owner = owner
        self._timeout = timeout
        self._abandonment = abandonment
        """How long it may go on with a batch that nobody waits for; None: for ever, without a word."""
        self._clock = clock
        self._now = clock.now
        self._start_incarnation = start_incarnation
        self._state = SlotState.EMPTY
        self._incarnation: Incarnation | None = None
        self._starting: asyncio.Task[None] | None = None
        """The task of the start; kept, because the event loop keeps only a weak reference."""
        self._restart: Timer | None = None
        """The next start, or the order to an incarnation that is there and has to wait for it."""
        self._leave: Timer | None = None
        """When a worker that leaves has to be gone."""
        self._hangs: dict[int, Timer] = {}
        """When the frames that run have run too long, by their ids."""
        self._deserted: dict[int, Timer] = {}
        """The next thing to do about frames that run and that nobody waits for, by their ids."""
        self._asking: asyncio.Task[None] | None = None
        """The task that asks the worker for its stacks; kept, because the event loop keeps only a weak reference."""
        self.running_since = 0.0
        """When the oldest frame that it holds became the oldest one."""
        self._begin_life()

    def _begin_life(self) -> None:
        """Forget what the last incarnation did."""
        self._problem: Problem | None = None
        """History: why this incarnation could not be set up."""
        self._greeted = False
        """History: whether this incarnation has said HELLO."""
        self._was_ready = False
        """History: whether this incarnation reached READY."""
        self._started_at = self._now()
        self._start_seconds = 0.0
        """History: how long this incarnation took to reach READY."""
        self._has_answered = False
        """History: whether this incarnation has answered a batch."""
        self._innocent = False
        """Cause: this incarnation is ended because it only fails, or goes on with what nobody waits for."""
        self._hung_frame: SentFrame | None = None
        """Cause: this incarnation is ended because this frame runs too long."""
        self._check: SentFrame | None = None
        """The frame for which it runs `health`, which has a time limit of its own."""
        self._disbelieved = False
        """Cause: this incarnation sent what no worker sends; whatever it sends after that is ignored."""
        self._lost = False
        """Cause: the device of this incarnation is lost."""
        self._lost_before = False
        """Cause: it was lost before the batch that the worker was to begin."""
        self._detached = False
        """History: whether this incarnation has said that it wants to leave."""

    def _move(self, move: Move[SlotState]) -> None:
        self._state = move[self._state]
        self.ready = self._state is READY  # kept beside the state, because each batch asks for it

    @property
    def pid(self) -> int | None:
        """The process id, or None where there is no process."""
        return self._incarnation.pid if self._incarnation is not None else None

    @property
    def state(self) -> WorkerState:
        """What it is doing, as `/health` and the metrics tell it."""
        if self._incarnation is None:
            return WorkerState.DOWN
        if not self._was_ready or self._state is SlotState.REPLACING:
            return WorkerState.STARTING
        if self._state is SlotState.LEAVING:
            return WorkerState.LEAVING
        return WorkerState.BUSY if self.frames else WorkerState.IDLE

    @property
    def idle_since(self) -> float | None:
        """Since when it has had nothing to do; None while it has something, or is not ready."""
        return None if self.frames or not self.ready else self.running_since

    @property
    def leaving(self) -> bool:
        """Whether it answers what it holds, and takes nothing more."""
        return self._state is SlotState.LEAVING

    def strike(self) -> None:
        """End the worker as somebody else would: what it does now is suspect, as after any death."""
        if self._incarnation is not None:
            self._incarnation.strike()

    @property
    def alive(self) -> bool:
        """Whether there is an incarnation to be ended, or one is being started."""
        return self._state not in (SlotState.EMPTY, SlotState.STOPPED)

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start an incarnation, unless the slot was stopped while it waited for its restart."""
        if self._state is SlotState.STOPPED:
            return
        self._move(START)
        self._restart = None
        self._begin_life()
        self._starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        try:
            incarnation = await self._start_incarnation(self, self._owner.start_of(self.index))
        except Exception as error:  # noqa: BLE001  # the top of this task: what cannot be started has ended
            self._starting = None
            self.ended(f"failed to start the process: {error}")
            return
        self._starting = None
        self._incarnation = incarnation
        self._move(FILL)
        if self._state is SlotState.STOPPING:
            incarnation.kill(None)
        elif self._disbelieved:
            self._end_incarnation(NOT_BELIEVED)
        elif self._greeted:
            self._launch_when_due()

    def close(self) -> None:
        """End the worker for good: in good order if it is ready, else now.  `worker_ended` follows if it is `alive`."""
        if self._state not in AT_WORK:
            self.kill()  # it may still load its model for minutes
            return
        self._move(CLOSE)
        self._cancel_timers()
        assert self._incarnation is not None
        self._incarnation.close()

    def kill(self) -> None:
        """End the worker now, for good; `worker_ended` follows if it is `alive`."""
        self._move(STOP)
        self._cancel_timers()
        if self._incarnation is not None:
            self._incarnation.kill(None)

    def abandon(self) -> None:
        """End the worker now, for good, from any thread and without an event loop."""
        self._move(ABANDON)
        if self._incarnation is not None:
            self._incarnation.abandon()

    async def stacks(self) -> str:
        """The stack of each thread of the worker, or "" where they cannot be had."""
        return await self._incarnation.stacks() if self._incarnation is not None else ""

    def recycle(self, why: str) -> None:
        """End a worker, because of `why`, and start another one; nothing it holds is suspect."""
        self._innocent = True
        self._stop_watching()
        self._end_incarnation(why)

    def _end_incarnation(self, why: str) -> None:
        self._move(REPLACE)
        assert self._incarnation is not None
        self._incarnation.kill(why)

    def restart_in(self, delay: float) -> None:
        """Start again after `delay` seconds."""
        self.restarts += 1
        self._restart = self._clock.call_later(delay, self.start)

    def _cancel_timers(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self._stop_watching()

    # -- frames -------------------------------------------------------------------------------------------------

    def send(self, sent: SentFrame, buffers: list[Any], now: float) -> None:
        """Give the worker a batch, or an examination, at `now`."""
        assert self._incarnation is not None
        self.frames.append(sent)
        if len(self.frames) == 1:
            self.running_since = now
            self._watch()
        self._incarnation.send(buffers)

    def tell(self, note: bytes) -> None:
        """Send the worker, which is ready, something that it does not answer."""
        assert self._incarnation is not None
        self._incarnation.send([note])

    def recall(self, sent: SentFrame, places: Sequence[int]) -> None:  # see `FrameHolder`
        if self._owner.recalls and self._incarnation is not None:
            self._incarnation.send([encode_recall(sent.frame_id, places)])

    def check(self, frame_id: int, now: float) -> None:
        """Have the worker, which is idle, run `health`."""
        self._check = SentFrame(frame_id, [], self)
        self.send(self._check, encode_control(Kind.CHECK, b"", frame_id), now)

    def frame_received(self, frame: Frame) -> None:
        """The incarnation sent a frame, perhaps before its start has returned."""
        if self._disbelieved:
            return
        try:
            if frame.kind is Kind.ANSWERS:
                self._answers(frame)
            elif frame.kind is Kind.EXAMINED:
                self._examined(frame)
            elif frame.kind is Kind.CHECKED:
                self._checked(frame)
            elif frame.kind is Kind.LOST and self.frames:
                lost = unpack(frame.payloads[0], Lost)
                self._lost = self._state in AT_WORK  # else it is being ended, and its answers are all there will be
                self._lost_before = not lost.begun
                self._owner.device_lost(self, lost)
            elif frame.kind is Kind.SHORTAGE:
                self._owner.ran_out_of_memory(self, *read_shortage(frame))
            elif frame.kind is Kind.DEVICE_MEMORY:
                self.device_memory = read_device_memory(frame)
            elif frame.kind is Kind.COUNTS and self._greeted:
                self._owner.counted(self, unpack(frame.payloads[0], Counts))
            elif frame.kind is Kind.KEPT:
                self._note_kept(unpack(frame.payloads[0], Kept))
            else:
                self._handshake(frame)
        except ProtocolError as error:
            self.broken(error)

    def broken(self, error: ProtocolError) -> None:
        """The worker sent what no worker sends."""
        self._owner.disbelieved(self, str(error))
        self._disbelieved = True
        if self._incarnation is not None:
            self._end_incarnation(str(error))

    def _answers(self, frame: Frame) -> None:
        sent = self._held(frame.frame_id)
        n = len(frame.ids)
        if sent is None or n == 0 or n != len(sent.items):
            raise ProtocolError("the worker sent results of a batch that it does not have")
        self._owner.check_answers(sent, frame)
        if frame.handles:
            self._read_results(frame)
        if self._lost and self._state in AT_WORK:
            sent.answers = frame
            if self._lost_before:
                for item in sent.items:
                    item.suspect = False  # its other try was not begun
            self._end_incarnation("its device is lost")
            return
        now = self._finish(sent)
        self._has_answered = True
        self._owner.answered(self, sent, frame, now)

    def _read_results(self, frame: Frame) -> None:
        """Put views in place of the results that the worker names."""
        for place, handle in frame.handles:
            if self.part is None or frame.statuses[place] != OK:
                raise ProtocolError("the worker sent a reference to memory where bytes are required")
            frame.payloads[place] = self.part.read(handle)

    def _note_kept(self, note: Kept) -> None:
        """The stage keeps inputs of the batch that is answered next, or keeps others no more."""
        views = self.frames[0].views if self.frames else []
        held = {handle.serial: view for view in views if (handle := handle_of(view)) is not None}
        for serial in note.kept:
            view = held.get(serial)
            if view is None:
                raise ProtocolError(f"the worker reports keeping input {serial}, which it does not have")
            self.kept[serial] = view
        for serial in note.ended:
            if self.kept.pop(serial, None) is None:
                raise ProtocolError(f"the worker released input {serial}, which it did not keep")
        if note.kept:
            self._owner.keeps_inputs(self)

    @property
    def kept_bytes(self) -> int:
        """The bytes of the inputs that its stage keeps views of."""
        return sum(map(payload_size, self.kept.values())) if self.kept else 0

    def _examined(self, frame: Frame) -> None:
        sent = self._held(frame.frame_id)
        if sent is None or sent.items:
            raise ProtocolError("the worker sent an unexpected EXAMINED frame")
        problem = unpack(frame.payloads[0], Problem) if len(frame.payloads[0]) else None
        self._finish(sent)
        self._owner.examined(self, problem)

    def _checked(self, frame: Frame) -> None:
        sent = self._check
        if sent is None or not sent.running or sent.frame_id != frame.frame_id:
            raise ProtocolError("the worker sent an unexpected CHECKED frame")
        problem = unpack(frame.payloads[0], Problem) if len(frame.payloads[0]) else None
        self._check = None
        self._finish(sent)
        self._owner.checked(self, problem)

    def _held(self, frame_id: int) -> SentFrame | None:
        """The frame that may be answered with this id: the oldest one."""
        sent = self.frames[0] if self.frames else None
        return sent if sent is not None and sent.frame_id == frame_id else None

    def _finish(self, sent: SentFrame) -> float:
        """Forget `sent`, the oldest frame, which was answered, and watch the next one; returns the time."""
        self.frames.popleft()
        sent.answered = True
        now = self.running_since = self._now()
        self._watch()
        return now

    def _handshake(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO and not self._greeted:
            hello = unpack(frame.payloads[0], Hello)
            if hello.version != SLAB_VERSION:
                raise ProtocolError(
                    f"the worker uses protocol version {hello.version}, the coordinator version {SLAB_VERSION}"
                )
            self._greeted = True
            if self._incarnation is not None:
                self._launch_when_due()
        elif frame.kind is Kind.READY and self._greeted and not self._was_ready:
            self.tried = self._was_ready = True
            now = self.running_since = self._now()
            self._start_seconds = now - self._started_at
            if self._state is SlotState.SETTING_UP:  # else it is being ended
                self._move(BECOME_READY)
                self._owner.worker_ready(self)
        elif frame.kind is Kind.FAILED and not self._was_ready:
            self._problem = unpack(frame.payloads[0], Problem)
        elif frame.kind is Kind.DETACH and self._was_ready and not self._detached:
            self._detach()
        else:
            raise ProtocolError(f"the worker sent an unexpected {frame.kind.name} frame")

    def _detach(self) -> None:
        """The worker wants to leave: it answers what it holds, and is sent nothing more."""
        self._detached = True
        if self._state is READY:  # else it is being ended
            self._owner.worker_detached(self)
            self._move(LEAVE)
            assert self._incarnation is not None
            self._incarnation.close()
            if self._runs_no_batch:
                self._watch()

    def _launch_when_due(self) -> None:
        delay = self._owner.launch_in()
        if delay > 0:
            self._restart = self._clock.call_later(delay, self._launch)
        else:
            self._launch()

    def _launch(self) -> None:
        self._restart = None
        if self._state is not SlotState.SETTING_UP:
            return  # it was ended while it waited for its turn
        assert self._incarnation is not None
        try:
            launch = self._owner.launch_of(self.index)
        except Exception as error:  # noqa: BLE001  # of a callback of the event loop: nobody above would end the worker
            problem = describe_error(error)
            message = f"cannot send the launch order to the worker: {problem.message}"
            self._problem = Problem(problem.type_name, problem.mro, message, traceback=problem.traceback)
            self._end_incarnation(message)
            return
        self._incarnation.send(encode_control(Kind.LAUNCH, launch))

    def ended(self, reason: str) -> None:
        """The incarnation is gone."""
        self._move(END)
        self.tried = True
        self._incarnation = None
        self._cancel_timers()
        hung = self._hung_frame if self._hung_frame in self.frames else None
        end = IncarnationEnd(
            f"its device was lost ({reason})" if self._lost else reason,
            list(self.frames),
            self._was_ready,
            self._innocent,
            self._problem,
            hung,
            self._detached,
            self._disbelieved,
        )
        self.frames = deque()
        self.kept = {}
        self.device_memory = None
        self._owner.worker_ended(self, end)

    # -- what runs too long -------------------------------------------------------------------------------------

    @property
    def busy_seconds(self) -> float | None:
        """How long it has been at work on its oldest frame, or None while it has none."""
        return self._now() - self.running_since if self.frames else None

    def _watch(self) -> None:
        """Start the timers anew for the frame that the worker runs now."""
        self._stop_watching()
        if self._runs_no_batch:
            if self._state is SlotState.LEAVING:
                self._leave = self._clock.call_later(LEAVE_SECONDS, self._stays)
            return
        self._watch_batch(self.frames[0], self.running_since)

    def _watch_batch(self, sent: SentFrame, began: float) -> None:
        """Start the timers of `sent`, which has run since `began`."""
        limit = self._time_limit
        if limit is not None:
            self._hangs[sent.frame_id] = self._clock.call_later(limit, partial(self._hung, sent, began, limit))
        if sent.unsettled == 0:
            self.deserted(sent)

    @property
    def _runs_no_batch(self) -> bool:
        """Whether it runs no batch: it has nothing to do, or runs `health`, whose time is not watched here."""
        return not self.frames or self.frames[0] is self._check

    def _stays(self) -> None:
        """A worker that leaves has not gone: as long as it is there, its stage waits for it and it has a number."""
        self._leave = None
        if self._state is SlotState.LEAVING:  # else it was abandoned, perhaps on another thread
            self._end_incarnation(f"it did not close its connection within {LEAVE_SECONDS:g} s after detaching")

    def _stop_watching(self) -> None:
        if self._leave is not None:
            self._leave.cancel()
            self._leave = None
        if self._hangs:
            for timer in self._hangs.values():
                timer.cancel()
            self._hangs.clear()
        if self._deserted:
            for timer in self._deserted.values():
                timer.cancel()
            self._deserted.clear()

    def deserted(self, sent: SentFrame) -> None:
        """Tell after a while of `sent`, which runs and has no caller left, and kill the worker after a longer one."""
        if self._abandonment is None or self._state not in AT_WORK or sent.frame_id in self._deserted:
            return
        limit = self._abandonment.limit(start_seconds=self._start_seconds, has_answered=self._has_answered)
        since = self._now()
        delay = warning_after(limit)
        self._deserted[sent.frame_id] = self._clock.call_later(delay, partial(self._warn, sent, since, limit))

    def _warn(self, frame: SentFrame, since: float, limit: float) -> None:
        """Tell of a deserted frame, and wait until its time is up."""
        self._deserted.pop(frame.frame_id, None)
        left = since + limit - self._now()
        if left <= FOREVER_SECONDS:
            self._deserted[frame.frame_id] = self._clock.call_later(left, partial(self._ask, frame, since, True))
        if self._may_warn():
            self._ask(frame, since, False)

    def _may_warn(self) -> bool:
        """Whether the log is to tell of one more deserted frame."""
        return True

    def _ask(self, frame: SentFrame, since: float, final: bool) -> None:
        """Ask the worker for its stacks, to tell them; `final` says that the time of the frame is up."""
        if final:
            self._deserted.pop(frame.frame_id, None)
        self._asking = asyncio.get_running_loop().create_task(self._tell(frame, since, final))

    async def _tell(self, frame: SentFrame, since: float, final: bool) -> None:
        stacks = await self.stacks()
        if not frame.running or self._state not in AT_WORK:
            return  # it was answered meanwhile, or the worker is being ended
        log.error(
            "%s: for %.1f s it has been running %s; %s\n%s",
            self,
            self._now() - since,
            "an abandoned batch" if frame.items else "an example",
            f"the worker is {self._owner.ending}" if final else "it keeps running for now",
            stacks or "The worker did not report its stacks.",
        )
        if final:
            self._owner.abandoned(self)
            self.recycle("it keeps running an abandoned batch")

    @property
    def _time_limit(self) -> float | None:
        """How long a batch may run until the worker is killed; None: for ever."""
        return self._timeout

    def _hung(self, sent: SentFrame, began: float, limit: float) -> None:
        """The time of `sent` is up.

        Where this process stood still (it was stopped, or some callback blocked the event loop), the answer may have
        come meanwhile.  Such a time does not count, once for each frame.
        """
        late = self._now() - began - limit
        if late > STOOD_STILL_SECONDS:
            self._hangs[sent.frame_id] = self._clock.call_later(min(late, limit), partial(self._kill_hung, sent))
        else:
            self._kill_hung(sent)

    def _kill_hung(self, sent: SentFrame) -> None:
        self._hangs.pop(sent.frame_id, None)
        if self._state is SlotState.STOPPED:  # an `abandon`, perhaps on another thread, could not cancel the timer
            return
        self._stop_watching()  # others that it runs may be as late, and one is enough to end it
        words = self._overdue_words()
        log.error("%s: %s; the worker is %s", self, words, self._owner.ending)
        self._hung_frame = sent
        self._end_incarnation(words)

    def _overdue_words(self) -> str:
        """Why the worker of a batch that ran too long is ended."""
        return f"a batch ran longer than {self._timeout:g} s"

    # -- who takes the next batch ---------------------------------------------------------------------------------

    def free_seat(self) -> int:
        """The number under which the queue is to know who runs the next batch of this worker."""
        return self.index

    def seats(self) -> range:
        """All such numbers of this worker."""
        return range(self.index, self.index + 1)

    def __str__(self) -> str:
        return f"worker {self.index} of stage {self.stage!r}"
