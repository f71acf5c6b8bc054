"""An HTTP request and its response, as `App` sees them: no socket, no event loop, no parser.

The native connection and the ASGI adapter both make `HttpRequest`s and carry `Response`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias


class HttpRequest:
    """One request: its head as it was read, then its body, then whatever `App` remembers about it.

    `path` and `query` are the two halves of the target, undecoded; header names are lower case, a repeated field's
    values are joined with ", "; `arrived` is the monotonic time at which its head was complete.
    """

    __slots__ = ("arrived", "body", "headers", "id", "method", "path", "query", "route", "ticket")

    def __init__(self, method: str, path: bytes, query: bytes, headers: Mapping[bytes, bytes], arrived: float) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.arrived = arrived
        self.body: bytes | bytearray | memoryview = b""
        self.id: bytes = b""
        """The request id, set by `App.admit`; it comes back in `X-Request-ID` and stands in the log."""
        self.route: Any = None
        """Set by `App.admit`; meaningless to whoever carries the request."""
        self.ticket: Any = None
        """What `App.cancel` needs to take the request back, once the engine has it."""


class Response:
    """An answer to be written.

    `body` is one bytes-like object or a list of them to be written in order; the carrier adds `Content-Length`,
    `Date` and `Connection`, and leaves the body out for HEAD.  `headers` are further fields, lower-case names.
    """

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        content_type: bytes,
        body: Any,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.body = body
        self.headers = headers


Reply: TypeAlias = Callable[[Response], None]
