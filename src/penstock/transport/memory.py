"""The channel inside one process, for `inline=True`: the same frames, as bytes, through queues.

Frames are encoded and decoded as on a socket, so that `inline=True` also finds what cannot be sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import ProtocolError
from penstock.transport.channel import NOBODY, FrameSink, Receive
from penstock.transport.framing import Frame, FrameDecoder, queue_frames


class MemoryChannel:
    """The coordinator's end.  Make it on the event loop; its `worker_end` belongs to a thread."""

    def __init__(self, sink: FrameSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(slabs=True)  # for a SHORTAGE
        self._to_worker: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._aborted = False
        self._ended = False
        self.wake_worker: Callable[[], None] | None = None
        """Has a worker that listens look into its queue; None where the worker waits for the queue itself."""
        self.worker_end = MemoryWorkerEnd(self, self._to_worker)

    def send(self, buffers: list[Any]) -> None:
        if not self._ended:
            self._put(b"".join(buffers))

    def close(self) -> None:
        self._put(None)

    def _put(self, data: bytes | None) -> None:
        self._to_worker.put(data)
        # Read after the put: a worker that begins to listen sets it first, and then looks into the queue once.
        wake = self.wake_worker
        if wake is not None:
            wake()

    def abort(self) -> None:
        self._aborted = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._to_worker.get_nowait()
        self._put(None)
        self._loop.call_soon(self._end, None)

    def deliver(self, data: bytes | None, error: Exception | None = None) -> None:
        """Take over bytes from the worker's thread, or None at its end."""
        if self._aborted and data is not None:
            raise BrokenPipeError("the coordinator closed the channel")
        try:
            self._loop.call_soon_threadsafe(self._receive, data, error)
        except RuntimeError:
            # The loop was closed while the worker was still at work: nothing is left that could take the bytes.
            raise BrokenPipeError("the coordinator's event loop is closed") from None

    def _receive(self, data: bytes | None, error: Exception | None) -> None:
        if self._ended or self._aborted:
            return
        try:
            if data is None:
                self._decoder.end()
                self._end(error)
                return
            frames = self._decoder.feed(data)
        except ProtocolError as broken:
            self._end(error or broken)
            self.abort()
            return
        for frame in frames:
            self._sink.frame_received(frame)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            sink, self._sink = self._sink, NOBODY
            del self.worker_end  # its thread has it
            self.wake_worker = None
            sink.channel_ended(error)


class MemoryWorkerEnd:
    """The worker's end, for a thread.  Payloads are read-only, as they are in a worker process."""

    def __init__(self, channel: MemoryChannel, inbox: queue.SimpleQueue[bytes | None]) -> None:
        self._channel = channel
        self._inbox = inbox
        self._decoder = FrameDecoder(readonly=True, slabs=True)  # a RECALL comes here too
        self._frames: deque[Frame] = deque()
        self._over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where the frames are handed over, once `listen` was called and until the stream ends."""
        self._listener: Receive | None = None

    def receive(self) -> Frame | None:
        # What has come meanwhile may take back what is to begin next, so all of it is read first.
        while not self._over and not (self._frames and self._inbox.empty()):
            data = self._inbox.get()
            if data is None:
                self._over = True
            else:
                queue_frames(self._frames, self._decoder.feed(data))
        if self._frames:
            return self._frames.popleft()
        self._decoder.end()
        return None

    def listen(self, loop: asyncio.AbstractEventLoop, receive: Receive) -> None:
        self._loop, self._listener = loop, receive
        self._channel.wake_worker = self._wake
        self._wake()

    def _wake(self) -> None:
        """Have the loop take over what is in the queue; called in any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
                loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        """Hand over all that is in the queue."""
        try:
            for frame in self._frames:
                self._hand_over(frame)
            self._frames.clear()
            while not self._over:
                data = self._inbox.get_nowait()
                if data is None:
                    self._over = True
                else:
                    for frame in self._decoder.feed(data):
                        self._hand_over(frame)
            self._decoder.end()
        except queue.Empty:
            return
        except ProtocolError as error:
            self._end_of_listening(error)
        else:
            self._end_of_listening(None)

    def _hand_over(self, frame: Frame) -> None:
        if self._listener is not None:
            self._listener(frame)

    def _end_of_listening(self, error: Exception | None) -> None:
        receive = self._listener
        self._loop = self._listener = self._channel.wake_worker = None
        if receive is not None:
            receive(error)

    def send(self, buffers: list[Any]) -> None:
        self._channel.deliver(b"".join(buffers))

    def close(self, error: Exception | None = None) -> None:
        """End the stream, because of `error` if there is one."""
        self._channel.deliver(None, error)
