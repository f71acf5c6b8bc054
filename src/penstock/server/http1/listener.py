"""Open the server's door, keep its connections swept, and close it without losing an answer.

`start` binds; `stop_accepting` closes the door; `close` also waits for the answers owed.  The last two may be called
at any time, any number of times.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from penstock.config import ServerOptions
from penstock.server.application import Application
from penstock.server.http1.binding import BACKLOG, bind_tcp, bind_unix, inode, raise_file_limit, tls_context
from penstock.server.http1.connection import Connection
from penstock.server.http1.connections import Connections

SWEEP_EVERY = 1.0


class Listener:
    """The sockets of one server and the connections that came in through them."""

    def __init__(self, app: Application, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._connections: Connections | None = None
        self._servers: list[asyncio.Server] = []
        self._addresses: list[str] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._file: tuple[int, int] | None = None

    @property
    def addresses(self) -> list[str]:
        """Where the server listens: ``http://127.0.0.1:8000``, or ``unix:/path``."""
        return list(self._addresses)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections.open) if self._connections is not None else 0

    async def start(self) -> None:
        """Listen; StartFailed or ConfigError says why that cannot be."""
        options = self._options
        context = tls_context(options)
        seats = raise_file_limit(options.max_connections)
        if options.uds is not None:
            sockets = [bind_unix(options.uds, options.uds_mode)]
            self._file = inode(options.uds)
        else:
            sockets = bind_tcp(options.host, options.port)
        loop = asyncio.get_running_loop()
        fitting = dataclasses.replace(options, max_connections=seats.connections)
        connections = self._connections = Connections(self._app, fitting, crowd=seats.crowd)
        patience = options.header_timeout if context is not None else None
        for sock in sockets:
            server = await loop.create_server(
                lambda: Connection(connections),
                sock=sock,
                backlog=BACKLOG,
                ssl=context,
                ssl_handshake_timeout=patience,
            )
            self._servers.append(server)
            self._addresses.append(self._name(sock.getsockname()))
        self._sweep_later(loop)

    def _name(self, address: str | tuple[str, int]) -> str:
        if self._options.uds is not None:
            return f"unix:{self._options.uds}"
        host, port = address[0], address[1]
        scheme = "http" if self._options.tls_cert is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in str(host) else f"{scheme}://{host}:{port}"

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = loop.call_later(SWEEP_EVERY, self._sweep_now, loop)

    def _sweep_now(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_later(loop)  # first, so that a fault in one sweep does not end all of them
        if self._connections is not None:
            self._connections.sweep(self._connections.clock())

    def stop_accepting(self) -> None:
        """Refuse new connections from now on, and remove our Unix socket."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        uds, file = self._options.uds, self._file
        self._file = None
        # Not ours any more if somebody has put another in its place.
        if uds is not None and file is not None and inode(uds) == file:
            Path(uds).unlink(missing_ok=True)

    async def close(self, grace: float) -> None:
        """Stop accepting, wait at most `grace` seconds for the answers owed, and cut what is left."""
        self.stop_accepting()
        connections = self._connections
        if connections is not None:
            connections.drain()
            if not await connections.until_empty(grace):
                connections.abort()
                await connections.until_empty(1.0)  # the loop reports each loss in its next turns
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
