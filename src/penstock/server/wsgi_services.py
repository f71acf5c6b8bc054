"""The services behind a WSGI app in one process: from their start, which is tried until it is well, to their stop.

Contract
--------
* They start as soon as this is made, on a loop thread of their own.
* A start that fails is tried again after `RETRY_SECONDS`; `problems` have the reason meanwhile.
* Any thread may wait for the start, for at most as long as its request has.
* `stop` may be called at any time, any number of times, also in the middle of a start.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from typing import Any, Final

from penstock.codec.text import one_line
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.loop_clock import sleep_on
from penstock.hosting.loop_thread import LoopThread
from penstock.hosting.servable import Servable
from penstock.server.app import App
from penstock.server.application import HttpRequest
from penstock.server.gateway import GatewayCall

RETRY_SECONDS: Final = 10.0
"""How long after a start that failed the next one begins."""

log = guarded_logger("penstock.server")


class WsgiServices:
    """The services of one process on the thread of their loop, and the `App` in front of them."""

    def __init__(self, app: App, *, is_copy: bool) -> None:
        self.app = app
        self.answering: set[GatewayCall] = set()
        self.lock = threading.RLock()  # a signal handler may stop the app in the middle of a call
        """Taken to use the app where the loop does not run any more."""
        self.ready = False
        """Whether every service has started, so that nobody has to wait."""
        self._stopping: concurrent.futures.Future[None] | None = None
        self._is_copy = is_copy
        self._started: list[Servable] = []
        self._error: Exception | None = None
        """Why the last start has failed."""
        self._settled = threading.Event()
        """Set while no start is under way."""
        self._task: asyncio.Task[Any] | None = None
        """What starts the services."""
        names = ", ".join(service.name for service in app.services)
        self.thread = LoopThread(names, f"service {names!r} was stopped")
        self._starting = self.thread.submit(self._start())
        self._starting.add_done_callback(lambda _: self._settled.set())

    @property
    def stopped(self) -> bool:
        """Whether nothing more is taken."""
        return self._stopping is not None

    @property
    def failed(self) -> bool:
        """Whether the last start has failed, and the next one is not due yet."""
        return self._error is not None and self._settled.is_set()

    def wait(self, request: HttpRequest) -> None:
        """Wait for the start, where the request is a call that may; at most until its deadline."""
        until = self.app.waits_until(request)
        if until is not None:
            left = until - self.app.clock.now()
            self._settled.wait(min(max(left, 0.0), threading.TIMEOUT_MAX))

    def wait_started(self) -> None:
        """Wait for the start that is under way; raises what it has raised."""
        self._settled.wait()
        if self._error is not None:
            raise self._error
        if not self.ready:
            raise NotReady("the services were stopped while they were starting", state=State.STOPPED)

    def stop(self) -> None:
        """Stop the services and end the thread; harmless where that was done."""
        with self.lock, contextlib.suppress(NotReady):  # the loop has ended
            if self._stopping is None:
                self._stopping = self.thread.submit(self._stop())
        try:
            if self._stopping is not None:
                self._stopping.result()
        except NotReady:  # it ended meanwhile
            pass
        finally:
            self.thread.end()

    async def _start(self) -> None:
        self._task = asyncio.current_task()
        while not self.ready:
            self._settled.clear()
            try:
                await self._start_services()
            except Exception as error:  # a stage's module may raise anything
                log.exception("the service failed to start; next attempt in %g s", RETRY_SECONDS)
                self._error = error
                self.app.problems.unstarted = f"The service failed to start, and retries: {one_line(str(error))}"
                self._settled.set()
                await sleep_on(self.app.clock, RETRY_SECONDS)
            else:
                self._error = None
                self.ready = True
                self._settled.set()

    async def _start_services(self) -> None:
        for service in self.app.services:
            if service in self._started:
                continue  # by a try before this one
            if self._is_copy:
                await _drop_copy(service)
            self._started.append(service)  # first: the start may be cancelled
            try:
                await service.start()
            except Exception:
                self._started.remove(service)
                raise

    async def _stop(self) -> None:
        assert self._task is not None, "it was the first thing that the loop was given"
        self._task.cancel()
        await asyncio.wait((self._task,))
        self.app.problems.unstarted = "The service was stopped."
        for service in reversed(self._started):
            await service.stop(drain_timeout=self.app.options.drain_timeout)
        self.app.problems.faults.flush()


async def _drop_copy(service: Servable) -> None:
    """Forget what the parent of this process has started: its workers are the parent's."""
    try:
        service.check_process()
    except ConfigError:
        await service.stop(drain_timeout=0.0)
