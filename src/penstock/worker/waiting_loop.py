"""Be the worker of a waiting stage: many frames in progress at once, in one event loop, answered in any order.

Contract
--------
* Two threads.  The main one makes the stage, and runs its plain functions.  The other runs the event loop for as long
  as the worker lives: it reads the channel, runs what is async, and writes the answers.
* At most `concurrency` frames are in progress; those behind begin in order.  A frame that was told to end keeps its
  place until its task has ended.
* Each frame is answered once and whole, those that were cancelled too.
* After the end of the stream tasks are cancelled, and have a second to end; then comes `teardown`.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.errors import ProtocolError
from penstock.hosting.guarded_log import guarded_logger
from penstock.transport.channel import WorkerEnd
from penstock.transport.framing import Frame, Kind, Status, encode_answers, encode_control, queue_frames
from penstock.transport.messages import Launch, pack
from penstock.worker.blocked_loop import LoopWatch
from penstock.worker.counting import Counting, count_in_thread, counting_here
from penstock.worker.current_call import CallOfContext, announce
from penstock.worker.device_memory import DeviceMemory
from penstock.worker.making import Made, expect_kind, formats_asked_for, make_runner, tell_failed, tell_shortages
from penstock.worker.plain_calls import PlainCalls
from penstock.worker.problems import USER_ERRORS
from penstock.worker.stage_life import tell_failed_teardown, tell_misfit, tell_troubles
from penstock.worker.stage_loop import live_in, wait_for_last
from penstock.worker.waiting_runner import WaitingRunner, WaitingWork
from penstock.worker.worker_slabs import WorkerSlabs

log = guarded_logger("penstock.worker")


def work_in_event_loop(
    end: WorkerEnd, launch: Launch, *, target: Any, on_loaded: Callable[[], None], on_ready: Callable[[], None]
) -> None:
    """Work as `launch` says until the coordinator ends the stream; the arguments are those of `loop.work`.

    Raises:
        OSError: the coordinator has gone.
        ProtocolError: it sent what it never sends.
    """
    try:
        made = make_runner(launch, target, on_loaded, CallOfContext(), WorkerSlabs(), examines=False)
        announce(made.runner.current, launch.service, launch.stage, launch.index)
        worker = _WaitingWorker(end, launch, made, on_loaded, on_ready, counting_here())
        thread = threading.Thread(target=worker.run_loop, name="penstock-loop", daemon=True)
        thread.start()
    except USER_ERRORS as error:
        tell_failed(end, error, on_examples=False)
        return
    worker.plain.serve()
    thread.join()
    if worker.error is not None:
        raise worker.error


class _WaitingWorker:
    """The worker, as its event loop has it."""

    def __init__(
        self,
        end: WorkerEnd,
        launch: Launch,
        made: Made,
        on_loaded: Callable[[], None],
        on_ready: Callable[[], None],
        counting: Counting | None,
    ) -> None:
        self._end = end
        self._launch = launch
        self._made = made
        self._on_loaded = on_loaded
        self._on_ready = on_ready
        self._counting = counting
        self.plain = PlainCalls()
        """The calls that the main thread serves, until the event loop has ended."""
        self.error: BaseException | None = None
        """Why the worker cannot go on."""
        self._most = launch.concurrency
        self._timeout = launch.options.timeout
        self._running: dict[int, WaitingWork] = {}
        """The frames in progress, by their ids; also those that were cancelled and have not ended."""
        self._behind: deque[Frame] = deque()
        """Frames that wait for a place, in order."""
        self._checks: set[asyncio.Task[None]] = set()
        self._unsent: list[Any] = []
        """Answers of this turn of the loop, which are written together."""
        self._memory = DeviceMemory()
        self._watch = LoopWatch(made.stage, launch.stage)

    def run_loop(self) -> None:
        """Be the thread of the event loop."""
        try:
            count_in_thread(self._counting)
            announce(self._made.runner.current, self._launch.service, self._launch.stage, self._launch.index)
            self._loop = asyncio.SelectorEventLoop(self._watch.selector)
            live_in(self._loop, self._live(), self._launch.stage)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the main thread raises it
            self.error = self.error or error
        finally:
            self._watch.end()
            self.plain.stop()

    # -- the life of the worker ---------------------------------------------------------------------------------

    async def _live(self) -> None:
        """From `setup` to `teardown`."""
        launch, made = self._launch, self._made
        self._runner = WaitingRunner(
            made.stage,
            made.runner,
            self.plain,
            name=launch.stage,
            batched=launch.batched,
            options=launch.options,
            now=time.monotonic,
        )
        if not await self._get_ready():
            return
        self._context = contextvars.copy_context()
        self._over = asyncio.Event()
        self._watch.begin(self._running)
        self._end.listen(self._loop, self._receive)
        while not self._over.is_set():
            try:
                await self._over.wait()
            except asyncio.CancelledError:  # a stage has cancelled all tasks of the loop: this one goes on
                continue
        await self._cancel_all()
        if self.error is None:
            try:
                await self._runner.tear_down()
            except USER_ERRORS as error:
                tell_failed_teardown(launch.stage, error)

    async def _get_ready(self) -> bool:
        """Set the stage up, run its examples and say READY; False where it failed, which was told."""
        made = self._made
        on_examples = False
        try:
            await self._runner.set_up(made.arguments)
            self._on_loaded()
            on_examples = True
            await self._warm_up()
        except USER_ERRORS as error:
            tell_failed(self._end, error, on_examples=on_examples)
            return False
        self._on_ready()
        tell_shortages(self._end, made.runner)
        self._end.send([*self._memory.notes(time.monotonic()), *encode_control(Kind.READY, b"")])
        return True

    async def _warm_up(self) -> None:
        launch, types = self._launch, self._made.types
        examples = list(self._made.stage.examples)
        tells = launch.index == 0  # the other workers would say the same
        if tells:
            tell_misfit(launch.stage, types.item, examples, batched=launch.batched)
        formats = formats_asked_for(launch, types.result)
        troubles = await self._runner.warm_up(examples, launch.max_size, formats, tells=tells)
        if tells:
            tell_troubles(launch.stage, troubles)

    async def _cancel_all(self) -> None:
        """Cancel what is in progress, and wait a second for its end."""
        self._behind.clear()
        for work in self._running.values():
            work.cancel()
        for check in self._checks:
            check.cancel()
        tasks = [work.task for work in self._running.values() if work.task is not None]
        await wait_for_last({*tasks, *self._checks})

    def _end_because_of(self, error: BaseException | None) -> None:
        self.error = self.error or error
        self._over.set()

    # -- frames -------------------------------------------------------------------------------------------------

    def _receive(self, frame: Frame | Exception | None) -> None:
        """Take over what the channel has for the worker."""
        try:
            if not isinstance(frame, Frame):
                self._end_because_of(frame)
            elif not self._over.is_set():
                self._obey(frame)
        except Exception as error:  # noqa: BLE001  # the loop would log it, and go on
            self._end_because_of(error)

    def _obey(self, frame: Frame) -> None:
        kind = frame.kind
        if kind is Kind.BATCH:
            if self._has_place():
                self._begin(frame)
            else:
                self._behind.append(frame)
        elif kind is Kind.CANCEL:
            self._cancel(frame.frame_id)
        elif kind is Kind.CHECK:
            self._begin_check(frame.frame_id)
        elif kind is Kind.RECALL:
            queue_frames(self._behind, [frame])
        else:
            expect_kind(frame, Kind.BATCH)

    def _begin(self, frame: Frame) -> None:
        if frame.frame_id in self._running:
            raise ProtocolError(f"frame {frame.frame_id} was received twice")
        work = self._runner.work_of(frame)
        self._running[frame.frame_id] = work
        if not self._watch.at_work.is_set():
            self._watch.at_work.set()
        self._start(work)
        if self._timeout is not None:
            work.timer = self._loop.call_later(self._timeout, work.time_out)

    def _start(self, work: WaitingWork) -> None:
        work.task = task = self._task(self._run(work))

        def ended(_: asyncio.Task[None]) -> None:
            if not (work.begun or self._over.is_set()):  # the stage has cancelled all tasks of the loop
                self._start(work)

        task.add_done_callback(ended)

    def _task(self, steps: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Not by the loop's `create_task`: a stage may have set a task factory, which may take no context.
        return asyncio.Task(steps, loop=self._loop, context=self._context.copy())

    async def _run(self, work: WaitingWork) -> None:
        """Run a frame and answer it: its task."""
        frame_id = work.batch.frame.frame_id
        try:
            answers = await self._runner.run(work)
        except BaseException as error:  # noqa: BLE001  # a mistake of ours: the worker cannot go on
            self._end_because_of(error)
            return
        if work.timer is not None:
            work.timer.cancel()
        del self._running[frame_id]
        self._answer(answers)
        self._begin_behind()

    def _has_place(self) -> bool:
        # A check takes one: the coordinator counts it among the frames that run.
        return len(self._running) + len(self._checks) < self._most

    def _begin_behind(self) -> None:
        """Begin frames that were behind, as long as there is a place."""
        while self._behind and self._has_place() and not self._over.is_set():
            self._begin(self._behind.popleft())

    def _cancel(self, frame_id: int) -> None:
        work = self._running.get(frame_id)
        if work is not None:
            if not work.cancelled:
                work.cancel()
            return
        for frame in self._behind:
            if frame.frame_id == frame_id:
                self._behind.remove(frame)
                n = len(frame.ids)
                self._answer(encode_answers(frame_id, 0.0, 0, frame.ids, [b""] * n, [Status.RECALLED] * n))
                return

    def _begin_check(self, frame_id: int) -> None:
        check = self._task(self._check(frame_id))
        self._checks.add(check)

        def ended(check: asyncio.Task[None]) -> None:
            self._checks.discard(check)
            if check.cancelled() and not self._over.is_set():  # before it had begun: see `_start`
                self._begin_check(frame_id)
            self._begin_behind()

        check.add_done_callback(ended)

    async def _check(self, frame_id: int) -> None:
        problem = await self._runner.check_health()
        self._send(encode_control(Kind.CHECKED, b"" if problem is None else pack(problem), frame_id))

    # -- answers ------------------------------------------------------------------------------------------------

    def _answer(self, answers: list[Any]) -> None:
        """Write an ANSWERS, together with those that become ready in this turn of the loop."""
        if self._unsent:
            self._unsent.append(answers)
        elif self._running:
            self._unsent.append(answers)
            self._loop.call_soon(self._flush)
        else:
            self._send(self._with_notes([answers]))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._send(self._with_notes(unsent))

    def _with_notes(self, unsent: list[list[Any]]) -> list[Any]:
        """The buffers of some ANSWERS, and what has to be told before them."""
        notes: list[Any] = []
        if "torch" in sys.modules:
            notes = list(self._memory.notes(time.monotonic()))
        if len(unsent) == 1:
            return [*notes, *unsent[0]]
        if all(len(answers) == 1 for answers in unsent):  # all are small
            return [b"".join([*notes, *[answers[0] for answers in unsent]])]
        return [*notes, *[buffer for answers in unsent for buffer in answers]]

    def _send(self, buffers: list[Any]) -> None:
        try:
            if self._made.runner.shortages:
                tell_shortages(self._end, self._made.runner)
            self._end.send(buffers)
        except OSError as error:
            self._end_because_of(error)
