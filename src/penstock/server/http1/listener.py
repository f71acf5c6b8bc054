"""Open the server's door, keep its connections swept, and close it without losing an answer.

`start` binds.  `leave_soon` prepares for the end.  `stop_accepting` closes the door.  `close` also waits for the
answers owed.  The last three may be called at any time, any number of times.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
from collections.abc import Sequence
from functools import partial

from penstock.config import ServerOptions
from penstock.core.clock import Clock, Timer
from penstock.hosting.renewal import Renewal, UseRenewed
from penstock.hosting.unix_sockets import BACKLOG, remove_unix, unix_name
from penstock.server.application import Application
from penstock.server.http1.binding import bind_sockets, bound_unsent_bytes, raise_file_limit, tls_context
from penstock.server.http1.certificate import certificate_expires
from penstock.server.http1.connection import Connection
from penstock.server.http1.connections import Connections
from penstock.server.http1.handshakes import Handshakes
from penstock.server.http1.last_arrivals import accept_last
from penstock.server.http1.refusals import LINGER_SECONDS

SWEEP_INTERVAL_SECONDS = 1.0
"""How often connections are told the time; each of their time limits may be exceeded by this much."""
TLS_GOODBYE_SECONDS = LINGER_SECONDS
"""How long a client may take over the end of TLS, once it has taken its answers; asyncio would give it 30 s."""
LAST_ACCEPTED_SECONDS = 0.01
"""How long the event loop may take to hand over a connection that it has accepted: a few of its turns."""
ABORT_GRACE_SECONDS = 1.0
"""How long the event loop may take to report the loss of connections that were aborted: a few of its turns."""


class Listener:
    """The sockets of one server and the connections that came in through them.

    `worker_files` is how many files the workers of this process take besides.  `sockets` listen already, and
    are somebody else's, who keeps them open: the listener binds none then, and removes no socket file.  With
    `accepts_later` it accepts nobody before `accept` is called: who comes before waits in the kernel.
    """

    def __init__(
        self,
        app: Application,
        options: ServerOptions,
        clock: Clock,
        *,
        worker_files: int = 0,
        sockets: Sequence[socket.socket] = (),
        accepts_later: bool = False,
    ) -> None:
        self._app = app
        self._options = options
        self._clock = clock
        self._worker_files = worker_files
        self._given = sockets
        self._accepts_later = accepts_later
        self._waiting: list[socket.socket] = []
        """Those of TLS from which nothing is accepted yet."""
        self._beginning: list[asyncio.Task[None]] = []
        self._connections: Connections | None = None
        self._limit = options.max_connections
        self._servers: list[asyncio.Server] = []
        self._bound: list[socket.socket] = []
        """Those sockets that are ours, while they listen."""
        self._addresses: list[str] = []
        self._sweep: Timer | None = None
        self._file: tuple[int, int] | None = None
        """What identifies the file of our Unix socket."""
        self._context: ssl.SSLContext | None = None
        """What a new connection gets its certificate from, over TLS."""
        self._expires: float | None = None
        self._handshakes: Handshakes | None = None

    @property
    def addresses(self) -> list[str]:
        """Where the server listens: ``http://127.0.0.1:8000``, or ``unix:/path``."""
        return list(self._addresses)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections.open) if self._connections is not None else 0

    @property
    def most_connections(self) -> int:
        """How many connections are served at a time; fewer than the option says where the system allows fewer files."""
        return self._limit

    @property
    def certificate_expires(self) -> float | None:
        """When the certificate expires that new connections get, in seconds since the epoch; None if that is unknown.

        None too without TLS.
        """
        return self._expires

    async def start(self) -> None:
        """Listen; StartFailed or ConfigError says why that cannot be."""
        options = self._options
        self._context, self._expires = _dated_context(options)
        limits = raise_file_limit(
            options.max_connections, tls=self._context is not None, worker_files=self._worker_files
        )
        self._limit = limits.connections
        sockets, self._file = (list(self._given), None) if self._given else bind_sockets(options)
        self._bound = [] if self._given else list(sockets)
        for sock in self._given:
            bound_unsent_bytes(sock)
        loop = asyncio.get_running_loop()
        fitting = dataclasses.replace(options, max_connections=limits.connections)
        connections = self._connections = Connections(self._app, fitting, self._clock, max_excess=limits.excess)
        if self._context is not None:
            self._handshakes = Handshakes(
                connections,
                self._clock,
                self._newest_context,
                seconds=options.header_timeout,
                goodbye_seconds=TLS_GOODBYE_SECONDS,
            )
        for sock in sockets:
            self._addresses.append(self._name(sock))
            if self._handshakes is None:
                make = partial(Connection, connections)
                now = not self._accepts_later
                self._servers.append(await loop.create_server(make, sock=sock, backlog=BACKLOG, start_serving=now))
            elif self._accepts_later:
                self._waiting.append(sock)
            else:
                self._handshakes.listen(sock)
        self._sweep_later()

    def accept(self) -> None:
        """Accept who comes, now that it is later; called once, after `start`."""
        waiting, self._waiting = self._waiting, []
        for sock in waiting:
            assert self._handshakes is not None, "there is no TLS"
            self._handshakes.listen(sock)
        loop = asyncio.get_running_loop()
        self._beginning = [loop.create_task(server.start_serving()) for server in self._servers]

    def renewals(self) -> list[Renewal]:
        """The certificate and its key, over TLS.  New connections get the renewed one."""
        options = self._options
        if options.tls_cert is None:
            return []
        return [Renewal(f"tls_cert {options.tls_cert} and tls_key {options.tls_key}", self._read_certificate)]

    def _read_certificate(self) -> UseRenewed:
        # A context of its own: a certificate and a key that do not belong together would spoil the one in use.
        return partial(self._use_certificate, *_dated_context(self._options))

    def _use_certificate(self, context: ssl.SSLContext | None, expires: float | None) -> None:
        self._context = context
        self._expires = expires

    def _newest_context(self) -> ssl.SSLContext:
        assert self._context is not None, "there is no TLS"
        return self._context

    def _name(self, sock: socket.socket) -> str:
        if sock.family == socket.AF_UNIX:
            return f"unix:{unix_name(sock)}"
        host, port = sock.getsockname()[:2]
        scheme = "http" if self._options.tls_cert is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in str(host) else f"{scheme}://{host}:{port}"

    def _sweep_later(self) -> None:
        self._sweep = self._clock.call_later(SWEEP_INTERVAL_SECONDS, self._sweep_now)

    def _sweep_now(self) -> None:
        self._sweep_later()  # first, so that a fault in one sweep does not end all of them
        now = self._clock.now()
        if self._handshakes is not None:
            self._handshakes.sweep(now)
        if self._connections is not None:
            self._connections.sweep(now)

    def stop_accepting(self) -> None:
        """Refuse new connections from now on, and remove our Unix socket."""
        for sock in self._waiting:
            sock.close()
        self._waiting.clear()
        for task in self._beginning:
            task.cancel()
        self._beginning.clear()
        self._bound.clear()
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        uds, file = self._options.uds, self._file
        self._file = None
        if uds is not None and file is not None:
            remove_unix(uds, file)

    def leave_soon(self) -> None:
        """Go on accepting, and end each connection with its next answer."""
        if self._connections is not None:
            self._connections.end_soon()

    async def see_out(self, seconds: float) -> None:
        """Stop accepting, and answer for `seconds` what comes on open connections, each with its last answer.

        Who is connected and was not accepted yet is one of them: that client sees an open connection, and may have sent
        a request.  It returns sooner where no connection is left.
        """
        bound = [sock.dup() for sock in self._bound]  # the event loop closes those that it listens on
        self.stop_accepting()
        last = [accepted for sock in bound for accepted in accept_last(sock)]
        connections, handshakes = self._connections, self._handshakes
        if connections is None:
            return
        connections.persistent = False
        end = self._clock.now() + seconds
        for sock in last:
            if handshakes is not None:
                handshakes.begin_later(sock)
            else:
                make = partial(Connection, connections)
                await asyncio.get_running_loop().connect_accepted_socket(make, sock)
        await asyncio.sleep(LAST_ACCEPTED_SECONDS)
        while (left := end - self._clock.now()) > 0:
            if await connections.until_empty(left) and not handshakes:
                return
            await asyncio.sleep(min(left, LAST_ACCEPTED_SECONDS))

    async def close(self, grace: float) -> None:
        """Stop accepting, wait at most `grace` seconds for the answers owed, and abort what is left."""
        self.stop_accepting()
        connections = self._connections
        if connections is not None:
            connections.drain()
        if self._handshakes is not None:
            await self._handshakes.abort(ABORT_GRACE_SECONDS)
        if connections is not None and not await connections.until_empty(grace):
            connections.abort()
            await connections.until_empty(ABORT_GRACE_SECONDS)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None


def _dated_context(options: ServerOptions) -> tuple[ssl.SSLContext | None, float | None]:
    """The TLS context that `options` describe, and when its certificate expires."""
    context = tls_context(options)
    if context is None or options.tls_cert is None:
        return context, None
    return context, certificate_expires(context, options.tls_cert)
