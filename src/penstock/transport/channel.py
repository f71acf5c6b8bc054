"""Carry frames between the coordinator and one worker.

The coordinator's end never blocks: it is told of frames through `FrameSink`.  The worker's end blocks: a worker
answers one frame before it reads the next.  Each end has a socket and an in-memory implementation, and both pass
`penstock.testing.channels`.
"""

from __future__ import annotations

from typing import Any, Protocol

from penstock.transport.framing import Frame


class FrameSink(Protocol):
    """Whoever owns the coordinator's end."""

    def frame_received(self, frame: Frame) -> None:
        """A whole frame has come."""

    def channel_ended(self, error: Exception | None) -> None:
        """Nothing more will come: called once, after the last frame.  `error` says why if the wire broke."""


class Channel(Protocol):
    """The coordinator's end."""

    def send(self, buffers: list[Any]) -> None:
        """Write one frame; never blocks, silently does nothing once the other end has gone."""

    def close(self) -> None:
        """End the stream after what was sent; the worker reads end-of-stream."""

    def abort(self) -> None:
        """Drop the channel at once, with what is unread and unsent; `channel_ended` follows."""


class WorkerEnd(Protocol):
    """The worker's end."""

    def receive(self) -> Frame | None:
        """The next frame, waiting for it; None at end-of-stream."""

    def send(self, buffers: list[Any]) -> None:
        """Write one frame, waiting until it is taken; raises BrokenPipeError if the coordinator has gone."""
