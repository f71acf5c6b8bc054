"""The coordinator's end of a connection that a worker from outside has made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import Callable
from typing import ClassVar, Final, Protocol, cast

from penstock.core.clock import Clock, Timer
from penstock.errors import ProtocolError
from penstock.transport.channel import FrameSink, StreamDecoder
from penstock.transport.external_messages import HANDSHAKE_BYTES
from penstock.transport.forks import keep_from_forks
from penstock.transport.framing import FrameDecoder
from penstock.transport.sockets import SocketChannel

CUT_AFTER_SECONDS: Final = 1.0
"""How long the other end of a connection that is cut off may take to read why."""
MOST_PARTING: Final = 64
"""Most connections of this process that are kept open for that; one more is closed at once, and not told."""
FIRST_BYTES: Final = 4
"""So many bytes tell which protocol a peer speaks."""


class Successor(Protocol):
    """The protocol that goes on with a connection whose first bytes have told which one it is."""

    def adopt(self, transport: asyncio.Transport, data: bytes) -> None:
        """Go on with `transport`, from which `data` has been read."""


class FirstBytes(asyncio.BufferedProtocol):
    """Reads the first bytes of a connection and nothing more, then hands it on to what `choose` returns for them.

    `made` is called when the connection is there.  `choose` gets this object, the transport and the bytes; it returns
    None where it has ended the connection.  `lost` is called if the connection ends before that.
    """

    def __init__(
        self,
        made: Callable[[FirstBytes], None],
        choose: Callable[[FirstBytes, asyncio.Transport, bytes], Successor | None],
        lost: Callable[[FirstBytes], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        """The connection, until it is handed on."""
        self._made = made
        self._choose = choose
        self._lost = lost
        self._data = bytearray(FIRST_BYTES)
        self._filled = 0

    def own_descriptors(self) -> list[int]:
        """What a fork must not keep: the peer would never read the end."""
        return [] if self.transport is None else [self.transport.get_extra_info("socket").fileno()]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # asyncio calls it
        self.transport = cast("asyncio.Transport", transport)
        keep_from_forks(self)
        self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio calls it
        return memoryview(self._data)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:  # asyncio calls it
        self._filled += nbytes
        if self._filled < FIRST_BYTES or self.transport is None:
            return
        transport, self.transport = self.transport, None
        data = bytes(self._data)
        successor = self._choose(self, transport, data)
        if successor is not None:
            successor.adopt(transport, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it
        if self.transport is not None:
            self.transport = None
            self._lost(self)


class Parting(asyncio.BufferedProtocol):
    """Sends the last bytes of a connection, then drops what still comes until the other end has closed.

    To close at once would have the other end read an error in place of those bytes, where it was about to send.  It
    has `CUT_AFTER_SECONDS`.  Where `MOST_PARTING` do so already, it is closed at once: who connects again and again
    must not take all descriptors of this process.
    """

    _open: ClassVar[weakref.WeakSet[Parting]] = weakref.WeakSet()

    def __init__(self, transport: asyncio.Transport, last: bytes, clock: Clock) -> None:
        self._dropped = bytearray(4096)
        self._timer: Timer | None = None
        if transport.is_closing():
            return
        transport.set_protocol(self)
        if len(self._open) >= MOST_PARTING:
            transport.abort()
            return
        self._open.add(self)
        if last:
            transport.write(last)
        transport.write_eof()  # once more where that was done: then it does nothing
        self._timer = clock.call_later(CUT_AFTER_SECONDS, transport.abort)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio calls it
        return memoryview(self._dropped)

    def buffer_updated(self, nbytes: int) -> None:
        """Drop it."""

    def eof_received(self) -> bool:  # asyncio calls it
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._open.discard(self)


def _ignore(error: ProtocolError) -> None:
    """Drop what came over a channel that has ended."""


class ExternalChannel(SocketChannel):
    """The coordinator's end, on which the other end is trusted with nothing.

    Before HELLO a frame may claim no more than `HANDSHAKE_BYTES`; `bound` says what it may claim then.  `broken` is
    told of bytes that are no frame.  A worker that sends no frames has a `decoder` of its own.
    """

    def __init__(
        self, sink: FrameSink, broken: Callable[[ProtocolError], None], decoder: StreamDecoder | None = None
    ) -> None:
        if decoder is None:
            decoder = FrameDecoder(max_body=HANDSHAKE_BYTES, max_items=1, first_claim=HANDSHAKE_BYTES)
        super().__init__(sink, decoder)
        self._broken = broken

    def adopt(self, transport: asyncio.Transport, data: bytes) -> None:  # see `Successor`
        transport.set_protocol(self)
        self.connection_made(transport)
        self._sock = transport.get_extra_info("socket")
        keep_from_forks(self)
        self.take(data)

    def bound(self, *, max_body: int, max_items: int) -> None:
        """Set what a frame may claim from now on."""
        self._decoder.bound(max_body=max_body, max_items=max_items)

    def part(self, last: bytes, clock: Clock) -> None:
        """Send `last`, as far as the other end still reads, and have nothing to do with the connection any more."""
        transport, self._transport, self._sock = self._transport, None, None
        if transport is not None:
            Parting(transport, b"" if self._closed else last, clock)
        self.let_go()

    def let_go(self) -> None:
        super().let_go()
        self._broken = _ignore

    def shut(self) -> None:
        """End the connection in both directions, from any thread and without an event loop."""
        sock = self._sock
        if sock is not None:
            # What an event loop gives as its socket need not be one, and may be closed meanwhile.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as own:
                own.shutdown(socket.SHUT_RDWR)

    def stream_broken(self, error: ProtocolError) -> None:
        """Have the owner say why, and close."""
        self._error = error
        self._broken(error)
        error.__traceback__ = None  # it leads to this very object, which may keep it
