"""What each path does: refuse at the head, or take the body and call `reply` exactly once.

A route refuses before the body is read whatever can be refused then: a format it does not speak, a timeout that is
no number, a service that is not ready or full.  What it accepts goes to the engine, and `reply` is called from the
engine's completion.  The path of a single item makes no task, future or timer, and looks each pair of format headers
up in a table instead of parsing it again.

`POST /batch` is the one place where the coordinator looks into a body: it is split into items, syntax only.  Above
`SPLIT_INLINE` bytes a thread does that, and the client may leave meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.codec.formats import Codec
from penstock.codec.listing import join_outcomes, split_list
from penstock.codec.schema import accepts, offers, signature
from penstock.core.counters import SECONDS, Histogram
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.state import State
from penstock.errors import InvalidItem, NotReady, RequestError
from penstock.server.logs import log, report_fault
from penstock.server.messages import HttpRequest, Reply, Response
from penstock.server.negotiation import answer_codec, content_codec, media_names
from penstock.server.servable import Engine, Servable
from penstock.server.status import CLIENT_LEFT, Problems

SPLIT_INLINE = 256 * 1024
"""Bytes of a client batch that are split on the event loop; more would hold up everybody else."""

_TABLE_SIZE = 128
"""Most pairs of format headers remembered by a route; a client that invents more empties the table, no harm done."""
_TABLE_KEY = 256
"""Longest pair of format headers worth remembering."""

_BATCH_CODECS = (Codec.JSON, Codec.MSGPACK)


class Traffic:
    """What became of the requests to one route: plain numbers, read at scrape time."""

    __slots__ = ("route", "seconds", "service", "statuses")

    def __init__(self, service: str, route: str) -> None:
        self.service = service
        self.route = route
        self.statuses: dict[int, int] = {}
        self.seconds = Histogram(SECONDS)


class Target:
    """A route and the formats of one request to it; `HttpRequest.route` once a route was found."""

    __slots__ = ("codec_in", "codec_out", "media", "route", "traffic")

    def __init__(
        self, route: Route, codec_in: Codec = Codec.JSON, codec_out: Codec = Codec.JSON, media: bytes = b""
    ) -> None:
        self.route = route
        self.traffic = route.traffic
        self.codec_in = codec_in
        self.codec_out = codec_out
        self.media = media


class Route:
    """One path: the method it answers, and the numbers of its traffic."""

    guarded = True
    """Whether an API key is asked for, where there are keys."""

    def __init__(self, method: str, service: str, path: str) -> None:
        self.method = method
        self.allow = b"GET, HEAD, OPTIONS" if method == "GET" else b"%s, OPTIONS" % method.encode()
        self.traffic = Traffic(service, path)
        self.plain = Target(self)
        """For a request whose formats do not matter, or were not settled."""

    def admit(self, request: HttpRequest) -> Response | None:
        """Refuse the request by its head, or None to go on."""
        raise NotImplementedError

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer the request, now or later, exactly once."""
        raise NotImplementedError

    def cancel(self, request: HttpRequest) -> None:
        """The client has left."""

    def engine(self) -> Engine | None:
        """The engine behind this route, if there is one now."""
        return None


class PageRoute(Route):
    """Something to read that needs no model: health, metrics, documents."""

    def __init__(self, path: str, make: Callable[[HttpRequest], Response], *, guarded: bool = True) -> None:
        super().__init__("GET", "", path)
        self.guarded = guarded
        self._make = make

    def admit(self, request: HttpRequest) -> Response | None:
        """Never refuses: health has to answer when nothing else does."""
        request.route = self.plain
        return None

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer at once."""
        reply(self._make(request))


class ServiceRoute(Route):
    """A path that leads to a service's engine."""

    def __init__(self, path: str, service: Servable, problems: Problems, max_body: int) -> None:
        super().__init__("POST", service.name, path)
        self.service = service
        self.problems = problems
        first, last = service.stages[0], service.stages[-1]
        self.accepts = accepts(signature(first.target, batched=first.batch is not None).item)
        self.offers = offers(signature(last.target, batched=last.batch is not None).result)
        self._timeout = service.options.timeout
        self._max_body = max_body
        self._targets: dict[tuple[bytes | None, bytes | None], Target] = {}

    def engine(self) -> Engine | None:
        """The service's engine, once it was started."""
        return self.service.engine

    def admit(self, request: HttpRequest) -> Response | None:
        """Formats (415, 406), timeout (400), then state and room (503, 429)."""
        headers = request.headers
        formats = (headers.get(b"content-type"), headers.get(b"accept"))
        target = self._targets.get(formats)
        if target is None:
            negotiated = self._negotiate(request, *formats)
            if isinstance(negotiated, Response):
                return negotiated
            target = negotiated
        request.route = target
        if b"x-request-timeout" in headers and math.isnan(read_timeout(headers[b"x-request-timeout"])):
            return self.problems.refuse(400, "X-Request-Timeout must be a positive number of seconds", request.id)
        engine = self.service.engine
        size = _declared_size(headers)
        # A body that may never come in is no matter of room: the carrier refuses it as too large, not as "try later".
        room = size if size <= self._max_body else 0
        refusal = NotReady(state=State.STARTING) if engine is None else engine.refusal(room)
        if refusal is None:
            return None
        if engine is not None:
            engine.counters.refused += 1
        return self._refused(refusal, request)

    def _refused(self, refusal: RequestError, request: HttpRequest) -> Response:
        engine = self.service.engine
        if isinstance(refusal, NotReady) and (engine is None or engine.state is State.STOPPED):
            refusal = NotReady(self.problems.unstarted, state=refusal.state)
        return self.problems.answer(refusal, request)

    def _negotiate(self, request: HttpRequest, content_type: bytes | None, accept: bytes | None) -> Target | Response:
        """Settle the formats of a pair of headers not seen lately."""
        request.route = self.plain  # a refusal belongs to this route too
        codec_in = content_codec(content_type)
        if codec_in is None or codec_in not in self.accepts:
            given = (content_type or b"").decode("ascii", "replace")
            names = media_names(self.accepts)
            return self.problems.refuse(
                415,
                f"Content-Type {given!r} is not taken here; send one of: {names} (text in UTF-8)",
                request.id,
                ((b"accept", names.encode()),),
            )
        answer = answer_codec(accept, self._preferred(codec_in))
        if answer is None:
            names = media_names(self.offers)
            return self.problems.refuse(406, f"nothing in Accept can be given; this route gives: {names}", request.id)
        target = Target(self, codec_in, *answer)
        if len(content_type or b"") + len(accept or b"") <= _TABLE_KEY:
            if len(self._targets) >= _TABLE_SIZE:
                self._targets.clear()
            self._targets[content_type, accept] = target
        return target

    def _preferred(self, codec_in: Codec) -> list[Codec]:
        """What to answer with when the client leaves the choice to us, best first.

        Raw bytes if that is what the result is, else the format of the request, else JSON.
        """
        if self.offers[0] is Codec.RAW:
            return list(self.offers)
        first = codec_in if codec_in in (Codec.JSON, Codec.MSGPACK) else Codec.JSON
        return sorted(self.offers, key=lambda codec: codec is not first)

    def deadline(self, request: HttpRequest) -> float:
        """The moment after which the answer is worthless: the service's limit or the client's, if that is shorter."""
        asked = request.headers.get(b"x-request-timeout")
        return request.arrived + (self._timeout if asked is None else min(self._timeout, read_timeout(asked)))


class PredictRoute(ServiceRoute):
    """One item in, its bare result out."""

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Give the body to the engine as it came."""
        target: Target = request.route
        engine = self.service.engine
        if engine is None:
            reply(self._refused(NotReady(state=State.STOPPED), request))
            return
        try:
            request.ticket = engine.submit(
                (request.body,),
                target.codec_in,
                target.codec_out,
                self.deadline(request),
                partial(self._finish, request, reply, target.media),
            )
        except RequestError as error:
            reply(self.problems.answer(error, request))

    def _finish(self, request: HttpRequest, reply: Reply, media: bytes, outcomes: list[Outcome]) -> None:
        request.ticket = None  # it leads back to this call: without the cycle nothing waits for the collector
        outcome = outcomes[0]
        if isinstance(outcome, Result):
            reply(Response(200, media, outcome.payload))
        else:
            reply(self.problems.answer(outcome.error, request))

    def cancel(self, request: HttpRequest) -> None:
        """Take the item back."""
        engine = self.service.engine
        if request.ticket is not None and engine is not None:
            engine.cancel(request.ticket)


class BatchRoute(ServiceRoute):
    """A list of items in, a list of outcomes out: 200 if all are well, 207 if not."""

    def __init__(self, path: str, service: Servable, problems: Problems, max_body: int) -> None:
        super().__init__(path, service, problems, max_body)
        self.accepts = frozenset(_BATCH_CODECS)
        self.offers = _BATCH_CODECS

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Split the body and give its items to the engine as one."""
        call = ClientBatch(self, request, reply)
        request.ticket = call
        call.split()

    def cancel(self, request: HttpRequest) -> None:
        """Take all its items back."""
        if request.ticket is not None:
            request.ticket.cancel()


class ClientBatch:
    """One call of `/batch`, from its body to its answer."""

    __slots__ = ("_left", "_reply", "_request", "_route", "_target", "_ticket")

    def __init__(self, route: BatchRoute, request: HttpRequest, reply: Reply) -> None:
        self._route = route
        self._request = request
        self._reply = reply
        self._target: Target = request.route
        self._ticket: object = None
        self._left = False

    def split(self) -> None:
        """Find the items, in a thread if the body is long."""
        body = self._request.body
        if len(body) <= SPLIT_INLINE:
            try:
                items = split_list(self._target.codec_in, body)
            except InvalidItem as error:
                self._broken(error)
            else:
                self._submit(items)
            return
        self._hold(len(body))
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, split_list, self._target.codec_in, body).add_done_callback(self._was_split)

    def _was_split(self, splitting: asyncio.Future[list[memoryview]]) -> None:
        """Back on the loop: go on, unless the body was broken, the client left, or the loop is ending."""
        self._hold(-len(self._request.body))
        if self._left:
            self._answer(Response(CLIENT_LEFT, b"", b""))
            return
        error = NotReady(state=State.STOPPED) if splitting.cancelled() else splitting.exception()
        if error is None:
            self._submit(splitting.result())
        elif isinstance(error, InvalidItem):
            self._broken(error)
        elif isinstance(error, RequestError):
            self._answer(self._route.problems.answer(error, self._request))
        else:  # nobody is left waiting, even when the fault is ours
            log.error("%s: splitting a batch failed", self._request.id.decode(), exc_info=error)
            self._answer(self._route.problems.refuse(500, "the batch could not be split", self._request.id))

    def _broken(self, error: InvalidItem) -> None:
        self._answer(self._route.problems.refuse(400, str(error), self._request.id))

    def _submit(self, items: list[memoryview]) -> None:
        engine = self._route.engine()
        problems = self._route.problems
        if not items:
            self._finish([])
            return
        if engine is None:
            self._answer(problems.answer(NotReady(state=State.STOPPED), self._request))
            return
        try:
            self._ticket = engine.submit(
                items,
                self._target.codec_in,
                self._target.codec_out,
                self._route.deadline(self._request),
                self._finish,
                bulk=True,
            )
        except RequestError as error:
            self._answer(problems.answer(error, self._request))

    def _finish(self, outcomes: list[Outcome]) -> None:
        if self._left:
            self._answer(Response(CLIENT_LEFT, b"", b""))
            return
        request_id = self._request.id.decode()
        entries: list[tuple[Any, dict[str, Any] | None]] = []
        faults: dict[str, tuple[RequestError, list[str]]] = {}  # one log entry for many items with one cause
        for index, outcome in enumerate(outcomes):
            if not isinstance(outcome, Failure):
                entries.append((outcome.payload, None))
                continue
            occurrence = f"{request_id}:{index}"
            entries.append((None, self._route.problems.describe(outcome.error, request_id, occurrence)))
            faults.setdefault(str(outcome.error), (outcome.error, []))[1].append(occurrence)
        for error, occurrences in faults.values():
            report_fault(error, occurrences)
        body = join_outcomes(self._target.codec_out, entries)
        self._answer(Response(207 if faults else 200, self._target.media, body))

    def _answer(self, response: Response) -> None:
        self._request.ticket = None
        self._ticket = None
        self._reply(response)

    def _hold(self, nbytes: int) -> None:
        engine = self._route.engine()
        if engine is not None:
            engine.hold(nbytes)

    def cancel(self) -> None:
        """The client left: withdraw the items, or do not submit them once they are known."""
        self._left = True
        engine = self._route.engine()
        if self._ticket is not None and engine is not None:
            engine.cancel(self._ticket)


def _declared_size(headers: Mapping[bytes, bytes]) -> int:
    """The length of the body that is to come, 0 where it is not told."""
    declared = headers.get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else 0


def read_timeout(value: bytes) -> float:
    """The seconds that `value` names, or NaN if it is no positive, finite number."""
    try:
        seconds = float(value)
    except ValueError:
        return math.nan
    return seconds if 0 < seconds < math.inf and b"_" not in value else math.nan
