"""The worker's end of the channel over a Unix stream socket: a blocking socket.

It has a file of its own because a worker has no event loop: asyncio, and ssl with it, would cost each one several MB.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from penstock.transport.framing import Frame, FrameDecoder

MAX_BUFFERS = 1024
"""Most buffers that one sendmsg takes: IOV_MAX on Linux and macOS."""


class SocketWorkerEnd:
    """The worker's end, over a blocking socket.  Payloads are read-only, so that a batch can be run again."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = FrameDecoder(readonly=True)
        self._frames: deque[Frame] = deque()

    def receive(self) -> Frame | None:
        while not self._frames:
            n = self._sock.recv_into(self._decoder.get_buffer())
            if n == 0:
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

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
