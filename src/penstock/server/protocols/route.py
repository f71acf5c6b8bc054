"""What each path does: refuse at the head, or take the body and call `reply` exactly once.

A route refuses what it can before the body is read: a format it does not know, a timeout that is no number, a service
that is not ready or full.  What it accepts goes to the engine, and `reply` is called when the engine is done with it.
The path of a single item makes no task, future or timer, and looks each pair of format headers up in a table instead of
parsing it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Final

from penstock.codec.formats import Codec
from penstock.codec.media_types import MAX_PARTS, MAX_VALUE_BYTES, answer_codec, content_codec, media_names, too_long
from penstock.codec.text import cut_middle
from penstock.config import ServerOptions
from penstock.core.counters import SECONDS, Histogram, count_refusal
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import NotReady, RequestError
from penstock.hosting.servable import HostedEngine, Servable
from penstock.server.application import HttpRequest, Reply, Response
from penstock.server.fields import judge_encoding, read_length
from penstock.server.path_pattern import PathPattern
from penstock.server.request_terms import malformed_limit, read_time_limit, read_urgency
from penstock.server.status import Problems, names_messagepack

PAGE_BODY_BYTES: Final = 4096
"""Largest body of a request for a page.  No page reads one; a client that sends a small one with every request may.

Bodies for a service count towards its `max_queued_bytes`; those for pages have no other bound than this.
"""

_MAX_PAIRS = 128
"""Most pairs of format headers that a route remembers.  One more empties the table: they are then negotiated again."""
_MAX_PAIR_BYTES = 256
"""Longest pair of format headers that is remembered."""
_TOO_LONG = f"header is longer than {MAX_VALUE_BYTES} bytes or has more than {MAX_PARTS} parts"
_TAKES_FILES = "this service accepts only jobs with an input_url"
_SHOWN_BYTES = 200
"""Most of a Content-Type that a refusal repeats."""


class Traffic:
    """What became of the requests to one route: plain numbers, read at scrape time."""

    __slots__ = ("route", "seconds", "service", "statuses")

    def __init__(self, service: str, route: str) -> None:
        self.service = service
        self.route = route
        self.statuses: dict[int, int] = {}
        self.seconds = Histogram(SECONDS)


class Formats:
    """The format of a request's body and of its answer; `media` is the answer's Content-Type.

    With `names_messagepack` the client may prefer problems in MessagePack.
    """

    __slots__ = ("codec_in", "codec_out", "media", "names_messagepack")

    def __init__(self, codec_in: Codec, codec_out: Codec, media: bytes, names_messagepack: bool) -> None:
        self.codec_in = codec_in
        self.codec_out = codec_out
        self.media = media
        self.names_messagepack = names_messagepack


# Compiled, so each subclass must be in setup.py's list too: Python refuses an interpreted class below a compiled one.
class Route:
    """A path and one method that it answers, and the numbers of its traffic.  HEAD is answered where GET is.

    The path may have variables: ``/jobs/{id}``, see `PathPattern`.  `App` takes any number of routes besides its own.
    """

    guarded = True
    """Whether this path asks for an API key on a server that has keys."""
    bounded = False
    """Whether it is refused while too many bytes of pages lie unread."""
    passes_body_on = False
    """Whether a body becomes an item as it came, so that it may lie in shared memory."""

    def __init__(self, method: str, service: str, path: str) -> None:
        self.method = method
        self.path = path
        self.pattern = PathPattern(path)
        self.allow = b""
        """The methods of its path, as `RouteTable` finds them."""
        self.same_path: tuple[Route, ...] = (self,)
        """The routes of its path, one for each method."""
        self.operation: dict[str, Any] | None = None
        """What the OpenAPI document says of it, as an operation object, where `pages.openapi` does not know it."""
        self.traffic = Traffic(service, path)

    @property
    def methods(self) -> list[str]:
        """The methods that it answers."""
        return ["GET", "HEAD"] if self.method == "GET" else [self.method]

    def for_method(self, method: str) -> Route:
        """The route of the same path that answers `method`; this one where none does."""
        for route in self.same_path:
            if method in route.methods:
                return route
        return self

    def values(self, request: HttpRequest) -> list[str]:
        """What stands in the places of the path's variables, in their order."""
        found: list[str] | None = self.pattern.values(request.path)
        assert found is not None, "the request has another path"
        return found

    def judge_body(self, request: HttpRequest, nbytes: int) -> Response | None:  # noqa: ARG002
        """The refusal of a request whose body has `nbytes` so far, asked where it is of no engine; None to go on."""
        return None

    def admit(self, request: HttpRequest) -> Response | None:
        """The refusal of the request by its head, or None to go on."""
        raise NotImplementedError

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer the request, now or later, exactly once."""
        raise NotImplementedError

    def cancel(self, request: HttpRequest) -> None:
        """Withdraw a request whose client has left."""

    def engine(self) -> HostedEngine | None:
        """The engine that this route leads to, or None."""
        return None


class PageRoute(Route):
    """A page that needs no model: health, metrics, documents."""

    def __init__(
        self,
        path: str,
        make: Callable[[HttpRequest], Response],
        problems: Problems,
        *,
        guarded: bool = True,
        bounded: bool = True,
        method: str = "GET",
    ) -> None:
        super().__init__(method, "", path)
        self.guarded = guarded
        self.bounded = bounded
        self._make = make
        self._problems = problems

    def admit(self, request: HttpRequest) -> Response | None:
        """Refuses only a large body (413): the health pages must answer when nothing else does."""
        request.route = self
        return self.judge_body(request, read_length(request.headers.get(b"content-length")))

    def judge_body(self, request: HttpRequest, nbytes: int) -> Response | None:
        """The refusal of a request whose body has, or will have, so many bytes; None to go on."""
        if nbytes <= PAGE_BODY_BYTES:
            return None
        detail = f"this path does not accept a body larger than {PAGE_BODY_BYTES} bytes"
        return self._problems.refuse(413, detail, request.id)

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer at once."""
        reply(self._make(request))


class ServiceRoute(Route):
    """A path that leads to a service's engine."""

    verb: ClassVar[str] = ""
    """The last part of its path, and its name in the OpenAPI document."""
    many: ClassVar[bool] = False
    """Whether a request has a list of items, and its answer a list of outcomes."""
    lane: ClassVar[Lane] = Lane.SINGLE
    """Where its items wait."""

    def __init__(self, path: str, service: Servable, problems: Problems, options: ServerOptions) -> None:
        super().__init__("POST", service.name, path)
        self.service = service
        self.problems = problems
        self.accepts = service.stages[0].accepts()
        self.offers = service.stages[-1].offers()
        self.takes_nothing = _TAKES_FILES
        """What a client is told where the path takes no format at all."""
        self._external = service.stages[-1].external is not None
        self._timeout = service.options.timeout
        self._lane = self.lane  # an attribute of the class is looked up by name, also once compiled
        self._max_body = options.max_body_bytes
        self._formats: dict[tuple[bytes | None, bytes | None], Formats] = {}
        """What was negotiated for a pair of Content-Type and Accept."""

    def engine(self) -> HostedEngine | None:
        """The service's engine, once it was started."""
        return self.service.engine

    def admit(self, request: HttpRequest) -> Response | None:
        """Formats (415, 406), time limits (400), then state and room (503, 429).

        A body that the carrier refuses as too large (413) or compressed (415) passes: it does so after this.
        """
        request.route = self  # first of all: a refusal is counted for this route too
        engine = request.engine = self.service.engine
        headers = request.headers
        asked = (headers.get(b"content-type"), headers.get(b"accept"))
        formats = self._formats.get(asked)
        if formats is None:
            negotiated = self._negotiate(request, *asked)
            if isinstance(negotiated, Response):
                return negotiated
            formats = negotiated
        request.formats = formats
        timeout = request.timeout = read_time_limit(headers, self._timeout)
        if math.isnan(timeout):
            return self.problems.refuse(400, malformed_limit(headers), request.id)
        priority = headers.get(b"priority")
        if priority is not None:
            request.urgency = read_urgency(priority)
        size = read_length(headers.get(b"content-length"))  # a number: the carrier has read it too
        encoding = headers.get(b"content-encoding")
        if size > self._max_body or (encoding is not None and judge_encoding(encoding) is not None):
            return None  # the carrier refuses it next, for good: no room would ask the client to try again
        if engine is None:
            refusal: RequestError | None = NotReady(state=State.STARTING)
        else:
            refusal = engine.refusal(size, request.arrived + timeout, self._lane, request.urgency, request.tenant)
        if refusal is None:
            return None
        if engine is not None:
            count_refusal(engine.counters, refusal)
            engine.note_refused(request.tenant)
        return self._answer_refusal(refusal, request)

    def _answer_refusal(self, refusal: RequestError, request: HttpRequest) -> Response:
        engine = self.service.engine
        if isinstance(refusal, NotReady) and (engine is None or engine.state is State.STOPPED):
            refusal = NotReady(self.problems.unstarted, state=refusal.state)
        return self.problems.answer(refusal, request)

    def _negotiate(self, request: HttpRequest, content_type: bytes | None, accept: bytes | None) -> Formats | Response:
        """Choose the formats for a pair of headers that is not in the table."""
        if too_long(content_type):
            return self.problems.refuse(415, f"the Content-Type {_TOO_LONG}", request.id)
        if too_long(accept):
            return self.problems.refuse(406, f"the Accept {_TOO_LONG}", request.id)
        codec_in = content_codec(content_type)
        if not self.accepts:
            return self.problems.refuse(415, self.takes_nothing, request.id)
        if codec_in is None or codec_in not in self.accepts:
            given = cut_middle((content_type or b"").decode("ascii", "replace"), _SHOWN_BYTES)
            names = media_names(self.accepts)
            return self.problems.refuse(
                415,
                f"Content-Type {given!r} is not supported; send one of: {names} (text in UTF-8)",
                request.id,
                ((b"accept", names.encode()),),
            )
        answer = answer_codec(accept, self._preferred(codec_in))
        if answer is None:
            names = media_names(self.offers)
            return self.problems.refuse(406, f"cannot produce any media type in Accept; supported: {names}", request.id)
        formats = Formats(codec_in, *answer, names_messagepack(accept))
        if len(content_type or b"") + len(accept or b"") <= _MAX_PAIR_BYTES:
            if len(self._formats) >= _MAX_PAIRS:
                self._formats.clear()
            self._formats[content_type, accept] = formats
        return formats

    def _preferred(self, codec_in: Codec) -> list[Codec]:
        """What to answer with when the client leaves the choice to us, best first.

        Of a stage of ours raw bytes if that is what the result is, else the format of the request, else JSON.  Of a
        stage whose workers are remote the format of the request, else the first that its author named.
        """
        if self._external:
            first = codec_in if codec_in in self.offers else self.offers[0]
        elif self.offers[0] is Codec.RAW:
            return list(self.offers)
        else:
            first = codec_in if codec_in in (Codec.JSON, Codec.MSGPACK) else Codec.JSON
        return sorted(self.offers, key=lambda codec: codec is not first)

    def deadline(self, request: HttpRequest) -> float:
        """When the answer becomes worthless: after the service's time limit, or the client's if that is shorter."""
        return request.arrived + request.timeout
