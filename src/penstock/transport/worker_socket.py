"""The worker's end of the channel over a Unix stream socket: a blocking socket.

It has a file of its own because a worker has no event loop: asyncio, and ssl with it, would cost each one several MB.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from penstock.transport.framing import MAX_BODY_BYTES, MAX_ITEMS, Frame, FrameDecoder

MAX_BUFFERS = 1024
"""Most buffers that one sendmsg takes: IOV_MAX on Linux and macOS."""


class SocketWorkerEnd:
    """The worker's end, over a blocking socket.  Payloads are read-only, so that a batch can be run again.

    `max_body` is the most bytes of a frame's body, until `bound` says otherwise.  With `slabs` frames may name pieces
    of slabs.
    """

    def __init__(self, sock: socket.socket, *, max_body: int = MAX_BODY_BYTES, slabs: bool = False) -> None:
        self._sock = sock
        self._decoder = FrameDecoder(max_body=max_body, readonly=True, slabs=slabs)
        self._frames: deque[Frame] = deque()
        self.ended = False
        """Whether the end of the stream was read, be it inside a frame."""

    def receive(self) -> Frame | None:
        while not self._frames:
            n = self._sock.recv_into(self._decoder.get_buffer())
            if n == 0:
                self.ended = True
                self._decoder.end()
                return None
            self._frames.extend(self._decoder.advance(n))
        return self._frames.popleft()

    def send(self, buffers: list[Any]) -> None:
        if len(buffers) == 1:
            self._sock.sendall(buffers[0])
            return
        left = deque(memoryview(b).cast("B") for b in buffers if len(b))
        while left:
            sent = self._sock.sendmsg([left[i] for i in range(min(len(left), MAX_BUFFERS))])
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = left[0][sent:]

    def bound(self, max_body: int) -> None:
        """Set how many bytes the body of a frame may have from now on."""
        self._decoder.bound(max_body=max_body, max_items=MAX_ITEMS)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
