"""The event loop of a waiting stage in a worker from outside, which takes one frame at a time.

The worker's own thread reads the frames and answers them, as that of a plain stage does.  For each it has the loop run
what is async, and runs the plain functions of the stage meanwhile.  The loop goes on between two frames, and between
two servers: what `setup` has started there lives as long as the worker.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from penstock.codec.formats import Codec
from penstock.config import StageOptions
from penstock.hosting.guarded_log import guarded_logger
from penstock.transport.framing import Frame
from penstock.transport.messages import Problem
from penstock.worker.plain_calls import Outcome, PlainCalls, Waits
from penstock.worker.runner import Runner
from penstock.worker.stage_loop import LAST_TASKS_SECONDS, live_in
from penstock.worker.waiting_runner import WaitingRunner, WaitingWork

log = guarded_logger("penstock.worker")

T = TypeVar("T")


class AttachedLoop:
    """An event loop in a thread of its own for the stage `name`, until `close`.

    `end_if_forked` is called after user code has run: a child that the stage has forked may come back from it.
    """

    def __init__(self, name: str, end_if_forked: Callable[[], None]) -> None:
        self._name = name
        self.plain: PlainCalls = _WatchedCalls(end_if_forked)
        """The calls that `run` makes, in the thread that waits there."""
        self.end_if_forked = end_if_forked
        self._loop = asyncio.SelectorEventLoop()
        self._steps: asyncio.Queue[Coroutine[Any, Any, None] | None] = asyncio.Queue()
        self._thread = threading.Thread(target=self._be_the_thread, name="penstock-loop", daemon=True)
        self._thread.start()

    def run(self, steps: Coroutine[Any, Any, T]) -> T:
        """Await `steps` there; returns what they return, and raises what they raise.

        The task that runs them is always the same: what `setup` enters there `teardown` can leave.
        """
        ended: Future[T] = Future()
        ended.add_done_callback(lambda _: self.plain.stop())
        self._put(self._run_for(ended, steps))
        self.plain.serve()
        return ended.result()

    def close(self) -> None:
        """End the loop, and the tasks that the stage has left there; a loop that it blocks is left to the process."""
        self._put(None)
        self._thread.join(2 * LAST_TASKS_SECONDS)

    def _put(self, steps: Coroutine[Any, Any, None] | None) -> None:
        self._loop.call_soon_threadsafe(self._steps.put_nowait, steps)

    # -- in its thread ------------------------------------------------------------------------------------------

    def _be_the_thread(self) -> None:
        live_in(self._loop, self._live(), self._name)

    async def _live(self) -> None:
        while True:
            try:
                steps = await self._steps.get()
            except asyncio.CancelledError:  # a stage has cancelled all tasks of the loop: this one goes on
                continue
            if steps is None:
                return
            await steps

    async def _run_for(self, ended: Future[T], steps: Coroutine[Any, Any, T]) -> None:
        try:
            result = await steps
        except BaseException as error:  # noqa: BLE001  # the thread that waits raises it
            self.end_if_forked()
            ended.set_exception(error)
        else:
            self.end_if_forked()
            ended.set_result(result)


class _WatchedCalls(PlainCalls):
    """Plain calls, each of which is followed by `after`."""

    def __init__(self, after: Callable[[], None]) -> None:
        super().__init__()
        self._after = after

    async def make(self, function: Callable[..., Any], *arguments: Any, waits: Waits | None = None) -> Outcome:
        """As `PlainCalls.make`."""

        def call() -> Any:
            try:
                return function(*arguments)
            finally:
                self._after()

        return await super().make(call, waits=waits)


class RunnerInLoop:
    """Runs a waiting stage for the thread of its worker, which waits meanwhile; it has the methods of `Runner`."""

    lost: Final[Problem | None] = None
    """A waiting stage is not examined: why it fails is seldom its device."""

    def __init__(self, loop: AttachedLoop, stage: Any, runner: Runner, *, name: str, batched: bool) -> None:
        self._loop = loop
        self._runner = WaitingRunner(
            stage, runner, loop.plain, name=name, batched=batched, options=StageOptions(), now=time.monotonic
        )

    def set_up(self, arguments: dict[str, Any]) -> None:
        """Run the stage's `setup`; raises what it raises."""
        self._loop.run(self._runner.set_up(arguments))

    def warm_up(
        self, examples: list[Any], max_size: int, formats: Sequence[Codec] = (), *, tells: bool = True
    ) -> list[str]:
        """As `Runner.warm_up`."""
        return self._loop.run(self._runner.warm_up(examples, max_size, formats, tells=tells))

    def run(self, frame: Frame) -> list[Any]:
        """As `Runner.run`."""
        return self._loop.run(self._run(frame))

    def check_health(self) -> Problem | None:
        """Run the stage's `health`; None if it returned, else what it raised."""
        return self._loop.run(self._runner.check_health())

    def tear_down(self) -> None:
        """Run the stage's `teardown`; raises what it raises."""
        self._loop.run(self._runner.tear_down())

    async def _run(self, frame: Frame) -> list[Any]:
        """Run a frame in a task of its own, which has a copy of the context that `setup` has left."""
        work = self._runner.work_of(frame)
        while True:
            task = asyncio.create_task(self._answers(work))
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError:  # a stage has cancelled all tasks of the loop
                    continue
            if work.begun:  # else the task was cancelled before its first step
                return task.result()

    async def _answers(self, work: WaitingWork) -> list[Any]:
        answers = await self._runner.run(work)
        self._loop.end_if_forked()  # before anything else of the loop goes on in a child
        return answers
