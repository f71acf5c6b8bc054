"""The coordinator's end of the channel over a Unix stream socket: an asyncio protocol."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, cast

from penstock.errors import ProtocolError
from penstock.transport.channel import NOBODY, FrameSink, StreamDecoder
from penstock.transport.forks import keep_from_forks
from penstock.transport.framing import FrameDecoder


class SocketChannel(asyncio.BufferedProtocol):
    """The coordinator's end."""

    def __init__(self, sink: FrameSink, decoder: StreamDecoder | None = None) -> None:
        self._sink = sink
        self._decoder: StreamDecoder = FrameDecoder() if decoder is None else decoder
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._closed = False
        self._sock: socket.socket | None = None

    @classmethod
    async def open(cls, sock: socket.socket, sink: FrameSink) -> SocketChannel:
        """Take over the connected socket `sock`."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: cls(sink, FrameDecoder(slabs=True)), sock=sock)
        channel._sock = sock
        keep_from_forks(channel)
        return channel

    def own_descriptors(self) -> list[int]:
        return [self._sock.fileno()] if self._sock is not None else []

    def send(self, buffers: list[Any]) -> None:
        if self._transport is None or self._closed or self._transport.is_closing():
            return
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._closed = True
            self._transport.write_eof()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- told by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.advance(nbytes)
        except ProtocolError as error:
            self.stream_broken(error)
            return
        for frame in frames:
            self._sink.frame_received(frame)

    def take(self, data: bytes) -> None:
        """Take the first few bytes, which somebody else has read from the socket."""
        self._decoder.get_buffer()[: len(data)] = data
        self.buffer_updated(len(data))

    def stream_broken(self, error: ProtocolError) -> None:
        """What has come is no frame: drop the channel."""
        self._error = error
        self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        sock, self._transport, self._sock = self._sock, None, None
        # That of a worker from outside is what an event loop gives as its socket: it may be closed already.
        if isinstance(sock, socket.socket) and isinstance(exc, OSError):
            self._read_rest(sock)
        if self._error is None:
            try:
                self._decoder.end()
            except ProtocolError as error:
                self._error = error
        ended = self._error or exc
        if ended is not None:
            # Its frames refer to what was being sent, and to whoever keeps the error: only the cycle collector would
            # free that.
            ended.__traceback__ = None
        sink = self._sink
        self.let_go()
        sink.channel_ended(ended)

    def _read_rest(self, sock: socket.socket) -> None:
        """Read what the other end wrote before it went: a write to it that failed has ended the reading."""
        with contextlib.suppress(OSError):  # also where nothing is left
            while self._error is None and (n := sock.recv_into(self._decoder.get_buffer())):
                self.buffer_updated(n)

    def let_go(self) -> None:
        """Refer to the owner no more."""
        self._sink = NOBODY
