"""Serve services over HTTP until told to stop: open the port, start the workers, drain on a signal.

The port opens first, so that `/livez` and `/readyz` answer while models load.  SIGTERM and SIGINT begin the drain;
a second one ends everything at once.  Either way no process and no socket file stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence

import uvloop

from penstock.config import ServerOptions
from penstock.server.app import App
from penstock.server.listener import Listener
from penstock.server.logs import set_up_logging
from penstock.server.servable import Servable
from penstock.server.streams import fill_standard_streams, tell

log = logging.getLogger("penstock.server")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

# What the drain leaves is settled as NotReady; this long its answers may take to be written.
LAST_ANSWERS = 1.0

# A request makes a dozen objects and leaves no cycle: to look for one every 700 objects would cost each request a
# third of a microsecond.
YOUNG_OBJECTS = 20_000

Ready = Callable[[list[str]], None]
"""Told the addresses, once, when every service is ready."""


def serve(services: Sequence[Servable], options: ServerOptions, on_ready: Ready | None = None) -> None:
    """Serve `services` on an event loop of its own; returns after a drain.

    Raises:
        ConfigError: an option or a service cannot be as described.
        StartFailed: the port cannot be opened or a stage cannot be set up.
    """
    fill_standard_streams()
    set_up_logging(options.log_format)
    with _collector_as_it_was(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Serving(services, options, on_ready or _announce).run())


@contextlib.contextmanager
def _collector_as_it_was() -> Iterator[None]:
    """Give the process its cycle collector back as it was: the program may go on after the drain."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not frozen:  # whoever froze something before us wants it to stay so
            gc.unfreeze()


def _announce(addresses: list[str]) -> None:
    tell(f"ready on {', '.join(addresses)}")


class _Serving:
    """One run of the server."""

    def __init__(self, services: Sequence[Servable], options: ServerOptions, on_ready: Ready) -> None:
        self._services = services
        self._options = options
        self._on_ready = on_ready
        self._listener = Listener(App(services, options), options)
        self._told = asyncio.Event()
        self._signal = ""

    async def run(self) -> None:
        """Start, wait for a signal, drain."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            await self._listener.start()
            told = loop.create_task(self._told.wait())
            started = loop.create_task(self._start())
            await asyncio.wait((told, started), return_when=asyncio.FIRST_COMPLETED)
            if started.done():
                await started
                # What is loaded now stays for good: the cycle collector need not walk it again under load.
                gc.collect()
                gc.freeze()
                gc.set_threshold(YOUNG_OBJECTS)
                self._on_ready(self._listener.addresses)
                await told
            else:
                started.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await started
        finally:
            await self._drain()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def _start(self) -> None:
        """Start every service; the first that cannot be started ends the others, and is the error."""
        try:
            async with asyncio.TaskGroup() as group:
                for service in self._services:
                    group.create_task(service.start())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _drain(self) -> None:
        grace = self._options.drain
        ends = [asyncio.ensure_future(service.stop(drain=grace)) for service in self._services]
        await asyncio.sleep(0)  # each has begun: nothing more is accepted, as the line says
        if self._signal:
            log.info("%s: draining for up to %g s; a second signal ends at once", self._signal, grace)
        await asyncio.gather(self._listener.close(grace + LAST_ANSWERS), *ends)

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._told.is_set():
            self._signal = name
            self._told.set()
            return
        log.warning("%s again: ending at once", name)
        self._listener.stop_accepting()
        for service in self._services:
            if service.engine is not None:
                service.engine.abandon()
        logging.shutdown()
        os._exit(128 + number)
