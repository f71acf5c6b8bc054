"""The worker's end of the channel over a Unix stream socket: a blocking socket.

It has a file of its own because a worker has no event loop: asyncio, and ssl with it, would cost each one several MB.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ProtocolError
from penstock.transport.channel import Receive
from penstock.transport.framing import MAX_BODY_BYTES, MAX_ITEMS, Frame, FrameDecoder, Kind, queue_frames

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

MAX_BUFFERS = 1024
"""Most buffers that one sendmsg takes: IOV_MAX on Linux and macOS."""
RECALL: Final = Kind.RECALL
LOOK_AGAIN_SECONDS: Final = 0.001
"""How long after its last read a worker looks whether more has come, before it begins a batch that it has read already.

That batch may have been taken back meanwhile.  To look costs a system call, which is nothing beside a batch that took
so long, and much beside the batches of a stage of microseconds.
"""


class SocketWorkerEnd:
    """The worker's end, over a blocking socket.  Payloads are read-only, so that a batch can be run again.

    `max_body` is the most bytes of a frame's body, until `bound` says otherwise.  With `slabs` frames may name pieces
    of slabs.
    """

    def __init__(self, sock: socket.socket, *, max_body: int = MAX_BODY_BYTES, slabs: bool = False) -> None:
        self._sock = sock
        self._decoder = FrameDecoder(max_body=max_body, readonly=True, slabs=slabs)
        self._frames: deque[Frame] = deque()
        self._sending = threading.Lock()
        """Held while a frame is written: another thread sends what the stage counts."""
        self._read_at = 0.0
        """When the socket was read last, if frames were left of that."""
        self.ended = False
        """Whether the end of the stream was read, be it inside a frame."""
        self._loop: AbstractEventLoop | None = None
        """The loop that reads the socket, once `listen` was called and until the stream ends."""
        self._listener: Receive | None = None

    def receive(self) -> Frame | None:
        frames = self._frames
        if frames:
            if time.monotonic() - self._read_at >= LOOK_AGAIN_SECONDS:
                self._look_again()
            return frames.popleft()
        while True:
            buffer = self._decoder.get_buffer()
            n = self._sock.recv_into(buffer)
            if n == 0:
                self.ended = True
                self._decoder.end()
                return None
            found = self._decoder.advance(n)
            full = n == len(buffer)
            if len(found) == 1 and not full and found[0].kind is not RECALL:  # as mostly
                return found[0]
            queue_frames(frames, found)
            if frames:
                if full:
                    self._look_again()
                self._read_at = time.monotonic()
                return frames.popleft()

    def _look_again(self) -> None:
        """Read what has come meanwhile, without waiting: it may take back what is to begin next."""
        readable = select.poll()  # no flag of `recv` would do: a socket with a timeout waits all the same
        readable.register(self._sock, select.POLLIN)
        full = True
        while full and readable.poll(0):
            buffer = self._decoder.get_buffer()
            n = self._sock.recv_into(buffer)
            if n:  # else the stream has ended, which the next read says too
                queue_frames(self._frames, self._decoder.advance(n))
            full = n == len(buffer)
        self._read_at = time.monotonic()

    def listen(self, loop: AbstractEventLoop, receive: Receive) -> None:
        self._loop, self._listener = loop, receive
        loop.call_soon(self._begin_to_listen)

    def _begin_to_listen(self) -> None:
        """Hand over the frames that `receive` has read already, and read on."""
        loop = self._loop
        if loop is not None:
            self._hand_over(list(self._frames))
            self._frames.clear()
            loop.add_reader(self._sock.fileno(), self._read)

    def _read(self) -> None:
        """Read once, which does not wait: the socket is readable."""
        buffer = self._decoder.get_buffer()
        try:
            n = self._sock.recv_into(buffer)
            if n:
                self._hand_over(self._decoder.advance(n))
                return
            self.ended = True
            self._decoder.end()
        except (OSError, ProtocolError) as error:
            self._end_of_listening(error)
        else:
            self._end_of_listening(None)

    def _hand_over(self, frames: list[Frame]) -> None:
        receive = self._listener
        if receive is not None:
            for frame in frames:
                receive(frame)

    def _end_of_listening(self, error: Exception | None) -> None:
        loop, receive = self._loop, self._listener
        self._loop = self._listener = None
        if loop is not None:
            loop.remove_reader(self._sock.fileno())
        if receive is not None:
            receive(error)

    def send(self, buffers: list[Any]) -> None:
        with self._sending:
            self._write(buffers)

    def _write(self, buffers: list[Any]) -> None:
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
