"""One connection of a worker that speaks the old batching protocol: an incarnation that is accepted, not started.

What is said is decided in `transport.ventu_`.  Here the frames that a slot sends go in, and messages go out.
"""

from __future__ import annotations

from typing import Any

from penstock.core.clock import Clock
from penstock.runtime.external_incarnation import ExternalIncarnation, Greeter
from penstock.transport.framing import Frame, FrameDecoder, Kind, control_frame
from penstock.transport.ventu_ import VentuExchange


class VentuIncarnation(ExternalIncarnation):
    """A worker from outside that speaks the old batching protocol.

    It has no DETACH and no `health`, and is told nothing where it is cut off.
    """

    def __init__(self, greeter: Greeter, clock: Clock, pid: int | None) -> None:
        self._exchange = VentuExchange(pid or 0)
        super().__init__(greeter, clock, pid, self._exchange)
        self._ours = FrameDecoder()
        """Reads what the slot sends."""
        self._closing = False
        """Whether the stream is to end with the answer to the last batch."""
        self._sent_at = 0.0

    def send(self, buffers: list[Any]) -> None:
        self._launched = True
        for frame in self._ours.feed(b"".join(buffers)):
            self._take_over(frame)

    def _take_over(self, frame: Frame) -> None:
        # What follows is reported later: the slot that sends this is not done yet.
        if frame.kind is Kind.LAUNCH:
            self._loop.call_soon(self.frame_received, control_frame(Kind.READY, b""))
        else:
            assert frame.kind is Kind.BATCH, f"the old batching protocol has no {frame.kind.name}"
            self._exchange.put(frame)
            self._loop.call_soon(self._go_on)

    def frame_received(self, frame: Frame) -> None:
        """A whole message has come, as the frame that says the same."""
        if frame.kind is not Kind.ANSWERS:
            super().frame_received(frame)
            return
        frame.seconds = self._clock.now() - self._sent_at
        super().frame_received(frame)
        self._go_on()

    def _go_on(self) -> None:
        """Send the next batch if one is due; answer those before it that need not be sent."""
        while not self._over:
            match self._exchange.take(self._clock.now()):
                case Frame() as answers:
                    super().frame_received(answers)
                case None:
                    break
                case message:
                    self._sent_at = self._clock.now()
                    self.channel.send([message])
        if self._closing and self._exchange.idle:
            self.channel.close()

    def close(self) -> None:
        self._closing = True
        self._loop.call_soon(self._go_on)

    def last_words(self, why: str) -> bytes:  # noqa: ARG002  # it cannot hear it
        """Nothing: the protocol has no message that says why."""
        return b""
