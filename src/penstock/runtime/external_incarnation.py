"""One connection of a worker from outside: an incarnation that is accepted, not started.

It belongs to the door until the worker has said what it is, and to a worker's slot from then on.  What the worker says
in JSON is handed to the slot as our own workers say it, so that the slot needs to know little of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NoReturn, Protocol

from penstock.core.clock import Clock
from penstock.errors import ProtocolError
from penstock.runtime.incarnation import Incarnation, IncarnationOwner
from penstock.transport.channel import StreamDecoder
from penstock.transport.external_channel import ExternalChannel
from penstock.transport.external_messages import (
    FAILURE_BYTES,
    ExternalFailure,
    ExternalHello,
    pack_json,
    read_external_failure,
    unpack_json,
)
from penstock.transport.framing import Frame, Kind, Status, control_frame, encode_control
from penstock.transport.messages import Counts, Hello, pack

OK: Final = int(Status.OK)
EXPIRED: Final = int(Status.EXPIRED)
LARGEST_PID: Final = (1 << 31) - 1
STOPS: Final = "the service is stopping"


class ExternalPeer(Incarnation, Protocol):
    """A worker from outside, of either protocol.  Until `serve` it belongs to its `Greeter`."""

    def serve(self, owner: IncarnationOwner, *, max_body: int, max_items: int) -> None:
        """Report to `owner` from now on, as an incarnation that was started does; first of all that it is there.

        A frame may claim at most `max_body` bytes and `max_items` items.  Nothing is reported before this has returned.
        """


class ServiceStops(Exception):
    """No worker is taken any more: it is told nothing, and may serve the next server."""


class Greeter(Protocol):
    """Who has a worker from outside until it has a slot."""

    def greeted(self, peer: ExternalPeer, hello: ExternalHello) -> None:
        """`peer` has said what it is.

        Raises:
            ProtocolError: it is refused.
            ServiceStops: nobody is taken.
        """

    def refused(self, peer: ExternalPeer, why: str) -> None:
        """`peer` was cut off before it had a slot, and was told `why`."""

    def left(self, peer: ExternalPeer) -> None:
        """The connection of `peer` has ended before it had a slot."""


class ExternalIncarnation:
    """A worker from outside that speaks the protocol of `transport.framing`, or one that a `decoder` makes of it."""

    def __init__(self, greeter: Greeter, clock: Clock, pid: int | None, decoder: StreamDecoder | None = None) -> None:
        self.channel = ExternalChannel(self, self._broken, decoder)
        self._greeter = greeter
        self._clock = clock
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._owner: IncarnationOwner | None = None
        self._bounds = 0, 0
        """The most bytes and items that a frame may claim once the worker is READY."""
        self._greeted = False
        """Whether the worker has said what it is, and has a slot."""
        self._serving = False
        """Whether the slot has been told that the worker is there."""
        self._launched = False
        """Whether the worker was told what to be: before that it has nothing to say."""
        self._over = ""
        """Cause: why this connection has ended for its owner; "" while it goes on."""

    @property
    def pid(self) -> int | None:
        return self._pid

    def serve(self, owner: IncarnationOwner, *, max_body: int, max_items: int) -> None:
        self._owner = owner
        self._bounds = max_body, max_items
        self.channel.bound(max_body=max(max_body, FAILURE_BYTES), max_items=max_items)
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        owner = self._owner
        assert owner is not None
        self._serving = True
        if self._over:
            self._report()
        else:
            owner.frame_received(control_frame(Kind.HELLO, pack(Hello(self._pid or 0))))

    def send(self, buffers: list[Any]) -> None:
        self._launched = True  # the first that a slot sends is the LAUNCH
        self.channel.send(buffers)

    def close(self) -> None:
        self.channel.close()

    def kill(self, why: str | None) -> None:
        if why is None:
            self._end(STOPS, b"")  # it reads the end of the stream, as of any server that goes
        else:
            self._end(why, self.last_words(why))

    def strike(self) -> None:
        self.kill("chaos")

    def abandon(self) -> None:
        self.channel.shut()

    async def stacks(self) -> str:
        return ""

    # -- what comes ---------------------------------------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        """A whole frame has come, in whatever state this is."""
        if self._over:
            return
        try:
            if not self._greeted:
                self._greet(frame)
            elif self._launched:
                assert self._owner is not None
                _translate(frame)
                self._owner.frame_received(frame)
                self._go_on_after(frame.kind)
            else:
                _out_of_turn("a worker must wait for its LAUNCH")
        except ProtocolError as error:
            self._broken(error)
        except ServiceStops:
            self.kill(None)

    def _greet(self, frame: Frame) -> None:
        if frame.kind is not Kind.HELLO:
            _out_of_turn(f"the first frame must be a HELLO, got a {frame.kind.name}")
        hello = unpack_json(frame.payloads[0], ExternalHello)
        if self._pid is None and 0 < hello.pid <= LARGEST_PID:
            self._pid = hello.pid  # the kernel does not tell it of a process in another container
        self._greeter.greeted(self, hello)
        self._greeted = True

    def _go_on_after(self, kind: Kind) -> None:
        """What follows from a frame of the handshake."""
        if kind is Kind.READY:  # from now on there is no FAILED, which may be longer
            max_body, max_items = self._bounds
            self.channel.bound(max_body=max_body, max_items=max_items)
        elif kind is Kind.FAILED:  # it has nothing more to say: one that does not close must not keep its number
            self._end("it could not be set up", b"")

    def _broken(self, error: ProtocolError) -> None:
        """The worker sent what none may send."""
        if self._serving:
            assert self._owner is not None
            self._owner.broken(error)  # which kills it
        else:
            self.kill(str(error))

    def channel_ended(self, error: Exception | None) -> None:
        """The worker has closed its end, or the connection is gone."""
        if self._over:
            return  # whoever has this was told
        self._over = str(error) if isinstance(error, ProtocolError) else "it closed its connection"
        if not self._greeted:
            self._greeter.left(self)
        elif self._serving:
            self._report()

    # -- the end ------------------------------------------------------------------------------------------------

    def _end(self, why: str, last: bytes) -> None:
        """Send the worker the `last` bytes, and report its end, because of `why`, without waiting for it."""
        if self._over:
            return
        self._over = why or "cut off"
        self.channel.part(last, self._clock)
        if not self._greeted:
            self._greeter.refused(self, self._over)
        elif self._serving:
            self._loop.call_soon(self._report)

    def last_words(self, why: str) -> bytes:
        """What a worker is sent that is cut off because of `why`."""
        words: bytes = encode_control(Kind.FAILED, pack_json(ExternalFailure(why)))[0]
        return words

    def _report(self) -> None:
        owner, self._owner = self._owner, None  # the slot refers to this object: else neither would go by itself
        assert owner is not None
        owner.ended(self._over)


def _out_of_turn(why: str) -> NoReturn:
    raise ProtocolError(why)


def _translate(frame: Frame) -> None:
    """Put what our own workers would have said in place of what is JSON in `frame`; ProtocolError where it is not."""
    kind = frame.kind
    if kind is Kind.ANSWERS:
        statuses = frame.statuses
        if not any(statuses):
            return
        for i, status in enumerate(statuses):
            if status not in (OK, EXPIRED):
                frame.payloads[i] = memoryview(pack(read_external_failure(frame.payloads[i])))
    elif kind is Kind.COUNTS:
        frame.payloads = [memoryview(pack(unpack_json(frame.payloads[0], Counts)))]
    elif kind is Kind.FAILED or (kind is Kind.CHECKED and len(frame.payloads[0])):
        frame.payloads = [memoryview(pack(read_external_failure(frame.payloads[0])))]
