"""Run services behind a door until a signal: open it, start the workers, drain.

The door opens first, so that questions about the state are answered while models load.  SIGTERM, SIGINT or SIGQUIT
begins the end: where one was asked for, a phase in which everything is accepted although the state says DRAINING, and
then the drain.  A second one ends everything at once, in either phase.  No worker process is left in any case.  SIGHUP
renews certificates and keys, SIGUSR1 writes a report to the log.  systemd, where it wants to know, is told of all this.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import uvloop

from penstock.core.clock import calling_later
from penstock.hosting.chore import Chore
from penstock.hosting.drain_lines import phase_told
from penstock.hosting.freed_memory import freed_memory_returned, resident_bytes, trim_heap
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.handing_over import lines_handed_over, write_last_lines
from penstock.hosting.host_part import HostPart
from penstock.hosting.load_lines import loading_shown
from penstock.hosting.logs import dropped_notice
from penstock.hosting.loop_clock import LoopClock
from penstock.hosting.notifying import RunObserver, observer_of
from penstock.hosting.renewal import Renewal, renew
from penstock.hosting.report import report
from penstock.hosting.servable import Servable
from penstock.hosting.service_health import in_hand
from penstock.hosting.signals import Action, Terminal, action_of, taking_signals

log = guarded_logger("penstock.server")

LAST_REQUESTS_SECONDS = 0.5
"""How long after a drain delay the request of who has just connected may take to come.

A proxy connects and then sends.  Without this time 0 to 2 of 2,700 requests met a connection that was closed in
between, in each of eight runs in which two replicas behind nginx were replaced.
"""
LAST_ANSWERS_SECONDS = 1.0
"""How long the last answers may take to be written after the drain, those included that say NotReady."""

COLLECTOR_THRESHOLD_OBJECTS = 20_000
"""New objects between two runs of the cycle collector.

A request makes a dozen objects and leaves no cycle.  A run every 700 objects, the default, would cost each request a
third of a microsecond.
"""


class Door(Protocol):
    """Where work enters a process: an HTTP listener, or the consumer of a queue."""

    async def start(self) -> None:
        """Accept work from now on; raises StartFailed or ConfigError."""

    def leave_soon(self) -> None:
        """Prepare for the end: claim no job any more, and go on accepting from clients, on each connection once."""

    def stop_accepting(self) -> None:
        """Accept no more work; safe at any time, any number of times."""

    async def see_out(self, seconds: float) -> None:
        """Stop accepting, and let those who are in go on for at most `seconds`, each with one request more."""

    async def close(self, grace: float) -> None:
        """Stop accepting, and wait at most `grace` seconds for the answers owed."""


def run_until_signal(
    services: Sequence[Servable],
    door: Door,
    *,
    drain: float,
    on_ready: Callable[[], None],
    on_end: Callable[[], None],
    renewals: Sequence[Renewal] = (),
    shows_lines: bool = False,
    drain_delay: float = 0.0,
    see_out: float = 0.0,
    until: Callable[[], Awaitable[None]] | None = None,
    parts: Sequence[HostPart] = (),
) -> None:
    """Run `services` behind `door` on a new event loop; returns after a drain of at most `drain` seconds.

    It ends at a signal, and when what `until` gives is done; what that raises is raised after the drain.

    Before the drain of a run that was ready the services are DRAINING for `drain_delay` seconds, and accept all the
    same: meanwhile whoever sends requests here may learn that others should have them.  Then the door sees out who is
    in for at most `see_out` seconds.  0 is none of either.

    `on_ready` is called once, when every service is ready, and `on_end` at the end, also at one that a second signal
    asked for: what is to be logged is then logged.  `renewals` are what SIGHUP reads again.  With
    `shows_lines` a line on the terminal, if there is one, tells what still loads, and how the end goes.  `parts` are
    what else of this process may be unready or stuck, or have something in hand.

    Raises:
        ConfigError: an option or a service is not valid.
        StartFailed: the door cannot be opened or a stage cannot be set up.
        PenstockError: what the door says of its own kind of work, and what `until` raised.
    """
    observer = observer_of(services, parts, LoopClock())
    with (
        lines_handed_over(dropped_notice),
        _collector_restored(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        ends = _Ends(drain_delay, see_out, drain)
        count = partial(in_hand, services, parts)
        runner.run(_Run(services, door, ends, count, on_ready, on_end, renewals, shows_lines, until, observer).run())


@contextlib.contextmanager
def _collector_restored() -> Iterator[None]:
    """Restore the settings of the cycle collector at the end: the program may go on after the drain."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not frozen:  # objects that the program froze itself stay frozen
            gc.unfreeze()


class _Ends(NamedTuple):
    """How long each phase of the end lasts, in seconds."""

    delay: float
    see_out: float
    drain: float


class _Run:
    """One run, from the opening of the door to its end."""

    def __init__(
        self,
        services: Sequence[Servable],
        door: Door,
        ends: _Ends,
        count: Callable[[], int],
        on_ready: Callable[[], None],
        on_end: Callable[[], None],
        renewals: Sequence[Renewal],
        shows_lines: bool,
        until: Callable[[], Awaitable[None]] | None,
        observer: RunObserver,
    ) -> None:
        self._until = until
        self._observer = observer
        self._services = services
        self._door = door
        self._ends = ends
        self._count_in_hand = count
        self._ready = False
        """Whether every service was ready."""
        self._on_ready = on_ready
        self._on_end = on_end
        self._shows_lines = shows_lines
        self._clock = LoopClock()
        self._stop_asked = asyncio.Event()
        self._signal = ""
        self._began = 0.0
        self._terminal = Terminal()
        self._renewing = Chore(lambda: renew(renewals, "SIGHUP"))
        self._reporting = Chore(self._report)

    async def run(self) -> None:
        """Start, wait for a signal that ends the run, drain."""
        self._began = asyncio.get_running_loop().time()
        with taking_signals(self._signalled):
            await self._run()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._observer.began()
        try:
            await self._door.start()
            stop_asked = loop.create_task(self._wait_for_the_end())
            started = loop.create_task(self._start())
            await asyncio.wait((stop_asked, started), return_when=asyncio.FIRST_COMPLETED)
            if started.done():
                await started
                # What is loaded by now stays until the end: the cycle collector need not visit it under load.
                gc.collect()
                gc.freeze()
                gc.set_threshold(COLLECTOR_THRESHOLD_OBJECTS)
                self._ready = True
                self._on_ready()
                self._observer.ready()
                with freed_memory_returned(self._clock, resident_bytes, trim_heap):
                    await stop_asked
            else:
                started.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await started
                await stop_asked
        finally:
            ends = self._ends if self._ready else self._ends._replace(delay=0.0)
            if ends.delay:
                ends = ends._replace(see_out=max(ends.see_out, LAST_REQUESTS_SECONDS))
            self._observer.stopping(sum(ends) + LAST_ANSWERS_SECONDS)
            await self._drain(ends)
            self._observer.ended()
            self._renewing.cancel()
            self._reporting.cancel()
            self._on_end()

    async def _wait_for_the_end(self) -> None:
        """Returns at a signal that ends the run, or when `until` is done; raises what that raises."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._stop_asked.wait())]
        if self._until is not None:
            waits.append(asyncio.ensure_future(self._until()))
        done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in others:
            wait.cancel()
        self._stop_asked.set()  # from now on a signal is a second one
        for wait in done:
            await wait

    async def _start(self) -> None:
        """Start every service.  The first that fails to start cancels the starts of the others; its error is raised."""
        shown = loading_shown(self._services, self._clock) if self._shows_lines else contextlib.nullcontext()
        try:
            with shown:
                async with asyncio.TaskGroup() as group:
                    for service in self._services:
                        group.create_task(service.start())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _drain(self, ends: _Ends) -> None:
        if ends.delay:
            await self._leave_soon(ends.delay)
        if ends.see_out:
            await self._door.see_out(ends.see_out)
        grace = ends.drain
        stops = [asyncio.ensure_future(service.stop(drain_timeout=grace)) for service in self._services]
        await asyncio.sleep(0)  # lets each `stop` begin: nothing more is accepted when the line is written
        with self._told("shutting down, waiting up to %s for %d in flight", grace, self._signal):
            await asyncio.gather(self._door.close(grace + LAST_ANSWERS_SECONDS), *stops)

    async def _leave_soon(self, seconds: float) -> None:
        """Tell everybody who asks that this server goes, and go on as before for so long."""
        for service in self._services:
            if service.engine is not None:
                service.engine.leave_soon()
        self._door.leave_soon()
        over = asyncio.Event()
        with (
            self._told(
                "shutting down, accepting requests for %s more, %d in flight",
                seconds,
                self._signal or "the run is over",
            ),
            calling_later(self._clock, seconds, over.set),
        ):
            await over.wait()

    def _told(self, what: str, seconds: float, why: str) -> contextlib.AbstractContextManager[None]:
        return phase_told(what, seconds, self._count_in_hand, self._clock, why=why, shows=self._shows_lines)

    async def _report(self) -> None:
        await report(self._services, asyncio.get_running_loop().time() - self._began, "SIGUSR1")

    def _signalled(self, number: int) -> None:
        match action_of(number, draining=self._stop_asked.is_set(), terminal_closed=self._terminal.closed):
            case Action.DRAIN:
                self._signal = signal.Signals(number).name
                self._stop_asked.set()
            case Action.END:
                self._end_at_once(number)
            case Action.RENEW:
                self._renewing.ask()
            case Action.REPORT:
                self._reporting.ask()
            case Action.NOTHING:
                log.info("%s ignored: shutting down", signal.Signals(number).name)

    def _end_at_once(self, number: int) -> None:
        log.warning("second %s: forcing exit", signal.Signals(number).name)
        self._door.stop_accepting()
        for service in self._services:
            if service.engine is not None:
                service.engine.abandon()
        self._on_end()
        write_last_lines()
        os._exit(128 + number)
