"""Carry frames between the coordinator and one worker.

The coordinator's end never blocks: it is told of frames through `FrameSink`.  The worker's end blocks: the worker of
a plain stage answers one frame before it reads the next.  That of a waiting stage has its event loop listen to the end.
Each end has a socket and an in-memory implementation, and both pass `penstock.testing.channels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from penstock.transport.framing import Frame

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Receive: TypeAlias = Callable[[Frame | Exception | None], None]
"""Takes over each frame as it comes; then, once, the end of the stream: None, or the error that broke it."""


class StreamDecoder(Protocol):
    """Turns the bytes that come into frames, whatever they are on the wire."""

    def bound(self, *, max_body: int, max_items: int) -> None:
        """Set the most bytes and items that a message may claim from now on."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong; it is never empty."""

    def advance(self, n: int) -> list[Frame]:
        """What `n` bytes more complete; ProtocolError if they are not what may come."""

    def end(self) -> None:
        """The stream has ended; ProtocolError if that was amid a message."""


class FrameSink(Protocol):
    """The owner of the coordinator's end, which is told what comes through it."""

    def frame_received(self, frame: Frame) -> None:
        """A whole frame has come."""

    def channel_ended(self, error: Exception | None) -> None:
        """Nothing more will come: called once, after the last frame.  `error` says why if the stream broke."""


class Nobody:
    """The sink of a channel that has ended, in place of its owner.

    Owner and channel refer to each other, and the channel has a read buffer of 256 KiB.  As long as they did, only the
    cycle collector would free it, which a server has made rare.
    """

    def frame_received(self, frame: Frame) -> None:
        """Drop it."""

    def channel_ended(self, error: Exception | None) -> None:
        """Tell no further."""


NOBODY: Final = Nobody()


class Channel(Protocol):
    """The coordinator's end."""

    def send(self, buffers: list[Any]) -> None:
        """Write one frame without blocking; does nothing once the other end has gone."""

    def close(self) -> None:
        """End the stream after what was sent; the worker then reads end-of-stream."""

    def abort(self) -> None:
        """Drop the channel at once, and all that is unread or unsent; `channel_ended` follows."""


class WorkerEnd(Protocol):
    """The worker's end."""

    def receive(self) -> Frame | None:
        """Wait for the next frame that is no RECALL; None at end-of-stream.

        A BATCH says which of its items were `recalled`, as far as that has come before it.

        Raises:
            ProtocolError: the stream ends inside a frame, or carries something else.
        """

    def send(self, buffers: list[Any]) -> None:
        """Write one frame, from any thread, and wait until it is taken.

        Raises:
            BrokenPipeError: the coordinator has gone.
        """

    def listen(self, loop: AbstractEventLoop, receive: Receive) -> None:
        """Have `receive` called in `loop`, whose thread calls this, for each frame from now on; `self.receive` is over.

        It gets the frames as they come, RECALL and CANCEL too: the worker has to look itself which batches these are
        about.  The end of the stream comes last, and once.  It is None, a ProtocolError as `self.receive` raises it, or
        the OSError of a broken connection.
        """
