"""Open a connection whose every wait ends in time.

Contract
--------
* A connection is dead after `stall` seconds without a byte, and at the end of its time limit whatever comes.
* Whoever stops the transfer is heard within `GLANCE_SECONDS`, whatever the connection waits for.
* What goes wrong with the connection is TransferFailed.  No OSError comes out of here, so that who reads from here and
  writes to a disk can tell the one from the other.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from penstock.core.tls_words import speaks_no_tls
from penstock.errors import TransferFailed
from penstock.transfer.lookups import Resolved
from penstock.transfer.time_limit import TimeLimit

CONNECT_SECONDS = 10.0
"""How long one address may take to answer before the next one is tried."""

T = TypeVar("T")


class TimedConnection(io.RawIOBase):
    """A connected socket as a raw stream, read and written within a time limit."""

    def __init__(self, sock: socket.socket, limit: TimeLimit, stall: float) -> None:
        super().__init__()
        self._sock = sock
        self._limit = limit
        self._stall = stall
        self.ended = False
        """Whether the other end has said all."""
        self._reader: io.BufferedReader[Any] = io.BufferedReader(self, 64 * 1024)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer, in the stubs
        """Read what there is, at least a byte; 0 at the end.  Raises TransferFailed and TransferCancelled."""
        count = self._patiently(lambda: self._sock.recv_into(buffer))
        self.ended = count == 0
        return count

    def makefile(self, mode: str) -> io.BufferedReader[Any]:  # noqa: ARG002  # http.client asks a socket for one, to read
        """The one stream that reads from here."""
        return self._reader

    def send(self, chunk: bytes | memoryview) -> None:
        """Send all of `chunk`.  Raises TransferFailed and TransferCancelled."""
        left = memoryview(chunk)
        while left:
            left = left[self._patiently(partial(self._sock.send, left)) :]

    def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Go on with TLS, with a server that has a certificate for `host`.  Raises TransferFailed."""
        with self._told():
            # An end without a goodbye is an error: a body without an announced length may be cut off there.
            self._sock = context.wrap_socket(
                self._sock, server_hostname=host.rstrip("."), do_handshake_on_connect=False, suppress_ragged_eofs=False
            )
        secured = self._sock
        self._patiently(secured.do_handshake)

    def end(self) -> None:
        """Close the socket; harmless if it is closed."""
        self._sock.close()

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do `act`, again and again while it only waits."""
        since = self._limit.now()
        while True:
            with self._told():
                self._sock.settimeout(self._limit.glance())
                with contextlib.suppress(TimeoutError):
                    return act()
            if self._limit.now() - since >= self._stall:
                raise TransferFailed(f"{self._limit.what}: no data transferred for {self._stall:g} s")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TransferFailed(f"{self._limit.what}: {_in_words(error)}") from None


@contextlib.contextmanager
def connected(addresses: list[Resolved], limit: TimeLimit, stall: float) -> Iterator[TimedConnection]:
    """A connection to the first of `addresses` that answers; it is closed at the end.

    Raises TransferFailed where none does.
    """
    failures = []
    for address in addresses:
        try:
            sock = _connect(address, limit)
        except OSError as error:
            failures.append(f"{address.sockaddr[0]}: {_in_words(error)}")
            continue
        connection = TimedConnection(sock, limit, stall)
        try:
            yield connection
        finally:
            connection.end()
        return
    raise TransferFailed(f"{limit.what}: cannot connect to {'; '.join(failures)}")


def _connect(address: Resolved, limit: TimeLimit) -> socket.socket:
    """A socket connected to `address`.  Raises OSError, TransferFailed at the time limit, and TransferCancelled."""
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(address.family, socket.SOCK_STREAM))
        sock.setblocking(False)
        number = sock.connect_ex(address.sockaddr)
        if number == errno.EINPROGRESS:
            number = _connection_error(sock, limit)
        if number:
            raise OSError(number, os.strerror(number))
        undo.pop_all()
    return sock


def _connection_error(sock: socket.socket, limit: TimeLimit) -> int:
    """What became of a connection that was begun: an error's number, or 0."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    give_up = limit.now() + CONNECT_SECONDS
    while not poll.poll(limit.glance() * 1000):
        if limit.now() >= give_up:
            return errno.ETIMEDOUT
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _in_words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if speaks_no_tls(str(error)):
        return "it speaks no TLS: write http://"
    return error.strerror or str(error) or type(error).__name__
