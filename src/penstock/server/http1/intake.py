"""The bodies that come in on one connection: one object for all of them, one body at a time."""

from __future__ import annotations

from typing import Final

from penstock.config import ServerOptions
from penstock.core.arriving import ArrivingBody
from penstock.core.payload import Buffer
from penstock.server.application import Application, HttpRequest, Response
from penstock.server.fields import RequestRefused
from penstock.server.http1.bodies import ChunkedBody
from penstock.server.http1.heads import CHUNKED

LARGE_BODY_BYTES: Final = 4096
"""The shortest body that may lie in a slab: a page of it.  Shorter ones cost nothing but a comparison."""


class BodyIntake:
    """Gathers the body in arrival and reports its bytes as held, or counts the bytes of a body that is skipped.

    Call `expect`, then `feed` until `whole`, then `take`; `drop` ends a body early.  Where `room` gives some, bytes may
    be received there, and `received` is called in place of `feed`.  A body that came with its head needs only
    `take_at_once`.  To skip a body, call `skip`, then `pass_by` until `skipping_bytes` is 0.
    """

    __slots__ = (
        "_app",
        "_chunked",
        "_held_bytes",
        "_max_body",
        "_max_header",
        "_placed",
        "_sized",
        "position",
        "skipping_bytes",
    )

    def __init__(self, app: Application, options: ServerOptions) -> None:
        self._app = app
        self._max_body = options.max_body_bytes
        self._max_header = options.max_header_bytes
        self._chunked: ChunkedBody | None = None
        self._sized: ArrivingBody | None = None
        """The body in arrival is one of these two, or neither."""
        self._placed = False
        """Whether it was given a piece, which it may have lost."""
        self._held_bytes = 0
        """Bytes of it that were reported as held."""
        self.position = 0
        """Where the last `feed` stopped in its data."""
        self.skipping_bytes = 0
        """Bytes of a refused body that are still to pass."""

    def expect(self, length: int) -> None:
        """A body of `length` bytes begins with the next byte; `CHUNKED` is one in chunks."""
        if length == CHUNKED:
            self._chunked = ChunkedBody(self._max_body, self._max_header)
        else:
            self._sized = ArrivingBody(length)

    def feed(self, request: HttpRequest, data: bytes | bytearray, at: int, now: float) -> Response | None:
        """Read on from `at` in the body of `request`; the answer that refuses it, or None.

        `position` is then where the body, or `data`, ends.  What follows a refusal is not read.
        """
        self.position = len(data)
        sized, chunked = self._sized, self._chunked
        if sized is not None:
            at = self._feed_sized(request, sized, data, at, now)
            refusal = self._hold(request, sized.came)
        else:
            assert chunked is not None
            try:
                at = chunked.feed(data, at)
            except RequestRefused as refused:
                return self._app.refuse(refused.status, refused.detail, request)
            refusal = self._hold(request, len(chunked.body))
        if refusal is None:
            self.position = at
        return refusal

    def _feed_sized(
        self, request: HttpRequest, body: ArrivingBody, data: bytes | bytearray, at: int, now: float
    ) -> int:
        """Read on from `at`; returns where the body, or `data`, ends.  With its first byte it is found a place."""
        first = body.came == 0
        stop = min(len(data), at + body.announced - body.came)
        body.coming(stop - at, now)
        if first and body.announced >= LARGE_BODY_BYTES:
            body.piece = self._app.piece_for(request, body)
            self._placed = body.piece is not None
        body.put(memoryview(data)[at:stop])
        return stop

    def received(self, request: HttpRequest, nbytes: int, now: float) -> Response | None:
        """Note that `nbytes` of the body of `request` came into `room`; the answer that refuses it, or None."""
        body = self._sized
        assert body is not None
        body.coming(nbytes, now)
        return self._hold(request, body.came)

    def _hold(self, request: HttpRequest, came: int) -> Response | None:
        """Report what came of a body that is not whole yet; the answer that refuses the rest, or None."""
        if self.whole() or came <= self._held_bytes:
            return None
        self._app.hold(request, came - self._held_bytes)
        self._held_bytes = came
        return self._app.overfull(request, came)

    def room(self) -> memoryview | None:
        """Where the rest of the body in arrival may be received, or None: what comes next is for `feed`."""
        body = self._sized
        return None if body is None else body.room()

    def large(self) -> bool:
        """Whether the body in arrival lies in a piece, or may do so from its first byte on."""
        body = self._sized
        if body is None:
            return False
        return body.piece is not None or (body.came == 0 and body.announced >= LARGE_BODY_BYTES)

    def whole(self) -> bool:
        """Whether the last byte of the body came."""
        sized, chunked = self._sized, self._chunked
        return sized.whole if sized is not None else chunked is not None and chunked.done

    def take(self, request: HttpRequest) -> Buffer:
        """The body of `request`, which is whole.  It is no longer reported as held by this connection."""
        sized, chunked = self._sized, self._chunked
        body: Buffer
        if sized is not None:
            body = sized.content()
        else:
            assert chunked is not None
            body = chunked.body
            if len(body) >= LARGE_BODY_BYTES:
                self._app.piece_for(request, ArrivingBody(len(body), chunked=True))
        self.drop(request)
        return body

    def take_at_once(self, request: HttpRequest, data: bytes | bytearray, at: int, length: int, now: float) -> Buffer:
        """The body of `request`, of `length` bytes, which came with its head and lies in `data` from `at` on."""
        body = ArrivingBody(length)
        body.coming(length, now)
        piece = body.piece = self._app.piece_for(request, body)
        if piece is None:
            return data[at : at + length]
        body.put(memoryview(data)[at : at + length])
        body.piece = None
        self._app.arrived(request, body)
        return piece

    def drop(self, request: HttpRequest) -> None:
        """Forget a body in arrival, if there is one, and give back what was held for it."""
        body = self._sized
        self._sized = None
        self._chunked = None
        if body is not None and self._placed:
            self._placed = False
            body.piece = None
            self._app.arrived(request, body)
        if self._held_bytes:
            self._app.hold(request, -self._held_bytes)
            self._held_bytes = 0

    def skip(self, nbytes: int) -> None:
        """Let the next `nbytes` bytes, a refused body, pass."""
        self.skipping_bytes = nbytes

    def pass_by(self, nbytes: int) -> int:
        """Count `nbytes` bytes that came; returns how many of them belong to the skipped body."""
        passed = min(self.skipping_bytes, nbytes)
        self.skipping_bytes -= passed
        return passed
