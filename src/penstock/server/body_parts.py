"""The body of a request that another server hands over in parts, as the ASGI and the WSGI app take it.

Everything is called on the event loop's thread.
"""

from __future__ import annotations

from penstock.core.arriving import ArrivingBody
from penstock.core.payload import LEAST_LEASED, Buffer
from penstock.server.app import App
from penstock.server.application import HttpRequest
from penstock.server.fields import read_length


class BodyParts:
    """One body: `add` each part, then ask for the `whole`; `drop` it where it will not come, or was taken.

    Where its length was announced and its place is in a slab, each part is copied there as it comes.
    """

    def __init__(self, app: App, request: HttpRequest) -> None:
        self._app = app
        self._request = request
        self._parts: list[Buffer] = []
        """What does not lie in a slab."""
        self._body: ArrivingBody | None = None
        """What does."""
        self._came = 0

    def add(self, part: bytes) -> None:
        """The next part came; the head was judged before."""
        if not part:
            return
        if not self._came:
            self._begin(part)
        else:
            self._go_on(part)
        self._came += len(part)

    def _begin(self, part: bytes) -> None:
        length = read_length(self._request.headers.get(b"content-length"))
        if length >= max(len(part), LEAST_LEASED):
            body = ArrivingBody(length)
            body.coming(len(part), self._app.clock.now())
            body.piece = self._app.piece_for(self._request, body)
            if body.piece is not None:
                body.put(part)
                self._body = body
                return
        self._parts.append(part)

    def _go_on(self, part: bytes) -> None:
        body = self._body
        if body is not None and body.came + len(part) > body.announced:
            self._take_out()  # the server in front hands over more than it has announced
            body = None
        if body is None:
            self._parts.append(part)
        else:
            body.coming(len(part), self._app.clock.now())
            body.put(part)

    def whole(self) -> Buffer:
        """All that came."""
        if self._body is not None:
            if self._body.whole:
                return self._body.content()
            self._take_out()
        parts = self._parts
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(content) >= LEAST_LEASED and b"content-length" not in self._request.headers:
            self._app.piece_for(self._request, ArrivingBody(len(content), chunked=True))
        return content

    def drop(self) -> None:
        """Let go of what came."""
        self._parts.clear()
        body, self._body = self._body, None
        if body is not None:
            body.piece = None
            self._app.arrived(self._request, body)

    def _take_out(self) -> None:
        """Go on without a slab: the length was not that which was announced."""
        assert self._body is not None
        content = bytes(self._body.content()[: self._body.came])
        self.drop()
        self._parts.append(content)
