"""Accept connections over TLS, and bound the handshakes in progress.

A client that connects and says nothing takes a file for each connection.  Its connections must not keep others out.
So all are counted from the moment they are accepted, and those that have said nothing are the first to make way.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Callable
from functools import partial

from penstock.core.clock import Clock, Timer, calling_later
from penstock.hosting.guarded_log import guarded_logger
from penstock.server.http1.connection import Connection
from penstock.server.http1.connections import Connections

ACCEPTED_PER_TURN = 64
"""Most connections that are accepted in one turn of the event loop; it has other work, too."""
PAUSE_SECONDS = 0.1
"""How long nothing is accepted when that failed: there may be no file, or no memory, for another connection."""
TICK_SECONDS = 0.001
"""The shortest time that a handshake is given: a timer takes no less."""
QUIET_SECONDS = 10.0
"""A line in the log says why it failed, at most once in so long."""

PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b"
)
PLAIN_PROBLEM = (
    b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"this port speaks TLS: write https://"}'
)
"""The answer to a request in plain text."""
MOST_DROPPED_BYTES = 64 * 1024
"""The most of such a request that is read: what is left unread may take the answer away with a reset."""

log = guarded_logger("penstock.server")


class Handshakes:
    """The sockets that listen for TLS, and the handshakes that came in through them.

    `context` gives the certificate of the next handshake, which begins when the client says something.  From when a
    connection is accepted it may take `seconds`; the end of TLS may take `goodbye_seconds`.  `sweep` must be called
    about once a second.

    There may be as many as there are free places among the connections that are served, or `max_excess` of
    `connections` where that is more.  Where that is exceeded one is cut: the oldest of those that have said nothing, if
    they are more than half of all, else the oldest of the others.
    """

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        context: Callable[[], ssl.SSLContext],
        *,
        seconds: float,
        goodbye_seconds: float,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._context = context
        self._seconds = seconds
        self._goodbye_seconds = goodbye_seconds
        self._listening: dict[socket.socket, Timer | None] = {}
        """Each with the end of its pause, if it has one."""
        self._silent: dict[socket.socket, float] = {}
        """Those that have said nothing, the oldest first, and when their time is over."""
        self._lasting: dict[socket.socket, asyncio.Task[None]] = {}
        """The others, in the order in which they began."""
        self._empty = asyncio.Event()
        self._told = -math.inf
        """When the log was last told that nothing can be accepted."""

    def __len__(self) -> int:
        return len(self._silent) + len(self._lasting)

    def listen(self, sock: socket.socket) -> None:
        """Accept what comes to `sock` from now on; `close` closes it."""
        self._listening[sock] = None
        asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Accept no more."""
        for sock, pause in self._listening.items():
            if pause is not None:
                pause.cancel()
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._listening.clear()

    async def abort(self, grace: float) -> None:
        """End what is in progress; the event loop may take `grace` seconds to report that."""
        for sock in tuple(self._silent):
            self._hang_up(sock)
        for sock in self._lasting:
            _cut(sock)
        if self._lasting:
            self._empty.clear()
            with calling_later(self._clock, grace, self._empty.set):
                await self._empty.wait()

    def sweep(self, now: float) -> None:
        """End those that have said nothing for too long at `now`."""
        for sock, end in tuple(self._silent.items()):
            if end > now:
                break
            self._hang_up(sock)

    def begin_later(self, sock: socket.socket) -> None:
        """Wait for the handshake on `sock`, which was accepted and does not block."""
        self._silent[sock] = self._clock.now() + self._seconds
        asyncio.get_running_loop().add_reader(sock, self._begin, sock)
        self._make_room()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                sock, _address = listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:  # this client has left
                continue
            except OSError as error:
                self._pause(listening, error)
                return
            sock.setblocking(False)
            self.begin_later(sock)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        asyncio.get_running_loop().remove_reader(listening)
        self._listening[listening] = self._clock.call_later(PAUSE_SECONDS, partial(self.listen, listening))
        now = self._clock.now()
        if now - self._told >= QUIET_SECONDS:
            self._told = now
            log.error("accept() failed: %s", error)

    def _make_room(self) -> None:
        most = max(self._connections.max_excess, self._connections.free_places, 2)
        while len(self) > most:
            if len(self._silent) > most // 2:
                self._hang_up(next(iter(self._silent)))
            else:
                oldest = next(iter(self._lasting))
                del self._lasting[oldest]
                _cut(oldest)

    def _hang_up(self, sock: socket.socket) -> None:
        """End one that has said nothing, has left, or speaks no TLS."""
        del self._silent[sock]
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()

    def _begin(self, sock: socket.socket) -> None:
        """The client has said something, or has left: then it counts no more, and no handshake makes way for it."""
        first = _first_byte(sock)
        if first.isupper():  # of a method of HTTP; TLS begins with 22
            _answer_plainly(sock)
        if not first or first.isupper():
            self._hang_up(sock)
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        seconds = max(self._silent.pop(sock) - self._clock.now(), TICK_SECONDS)
        self._lasting[sock] = loop.create_task(self._shake_hands(sock, seconds))

    async def _shake_hands(self, sock: socket.socket, seconds: float) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(Connection, self._connections),
                sock,
                ssl=self._context(),
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=self._goodbye_seconds,
            )
        except OSError:  # it left, took too long, spoke no TLS, or was cut: its transport is closed
            pass
        finally:
            self._lasting.pop(sock, None)
            if not self._lasting:
                self._empty.set()


def _first_byte(sock: socket.socket) -> bytes:
    """The first byte that the client of `sock` has sent; b"" where it left without a word."""
    try:
        return sock.recv(1, socket.MSG_PEEK)
    except OSError:  # a reset
        return b""


def _answer_plainly(sock: socket.socket) -> None:
    """Tell the client of `sock`, which does not block, that this port speaks TLS."""
    with contextlib.suppress(OSError):
        sock.send(PLAIN_ANSWER % (len(PLAIN_PROBLEM), PLAIN_PROBLEM))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(MOST_DROPPED_BYTES)


def _cut(sock: socket.socket) -> None:
    """End the handshake on `sock`: the event loop reads its end, or will once it has begun to read."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
