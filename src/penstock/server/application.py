"""An HTTP request, its response, and the contract between what carries them and what answers.

A carrier (the native connection, the ASGI adapter) makes an `HttpRequest` and writes its `Response`.  The application
answers through the `Application` Protocol.  It knows no socket, no event loop and no parser.

Every call is made from the event loop's thread and must return soon.  For each request the order is `admit`, then
either a refusal or `handle`, then `answered` exactly once; `cancel` may come any time after `admit` if the client
leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from penstock.core.arriving import ArrivingBody
from penstock.core.payload import Payload
from penstock.core.tenants import USUAL_URGENCY

ATTEMPT: Final = b"x-attempt"
FORWARDED_FOR: Final = b"x-forwarded-for"
LOGGED_FIELDS: Final = (ATTEMPT, FORWARDED_FOR)
"""The header fields that the access log may need after the answer."""
LONGEST_LOGGED: Final = 1024
"""Longer ones are forgotten with the others."""
BODY_TIMEOUTS_PER_BODY: Final = 4
"""A body without a deadline may take this many times `body_timeout`, however steadily its pieces come."""
PROBES: Final = frozenset((b"/livez", b"/readyz", b"/metrics"))
"""The paths that are answered also to a client for whom there is no room; `health_path` is another one."""


# Compiled, so each subclass must be in setup.py's list too: Python refuses an interpreted class below a compiled one.
class HttpRequest:
    """One request: its head as it was read, then its body, then what the application remembers about it.

    `path` and `query` are the two halves of the target, undecoded.  Header names are lower case; the values of a
    repeated field are joined with ", ".  `arrived` is the monotonic time at which the head was complete.
    """

    __slots__ = (
        "arrived", "body", "engine", "formats", "headers", "id", "job_options", "method", "path", "peer", "query",
        "route", "tenant", "ticket", "timeout", "urgency",
    )  # fmt: skip

    def __init__(self, method: str, path: bytes, query: bytes, headers: dict[bytes, bytes], arrived: float) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.arrived = arrived
        self.peer = ""
        """The address of whoever sent it here, or `UNIX_PEER`; set by its carrier where the access log needs it."""
        self.body: bytes | bytearray | memoryview = b""
        self.id: bytes = b""
        """The request id, set by `App.admit`; it comes back in `X-Request-ID` and stands in the log."""
        self.route: Any = None
        """The `Route` that answers, set by `App.admit`; None where no route has the path."""
        self.engine: Any = None
        """The engine that holds what belongs to it, or None where no service does.

        It is set by `App.admit`, and again where the request is given to an engine.  Its service may have been started
        again meanwhile, and bytes must go back to the engine that counts them.
        """
        self.formats: Any = None
        """The `Formats` of its body and of its answer, set by `App.admit` where the route has a choice of them."""
        self.job_options: Any = None
        """The options of `/jobs` that its query and its headers name, by their names, set by `App.admit` there."""
        self.timeout = math.inf
        """The seconds after `arrived` in which an answer is worth something, set by `App.admit`."""
        self.urgency = USUAL_URGENCY
        """How urgent it says that it is, set by `App.admit`; its tenant may be bounded in that."""
        self.tenant = ""
        """The name of its tenant, set by `App.admit`; "" is nobody's."""
        self.ticket: Any = None
        """What `App.cancel` needs to take the request back, once the engine has it."""

    def forget_fields(self) -> None:
        """Let go of the query and the header fields, which may take 64 KiB: few are asked for after the answer."""
        self.query = b""
        fields, self.headers = self.headers, {}
        for name in LOGGED_FIELDS:
            value = fields.get(name)
            if value is not None and len(value) <= LONGEST_LOGGED:
                self.headers[name] = value


class Response:
    """An answer to be written.

    The carrier adds `Content-Length`, `Date` and `Connection`, and leaves the body out for HEAD.  `headers` are further
    fields, with lower-case names.
    """

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        content_type: bytes,
        body: Payload,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.body = body
        self.headers = headers


DROPPED: Final = Response(0, b"", b"")
"""No answer: the carrier ends the connection, or the call, without one."""

Reply: TypeAlias = Callable[[Response], None]


class Application(Protocol):
    """The application, as a connection sees it.

    A Protocol, because a compiled function refuses an argument that is of another class: a test could pass no fake.
    """

    def admit(self, request: HttpRequest) -> Response | None:
        """Judge a request by its head, before its body is read; returns None to go on, or the answer that refuses it.

        Sets what the application remembers of `request`: its id, its route, its formats.
        """
        ...

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Take a request whose body is whole; `reply` is called exactly once, at once or later."""
        ...

    def cancel(self, request: HttpRequest) -> None:
        """The client left before the answer; a `reply` that comes all the same is ignored."""
        ...

    def refuse(self, status: int, detail: str, request: HttpRequest | None = None) -> Response:
        """The answer for what the connection itself refuses; `request` is None where a head made no sense."""
        ...

    def hold(self, request: HttpRequest | None, nbytes: int) -> None:
        """Count bytes of a half-received body.

        A negative number gives them back; the sum of a request ends at 0.
        """
        ...

    def hold_answer(self, request: HttpRequest | None, nbytes: int) -> None:
        """Count bytes of a finished answer that its client has not taken, because it waits for its turn or lies unread.

        A negative number gives them back; the sum of a request ends at 0.
        """
        ...

    def answers_overfull(self, request: HttpRequest | None) -> bool:
        """Whether more bytes of answers are held than may be, by the service that holds those of `request`."""
        ...

    def any_answers_overfull(self) -> bool:
        """Whether `answers_overfull` is true of any request."""
        ...

    def overfull(self, request: HttpRequest, own: int) -> Response | None:
        """The answer that refuses the rest of a body, or None where the body may grow further.

        Asked after `hold`; `own` is how many bytes of this body are held.
        """
        ...

    def piece_for(self, request: HttpRequest, body: ArrivingBody) -> memoryview | None:
        """A piece for a body of which the first bytes came, or all of it: a writable view of `body.announced` bytes.

        None where it goes on inline: it is too small, it came in chunks, there is no room, or nothing of `request` lies
        in shared memory.  Asked at most once for each body, and only for those of 4096 bytes or more.
        """
        ...

    def arrived(self, request: HttpRequest, body: ArrivingBody) -> None:
        """A body that was given a piece is in arrival no more: it is whole, or will not come.

        Told before `handle`.  The piece lives on for as long as anybody has a view of it.
        """
        ...

    def body_due(self, request: HttpRequest) -> float:
        """When a body in arrival must be whole, on the clock of `request.arrived`; inf is no limit."""
        ...

    def answered(self, request: HttpRequest, status: int, nbytes: int) -> None:
        """The answer was written (`nbytes` of body), or the client left first (499, 0)."""
        ...
