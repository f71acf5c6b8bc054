"""The bodies that come in on one connection: one object for all of them, one body at a time."""

from __future__ import annotations

from penstock.config import ServerOptions
from penstock.server.application import Application, HttpRequest, Response
from penstock.server.fields import RequestRefused
from penstock.server.http1.bodies import ChunkedBody, SizedBody
from penstock.server.http1.heads import CHUNKED


class BodyIntake:
    """Gathers the body in arrival and reports its bytes as held, or counts the bytes of a body that is skipped.

    Call `expect`, then `feed` until `whole`, then `take`; `drop` ends a body early.  To skip a body, call `skip`, then
    `pass_by` until `skipping_bytes` is 0.
    """

    __slots__ = ("_app", "_body", "_held_bytes", "_max_body", "_max_header", "position", "skipping_bytes")

    def __init__(self, app: Application, options: ServerOptions) -> None:
        self._app = app
        self._max_body = options.max_body
        self._max_header = options.max_header
        self._body: SizedBody | ChunkedBody | None = None
        self._held_bytes = 0
        """Bytes of `_body` that were reported as held."""
        self.position = 0
        """Where the last `feed` stopped in its data."""
        self.skipping_bytes = 0
        """Bytes of a refused body that are still to pass."""

    def expect(self, length: int) -> None:
        """A body of `length` bytes begins with the next byte; `CHUNKED` is one in chunks."""
        self._body = ChunkedBody(self._max_body, self._max_header) if length == CHUNKED else SizedBody(length)

    def feed(self, request: HttpRequest, data: bytes | bytearray, at: int) -> Response | None:
        """Read on from `at` in the body of `request`; the answer that refuses it, or None.

        `position` is then where the body, or `data`, ends.  What follows a refusal is not read.
        """
        body = self._body
        assert body is not None
        self.position = len(data)
        try:
            at = body.feed(data, at)
        except RequestRefused as refused:
            return self._app.refuse(refused.status, refused.detail, request)
        came = len(body.body)
        if not body.done and came > self._held_bytes:
            self._app.hold(request, came - self._held_bytes)
            self._held_bytes = came
            refusal = self._app.overfull(request, came)
            if refusal is not None:
                return refusal
        self.position = at
        return None

    def whole(self) -> bool:
        """Whether the last byte of the body came."""
        return self._body is not None and self._body.done

    def take(self, request: HttpRequest) -> bytearray:
        """The body of `request`, which is whole.  It is no longer reported as held by this connection."""
        assert self._body is not None
        body = self._body.body
        self.drop(request)
        return body

    def drop(self, request: HttpRequest) -> None:
        """Forget a body in arrival, if there is one, and give back what was held for it."""
        self._body = None
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
