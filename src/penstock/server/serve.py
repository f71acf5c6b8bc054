"""Serve services over HTTP until told to stop.

The port opens first, so that `/livez` and `/readyz` answer while models load.  No process and no socket file is left
after the drain.  Where systemd listens, connections are accepted when everything is ready: systemd is told how it goes,
and what waits from before is served, not turned away.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from functools import partial

from penstock.config import LogOptions, ServerOptions
from penstock.hosting.doors import Doors
from penstock.hosting.given_sockets import SEE_OUT_SECONDS, refuse_addresses, sockets_given
from penstock.hosting.logs import log
from penstock.hosting.loop_clock import LoopClock
from penstock.hosting.preparing import prepare_host
from penstock.hosting.run import run_until_signal
from penstock.hosting.servable import Servable, check_sockets, files_of_workers
from penstock.hosting.stdio import write_stderr_line
from penstock.hosting.systemd import given_by_systemd
from penstock.server.app import App
from penstock.server.http1.binding import tls_context
from penstock.server.http1.listener import Listener
from penstock.server.jobs_port import JobsPort

Ready = Callable[[list[str]], None]
"""Called once with the addresses, when every service is ready."""


def serve(
    services: Sequence[Servable],
    options: ServerOptions,
    on_ready: Ready | None = None,
    *,
    sockets: Sequence[socket.socket] = (),
    see_out: float = 0.0,
    jobs: JobsPort | None = None,
) -> None:
    """Serve `services` on a new event loop; returns after a drain.

    `sockets` listen already, and stay open when this ends: whoever made them keeps them.  Without them it listens on
    those that systemd gave this process, if it gave some.  With `see_out`, clients that are connected are answered for
    so many seconds more before the drain, each once.  With `jobs` clients may submit to that queue.

    Raises:
        ConfigError: an option, a service or the store of `jobs` is not valid.
        StartFailed: the port cannot be opened or a stage cannot be set up.
    """
    check_sockets(services, options.uds)
    prepare_host(services, LogOptions(options.log_format, options.log_level))
    # Under JSON every line is an object.
    announce = on_ready or partial(_announce, log.info if options.log_format == "json" else write_stderr_line)
    with contextlib.ExitStack() as opened:
        given = [] if sockets else _given_sockets(options, opened)
        app = App(services, options, LoopClock(), jobs=jobs)
        listener = Listener(
            app,
            options,
            app.clock,
            worker_files=files_of_workers(services),
            sockets=given or sockets,
            accepts_later=bool(given),
        )
        app.metrics.watch(listener)

        def ready() -> None:
            if given:
                listener.accept()
            announce(listener.addresses)

        run_until_signal(
            services,
            listener if jobs is None else Doors([listener], [jobs]),
            drain=options.drain_timeout,
            on_ready=ready,
            on_end=app.problems.faults.flush,
            renewals=[*listener.renewals(), *app.renewals()],
            shows_lines=options.log_format == "text",  # every line of the others is a JSON object
            drain_delay=options.drain_delay,
            see_out=SEE_OUT_SECONDS if given else see_out,
        )


ADDRESS_OPTIONS = ("host", "port", "uds")
"""What says where to listen, and cannot stand beside sockets that listen already."""


def _given_sockets(options: ServerOptions, opened: contextlib.ExitStack) -> list[socket.socket]:
    """Those that systemd gave, which `opened` closes; ConfigError where `options` name another place."""
    sockets = [opened.enter_context(sock) for sock in sockets_given()]
    if words := given_by_systemd().for_another:
        log.warning("%s", words)
    if sockets:
        usual = ServerOptions()
        named = [name for name in ADDRESS_OPTIONS if getattr(options, name) != getattr(usual, name)]
        refuse_addresses(f"{name}={getattr(options, name)!r}" for name in named)
    return sockets


def check_before_serving(services: Sequence[Servable], options: ServerOptions) -> None:
    """Raise the ConfigError with which `serve` would refuse to open the door."""
    App(services, options, LoopClock())
    tls_context(options)


def _announce(say: Callable[[str], None], addresses: list[str]) -> None:
    say(f"ready on {', '.join(addresses)}")
