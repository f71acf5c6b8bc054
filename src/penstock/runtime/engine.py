"""A running service: its stages are started, watched and stopped here; its requests flow in `flow`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Sequence

from penstock.config import ServiceOptions
from penstock.core.admission import Admission
from penstock.core.deadlines import Deadlines
from penstock.core.state import State
from penstock.errors import (
    ConfigError,
    NotReady,
    Overloaded,
    RequestError,
    StartFailed,
)
from penstock.runtime.affinity import allowed_cores, check_cores, pin
from penstock.runtime.flow import FOREVER, Flow
from penstock.runtime.launching import launcher, worker_cores
from penstock.runtime.spec import StageSpec
from penstock.runtime.stage_driver import StageDriver

# After the last answer a worker tears its stage down; one that takes longer is killed.
TEARDOWN_GRACE = 5.0


class Engine(Flow):
    """A running service.  Made stopped; `start` starts it, `stop` may be called any time, any number of times.

    It lives on one event loop, and everything but `abandon` is called on that loop's thread.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[StageSpec],
        options: ServiceOptions,
        *,
        cpus: Sequence[int] | None = None,
        inline: bool = False,
    ) -> None:
        super().__init__(name, options, specs[0].options.max_queued, len(specs))
        self._specs = tuple(specs)
        self._cpus = tuple(cpus) if cpus is not None else None
        self._in_process = inline
        self._affinity_before: frozenset[int] | None = None
        self._pinned_by = 0
        """The thread that was pinned."""
        self._started: asyncio.Future[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._hurried = False
        """Whether somebody who asked to stop waits no longer."""
        self._phase = State.STOPPED

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

    def refusal(self, nbytes: int = 0) -> RequestError | None:
        """Why a request of `nbytes` would be refused now, or None."""
        if not self.accepting:
            state = self.state
            reason = f": {self.reason}" if state is State.FAILED else ""
            return NotReady(f"service {self.name!r} is {state}{reason}", state=state)
        if not self._has_room(nbytes):
            retry_after = self._admission.retry_after(self.now())
            return Overloaded(f"service {self.name!r} is full; try again in {retry_after} s", retry_after=retry_after)
        return None

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
        if stage.failed and self._phase in (State.READY, State.DRAINING):
            self._settle_all(
                lambda _: NotReady(f"stage {stage.name!r} has failed: {stage.health.reason}", state=State.FAILED)
            )

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
            self._pinned_by = threading.get_ident()
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
            self._phase = State.DRAINING
            self._refresh()
            task = self._stop_task = asyncio.get_running_loop().create_task(self._stop(drain))
            task.add_done_callback(self._stop_ended)
        else:
            done, _ = await asyncio.wait((task,), timeout=None if drain > FOREVER else drain)
            if not done:
                self._hurried = True
                if self._changed is not None:
                    self._changed.set()
        await asyncio.shield(task)

    async def _stop(self, drain: float) -> None:
        for stage in self.stages:
            stage.queue.draining = True
        self.wake()
        await self._until(lambda: self.idle or self._hurried, drain)
        drained = self.idle and drain > 0
        self._settle_stopped()
        if drained:
            for stage in self.stages:
                stage.close()
            await self._until(lambda: self._hurried or not self._workers_alive, TEARDOWN_GRACE)
        for stage in self.stages:
            stage.kill()
        await self._until(lambda: not self._workers_alive, math.inf)
        self._finish()

    def _stop_ended(self, _: asyncio.Task[None]) -> None:
        """The short way, where the long one went wrong or was cut off."""
        # Not in a `finally`: a task that was cancelled before its first step has none.
        if self._phase is not State.STOPPED:
            self.abandon()

    def _settle_stopped(self) -> None:
        self._settle_all(lambda _: NotReady(f"service {self.name!r} has stopped", state=State.STOPPED))

    def _finish(self) -> None:
        """Tell who waits for the start, and leave nothing that could come later."""
        self._phase = State.STOPPED
        self._stop_task = None
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._started is not None and not self._started.done():
            self._started.set_exception(StartFailed(f"service {self.name!r} was stopped while it was starting"))
        self._unpin()

    def _unpin(self) -> None:
        before, self._affinity_before = self._affinity_before, None
        # An abandoned engine may be told so by another thread, whose cores are none of its business.
        if before is not None and self._pinned_by == threading.get_ident():
            pin(before)

    @property
    def _workers_alive(self) -> bool:
        # Once abandoned they tell nothing any more.
        return self._phase is not State.STOPPED and any(
            worker.alive for stage in self.stages for worker in stage.workers
        )

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        assert self._changed is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds > FOREVER else seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def abandon(self) -> None:
        """End every worker at once, from any thread and without an event loop; the engine is stopped.

        Whoever waits is told on the engine's loop, if that runs once more.
        """
        for stage in self.stages:
            stage.stopping = True
            for worker in stage.workers:
                worker.abandon()
        self._phase = State.STOPPED
        self.accepting = False
        self._stop_task = None
        self._unpin()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed, and nobody waits there
                self._loop.call_soon_threadsafe(self._abandoned)

    def _abandoned(self) -> None:
        if self._phase is not State.STOPPED:
            return  # started again meanwhile
        self._settle_stopped()
        self._finish()
        if self._changed is not None:
            self._changed.set()

    def _refresh(self) -> None:
        self.accepting = self.state.serving
