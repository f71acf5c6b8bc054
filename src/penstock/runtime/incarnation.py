"""One life of a worker, from start to end: a process over a socket, or a thread over memory.

A worker's slot in its stage outlives its incarnations.  An incarnation reports frames as they come, and its end exactly
once, after the last frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from penstock.core.clock import Clock, Timer
from penstock.errors import ProtocolError
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.process import LAST_READ_SECONDS, STATUS_TAKEN, WorkerProcess, describe_exit
from penstock.transport.framing import Frame
from penstock.transport.memory import MemoryChannel, MemoryWorkerEnd
from penstock.transport.sockets import SocketChannel
from penstock.worker.loop import counting_over, work

log = guarded_logger("penstock.runtime")

LINGER_SECONDS = 10.0
"""A process that was killed and is still there after so long is told of."""

KILLED = describe_exit(-signal.SIGKILL)
STACK_LOOK_SECONDS = 0.02
STACK_LOOKS = 25
"""Most looks for the stacks of a worker, all within half a second."""
NOT_ASKED = "No stacks: the worker has removed the handler of that signal, which would kill it."


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """Who a worker is, and what its incarnation gets at its start."""

    service: str
    stage: str
    index: int
    target: Any
    """The stage's class or function, for a worker that lives in this process."""
    cores: frozenset[int]
    env: Mapping[str, str]
    """The whole environment of its process."""
    slabs: tuple[int, int] = (-1, -1)
    """The descriptors of the slabs of its inputs and of its results; -1 where there is none."""


class IncarnationOwner(Protocol):
    """What an incarnation reports to."""

    def frame_received(self, frame: Frame) -> None:
        """The worker sent a frame."""

    def broken(self, error: ProtocolError) -> None:
        """The worker sent what no worker sends: it is to be ended.  Only workers from outside are reported so."""

    def ended(self, reason: str) -> None:
        """The worker is gone, and nothing more will come."""


class Incarnation(Protocol):
    """A live worker."""

    @property
    def pid(self) -> int | None:
        """Its process id; None for a thread."""

    def send(self, buffers: list[Any]) -> None:
        """Write one frame."""

    def close(self) -> None:
        """Ask it to end in good order: it finishes what it holds and tears its stage down."""

    def kill(self, why: str | None) -> None:
        """End it now.  One that is no process of ours is told `why`; None tells it nothing, and it may serve others."""

    def strike(self) -> None:
        """End it as somebody else would; nothing happens to a thread."""

    def abandon(self) -> None:
        """End it now, from any thread and without an event loop; its end may go unreported."""

    async def stacks(self) -> str:
        """The stack of each of its threads, within a second.

        Where they cannot be had it is a sentence that says why, or ""; "" also where they are this process's own.
        """


StartIncarnation: TypeAlias = Callable[[IncarnationOwner, WorkerStart], Awaitable[Incarnation]]
"""Starts an incarnation that reports to its owner; raises OSError or ValueError if the system refuses."""


class ProcessIncarnation:
    """A worker process, which is ended together with its process group.

    It has ended when the process is gone and the channel has been read to its end.
    """

    def __init__(self, owner: IncarnationOwner, clock: Clock, name: str) -> None:
        self._owner = owner
        self._name = name
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._process: WorkerProcess | None = None
        self._channel: SocketChannel | None = None
        self._channel_error: Exception | None = None
        self._channel_open = False
        self._process_alive = False
        self._last_read: Timer | None = None
        """Ends the reading of a dead worker's channel."""
        self._lingers: Timer | None = None
        """Tells that the process is still there, long after it was killed."""
        self._stacks: asyncio.Future[str] | None = None
        """The stacks that the worker was asked for, and has not told yet."""
        self._heard_of = False
        """History: whether the worker has sent a frame."""
        self._closed_channel = False
        """Cause: the worker was killed because it had closed its channel while it lived."""
        self._ordered = False
        """History: whether somebody has ordered its end, and has told why."""
        self._closing = False
        self._started = False
        self._reported = False

    @classmethod
    async def start(cls, clock: Clock, owner: IncarnationOwner, start: WorkerStart) -> ProcessIncarnation:
        """Start a worker process; OSError or ValueError if the system refuses."""
        self = cls(owner, clock, f"worker {start.index} of stage {start.stage!r}")
        ours, theirs = socket.socketpair()
        try:
            self._process = WorkerProcess.start(
                (start.service, start.stage, start.index),
                child_socket=theirs,
                cores=start.cores,
                env=start.env,
                slabs=start.slabs,
                on_exit=self._process_ended,
            )
        except (OSError, ValueError):
            ours.close()
            raise
        finally:
            theirs.close()
        self._process_alive = self._channel_open = True
        ours.setblocking(False)
        try:
            self._channel = await SocketChannel.open(ours, self)
        except BaseException:  # also where this task is cancelled: the process would have nobody to talk to
            ours.close()
            self._process.abandon()
            raise
        self._started = True
        # If one of the two ends has come already, it is reported after the caller has got this object.
        self._loop.call_soon(self._look)
        return self

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def send(self, buffers: list[Any]) -> None:
        if self._channel is not None:
            self._channel.send(buffers)

    def close(self) -> None:
        self._closing = True
        if self._channel is not None:
            self._channel.close()

    def kill(self, why: str | None) -> None:  # noqa: ARG002  # it cannot hear it
        self._ordered = True
        self._watch_end()
        if self._process is None or self._process.kill() or not self._channel_open:
            return
        log.error(
            "%s: no permission to kill it (pid %d); closing its lifeline and its channel, which ends it",
            self._name,
            self._process.pid,
        )
        if self._channel is not None:
            self._channel.abort()

    def strike(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def abandon(self) -> None:
        if self._process is not None:
            self._process.abandon()

    async def stacks(self) -> str:
        if self._stacks is None:
            memory = self._process.stack_memory if self._process is not None else None
            if memory is None or not self._heard_of:
                return ""  # before its first frame, the signal would end the process
            assert self._process is not None
            if not memory.ask(self._process.pid):
                return NOT_ASKED
            self._stacks = self._loop.create_future()
            self._look_for_stacks("", STACK_LOOKS, asked_for_all=False)
        # Who asks meanwhile gets the same answer, and one who is cancelled leaves it to the others.
        return await asyncio.shield(self._stacks)

    def _look_for_stacks(self, before: str, looks: int, asked_for_all: bool) -> None:
        """Look for what was asked until two looks in a row find the same; after so many `looks` it is taken as it is.

        A worker writes its stacks within a millisecond if it has a core to run on.  The main thread comes first; when
        it is there, all threads are asked for.
        """
        stacks = self._stacks
        assert stacks is not None
        memory = self._process.stack_memory if self._process is not None else None
        # A worker that has ended since the last look has told what was read then.
        text = (memory.read() if memory is not None else "") or before
        if memory is not None and looks:
            whole = text != "" and text == before
            if whole and not asked_for_all:
                assert self._process is not None
                memory.ask_for_all(self._process.pid)
            if not (whole and asked_for_all):
                again = partial(self._look_for_stacks, text, looks - 1, asked_for_all or whole)
                self._clock.call_later(STACK_LOOK_SECONDS, again)
                return
        self._stacks = None
        if not stacks.done():
            stacks.set_result(text)

    # -- two ends, whichever comes first ------------------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        self._heard_of = True
        self._owner.frame_received(frame)

    def channel_ended(self, error: Exception | None) -> None:
        """Kill a worker whose channel has ended, unless it was asked to end: it can answer nothing more."""
        self._channel_open = False
        self._channel_error = error
        self._look()

    def _process_ended(self) -> None:
        self._process_alive = False
        self._look()

    def _look(self) -> None:
        """Act on which of the two has ended: the process, the channel, or both."""
        if not self._started or self._reported:
            return
        assert self._process is not None
        assert self._channel is not None
        if self._process_alive and self._channel_open:
            return
        if self._channel_open:
            # What the worker wrote before it died is still to be read; end-of-stream comes after it.
            if self._last_read is None:
                self._last_read = self._clock.call_later(LAST_READ_SECONDS, self._channel.abort)
        elif not self._process_alive:
            self._report()
        elif not self._closing:
            if not self._ordered and not self._process.exiting:
                self._closed_channel = True
            self._watch_end()
            self._process.kill()
            self._process.reap()

    def _watch_end(self) -> None:
        if self._lingers is None and self._process_alive:
            with contextlib.suppress(RuntimeError):  # in a fork of this process no event loop runs: nothing is ended
                self._lingers = self._clock.call_later(LINGER_SECONDS, self._tell_that_it_lingers)

    def _tell_that_it_lingers(self) -> None:
        log.warning(
            "%s: its process (pid %s) was killed %g s ago but has not exited: the kernel is still releasing its "
            "resources, such as device memory; the next worker starts when it has exited",
            self._name,
            self.pid,
            LINGER_SECONDS,
        )

    def _report(self) -> None:
        self._reported = True
        if self._lingers is not None:
            self._lingers.cancel()
            self._lingers = None
        if self._last_read is not None:
            self._last_read.cancel()
        assert self._process is not None
        reason = self._process.exit_reason
        # Both refer to this object: else a dead worker's read buffer would stay until the cycle collector ran.
        self._process = self._channel = None
        if isinstance(self._channel_error, ProtocolError):  # any other says nothing beside the end of the process
            reason = f"{self._channel_error} ({reason})"
        elif self._closed_channel and reason in (KILLED, STATUS_TAKEN):  # else it has ended by itself meanwhile
            reason = f"killed because it closed its channel ({reason})"
        self._owner.ended(reason)


class ThreadIncarnation:
    """A worker in a thread of this process: the same loop, the same frames."""

    def __init__(self, owner: IncarnationOwner, start: WorkerStart) -> None:
        self._owner = owner
        self._channel = MemoryChannel(self)
        name = f"penstock {start.service} {start.stage} {start.index}"
        given = self._channel.worker_end, start.target
        self._thread = threading.Thread(target=_work_in_thread, args=given, name=name, daemon=True)

    @classmethod
    async def start(cls, owner: IncarnationOwner, start: WorkerStart) -> ThreadIncarnation:
        """Start a worker thread."""
        self = cls(owner, start)
        self._thread.start()
        return self

    @property
    def pid(self) -> int | None:
        return None

    def send(self, buffers: list[Any]) -> None:
        self._channel.send(buffers)

    def close(self) -> None:
        self._channel.close()

    def kill(self, why: str | None) -> None:  # noqa: ARG002  # it cannot hear it
        """Stop listening to the thread.  Python cannot end it: it finishes its batch, and its answers are dropped."""
        self._channel.abort()

    def strike(self) -> None:
        """Nobody can kill a thread."""

    def abandon(self) -> None:
        """Let the thread end when its batch does."""
        self._channel.close()

    async def stacks(self) -> str:
        return ""

    def frame_received(self, frame: Frame) -> None:
        self._owner.frame_received(frame)

    def channel_ended(self, error: Exception | None) -> None:
        self._owner.ended(str(error) if error else "the thread ended")


def _work_in_thread(end: MemoryWorkerEnd, target: Any) -> None:
    error: Exception | None = None
    try:
        with counting_over(end, whole_process=False):
            work(end, target=target)
    except BrokenPipeError:
        return
    except BaseException as unexpected:  # noqa: BLE001  # whatever ends the thread, its end is reported
        error = RuntimeError(f"{type(unexpected).__name__}: {unexpected}")
    try:
        end.close(error)
    except BrokenPipeError:
        return
