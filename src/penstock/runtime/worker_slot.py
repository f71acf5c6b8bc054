"""A worker's place in its stage: the incarnation that fills it now, and the frames that incarnation holds."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.core.item import Item
from penstock.core.state import WorkerState
from penstock.core.supervision import WorkerHealth
from penstock.errors import ProtocolError
from penstock.runtime.incarnation import Incarnation, ProcessIncarnation, ThreadIncarnation
from penstock.transport.framing import VERSION, Frame, Kind, encode_control
from penstock.transport.messages import Hello, Problem, pack, unpack

if TYPE_CHECKING:
    from penstock.runtime.stage_driver import StageDriver

log = logging.getLogger("penstock.runtime")


class SentFrame:
    """A batch in a worker's hands."""

    __slots__ = ("frame_id", "items", "worker")

    def __init__(self, frame_id: int, items: list[Item], worker: Worker) -> None:
        self.frame_id = frame_id
        self.items = items
        self.worker = worker

    @property
    def running(self) -> bool:
        """Whether the worker is at work on it: it answers frames in order, so it is the oldest one."""
        frames = self.worker.frames
        return bool(frames) and frames[0] is self


class Worker:
    """One of a stage's workers, across its deaths and restarts."""

    def __init__(self, stage: StageDriver, index: int) -> None:
        self.stage = stage
        self.index = index
        self.frames: deque[SentFrame] = deque()
        self.ready = False
        self.restarts = 0
        self.health = WorkerHealth()
        self.tried = False
        """Whether its first start has come to READY or to an end."""
        self._incarnation: Incarnation | None = None
        self._starting: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._hang: asyncio.TimerHandle | None = None
        self._problem: Problem | None = None
        self._reached_ready = False
        self._innocent = False
        self._broken = False
        """Whether it said what no worker says: nothing it says after that is believed."""
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process id, or None where there is no process."""
        return self._incarnation.pid if self._incarnation is not None else None

    @property
    def state(self) -> WorkerState:
        """What it is doing."""
        if self.ready:
            return WorkerState.BUSY if self.frames else WorkerState.IDLE
        return WorkerState.STARTING if self._incarnation is not None else WorkerState.DOWN

    @property
    def alive(self) -> bool:
        """Whether there is something to be ended: a process, or one about to be."""
        return self._incarnation is not None or self._starting is not None

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start an incarnation."""
        if self._stopping:
            return  # abandoned while it waited for its restart
        self._restart = None
        self._problem = None
        self._innocent = self._broken = self._reached_ready = False
        self._starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        stage = self.stage
        label = (stage.service, stage.spec.name, self.index)
        try:
            if stage.inline:
                self._incarnation = ThreadIncarnation(self, label, stage.spec.target)
            else:
                cores, env = stage.place(self.index)
                self._incarnation = await ProcessIncarnation.start(self, label, cores, env)
        except Exception as error:  # noqa: BLE001  # the top of this task: what cannot be started has ended
            self._starting = None
            self.ended(f"the process could not be started: {error}")
            return
        self._starting = None
        if self._stopping:
            self._incarnation.kill()

    def close(self) -> None:
        """Ask the worker to end in good order, if it has anything to end; `ended` follows."""
        if not self.ready:
            self.kill()  # it may be loading its model for minutes yet
            return
        self._stopping = True
        self._cancel_timers()
        if self._incarnation is not None:
            self._incarnation.close()

    def kill(self) -> None:
        """End the worker now; `ended` follows."""
        self._stopping = True
        self._cancel_timers()
        if self._incarnation is not None:
            self._incarnation.kill()

    def abandon(self) -> None:
        """End the worker without an event loop."""
        self._stopping = True
        if self._incarnation is not None:
            self._incarnation.abandon()

    def recycle(self) -> None:
        """End a worker that only fails, and start another in its place; nothing it holds is suspect."""
        self._innocent = True
        self._end_incarnation()

    def _end_incarnation(self) -> None:
        self.ready = False
        if self._incarnation is not None:
            self._incarnation.kill()

    def restart_in(self, delay: float) -> None:
        """Start again after `delay` seconds."""
        self.restarts += 1
        self._restart = asyncio.get_running_loop().call_later(delay, self.start)

    def _cancel_timers(self) -> None:
        for timer in (self._restart, self._hang):
            if timer is not None:
                timer.cancel()
        self._restart = self._hang = None

    # -- frames -------------------------------------------------------------------------------------------------

    def send(self, sent: SentFrame, buffers: list[Any]) -> None:
        """Give the worker a batch."""
        assert self._incarnation is not None
        self.frames.append(sent)
        if len(self.frames) == 1:
            self._watch()
        self._incarnation.send(buffers)

    def frame_received(self, frame: Frame) -> None:
        """From the incarnation."""
        if self._broken:
            return
        try:
            if frame.kind is Kind.ANSWERS:
                self._answers(frame)
            else:
                self._handshake(frame)
        except ProtocolError as error:
            log.error("%s: %s; the worker is killed", self, error)  # noqa: TRY400  # our traceback would tell nothing
            self._broken = True
            self._end_incarnation()

    def _answers(self, frame: Frame) -> None:
        sent = self.frames[0] if self.frames else None
        if sent is None or sent.frame_id != frame.frame_id or len(frame.ids) != len(sent.items):
            raise ProtocolError("the worker answered a batch it does not hold")
        self.frames.popleft()
        self._watch()
        self.stage.answered(self, sent, frame)

    def _handshake(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            hello = unpack(frame.payloads[0], Hello)
            if hello.version != VERSION:
                raise ProtocolError(f"the worker speaks version {hello.version}, the coordinator {VERSION}")
            assert self._incarnation is not None or self._starting is not None
            # The first frame can come before start() has returned the incarnation.
            asyncio.get_running_loop().call_soon(self._launch)
        elif frame.kind is Kind.READY:
            self.ready = self.tried = self._reached_ready = True
            self.stage.worker_ready(self)
        elif frame.kind is Kind.FAILED:
            self._problem = unpack(frame.payloads[0], Problem)
        else:
            raise ProtocolError(f"the worker sent a {frame.kind.name} frame")

    def _launch(self) -> None:
        if self._incarnation is not None:
            self._incarnation.send(encode_control(Kind.LAUNCH, pack(self.stage.launch(self.index))))

    def ended(self, reason: str) -> None:
        """From the incarnation: it is gone."""
        was_ready, self.ready, self.tried = self._reached_ready, False, True
        self._incarnation = None
        self._cancel_timers()
        frames, self.frames = list(self.frames), deque()
        self.stage.worker_ended(
            self, reason, frames=frames, was_ready=was_ready, innocent=self._innocent, problem=self._problem
        )

    # -- hang ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        timeout = self.stage.spec.options.timeout
        if timeout is None:
            return
        if self._hang is not None:
            self._hang.cancel()
            self._hang = None
        if self.frames:
            self._hang = asyncio.get_running_loop().call_later(timeout, self._hung)

    def _hung(self) -> None:
        self._hang = None
        log.error("%s: a batch ran longer than %g s; the worker is killed", self, self.stage.spec.options.timeout)
        if self._incarnation is not None:
            self._incarnation.kill()

    def __str__(self) -> str:
        return f"worker {self.index} of stage {self.stage.spec.name!r}"
