"""The application behind HTTP: everything between a parsed request and the engine, but no sockets.

Contract
--------
* `admit` sees a request's head before its body is read, and answers it or lets it pass.  Checked in this order: API
  key (401), path (404, or 308 where only the slash at its end is too much), method (405), tenant (400), formats (415,
  406), timeout (400), state, quota (429) and room (503 or 429).  What its carrier refuses for good, a body too large
  (413) or compressed (415), is not asked for the last three.
* With `cors_allow_origin`, a preflight is answered before all of that, and answers to pages of other origins say so.
* A path is looked up as it is first.  Only one that is not there is compared with the paths that have variables.
* `handle` calls `reply` exactly once for each request that `admit` let pass, now or later, on the event loop.
* Every request gets an id: the client's own if it is a proper one, else one of ours.
* A single item costs dictionary look-ups and plain counters: no task, future, timer, uuid or log line.
* The time comes from the clock that was handed in.  `HttpRequest.arrived` must be read from the same clock.

`protocols/service_routes.py` decides which paths a service has.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count

import msgspec

from penstock.config import ServerOptions
from penstock.core.arriving import ArrivingBody
from penstock.core.chaos import Chaos
from penstock.core.clock import Clock
from penstock.core.counters import count_refusal
from penstock.core.lanes import Lane
from penstock.errors import ConfigError, Overloaded, RequestError
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.renewal import Renewal, UseRenewed
from penstock.hosting.servable import HostedEngine, Servable, check_sockets
from penstock.hosting.tenants_file import read_tenants
from penstock.option_fields import as_texts
from penstock.server.access_log import write_line
from penstock.server.application import BODY_TIMEOUTS_PER_BODY, DROPPED, HttpRequest, Reply, Response
from penstock.server.auth import ApiKeys, has_key, read_keys
from penstock.server.chaos_door import ChaosDoor
from penstock.server.cors import Cors
from penstock.server.identity import Identities
from penstock.server.jobs_port import JobsPort
from penstock.server.pages.deep_check import DeepCheck
from penstock.server.pages.docs import docs_routes
from penstock.server.pages.health import JSON, Health
from penstock.server.pages.metrics import Metrics
from penstock.server.pages.openapi import openapi
from penstock.server.pages.scale import Scale
from penstock.server.path_pattern import without_needless_escapes
from penstock.server.protocols.health_route import HealthRoute
from penstock.server.protocols.job_routes import job_routes
from penstock.server.protocols.route import Formats, PageRoute, Route, ServiceRoute, Traffic
from penstock.server.protocols.route_table import RouteTable
from penstock.server.protocols.service_routes import KINDS, path_in_use, routes_of
from penstock.server.rate_limit_fields import rate_limit_fields
from penstock.server.request_terms import read_time_limit
from penstock.server.status import Problems, in_messagepack, names_messagepack
from penstock.server.trusted_proxies import TrustedProxies

_PROPER_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class App:
    """Answers the requests of one server for one or more services; with `only_probes`, no more than how they are."""

    def __init__(
        self,
        services: Sequence[Servable],
        options: ServerOptions,
        clock: Clock,
        others: Sequence[Route] = (),
        *,
        only_probes: bool = False,
        jobs: JobsPort | None = None,
        identities: Identities | None = None,
    ) -> None:
        """Store the services; read the key file, and those of tenants for the services too, unless given `identities`.

        With `only_probes` nobody needs a key, and no file is read.  Raises ConfigError for a bad file or a name.

        Services have different names, and none has that of a path of the server's own.  `others` are routes besides
        those of the services and the pages.  With `jobs` clients may submit to that queue, and ask for its jobs.
        """
        names = [service.name for service in services]
        if not services or len(set(names)) < len(names):
            raise ConfigError(
                f"an app needs services with different names, got {names}: give each its own, "
                "penstock.Service(..., name=...); an artifact is served under the name it was saved with, or under "
                "that of penstock.export.load(..., name=...)"
            )
        check_sockets(services)
        self.options = options
        self.services = tuple(services)
        self.clock = clock
        self.problems = Problems(options, FaultLog(clock))
        chaos = None if options.chaos is None or only_probes else Chaos.read(options.chaos)
        self._chaos = None if chaos is None else ChaosDoor(chaos, self.problems, clock)
        self._now = clock.now
        if only_probes:
            self.identities = Identities({}, None)
        else:
            self.identities = identities or _read_identities(self.services, options)
            for service in self.services:  # read once: keys and rules are those of one moment
                service.tenant_rules = self.identities.rules[service.name]
        self._asks_who = self.identities.asks
        self._rated = self.identities.rated
        self._cors = Cors.of(options)
        self._adds_fields = self._rated or self._cors is not None
        self._access_log = options.access_log
        self._proxies = TrustedProxies(as_texts("trusted_proxies", options.trusted_proxies))
        self._id_prefix = secrets.token_hex(6).encode() + b"-"
        self._count = count(1)
        self._calls = {} if only_probes else routes_of(self.services, self.problems, options)
        self._elsewhere = Traffic("", "")
        """Requests that no route took: unknown paths, refused keys, what the connection refused."""
        traffic = [self._elsewhere]
        self.metrics = Metrics(self.services, traffic)
        self.health = Health(self.services, self.problems, clock, busy_is_unready=options.unready_when_full)
        self.health.chaos = "" if chaos is None else chaos.words
        self._others = (*others, *(() if jobs is None else job_routes(jobs, self.problems, self._cors)))
        self._schemas = {} if jobs is None else jobs.schemas()
        own = [*self._probes(), *([] if only_probes else self._documents()), *self._others]
        _check_names(names, own)
        _check_paths(self._calls, own)
        self._table = RouteTable([*self._calls.values(), *own])
        if options.health_path is not None:
            self._table = self._with_health_path(options.health_path)
        self._routes = self._table.fixed
        traffic += [route.traffic for route in self._table.all]
        self._document: bytes | None = None
        self._page_bytes = 0
        self._page_bytes_limit = max(service.options.max_queued_bytes for service in services)

    def _with_health_path(self, path: str) -> RouteTable:
        """The table with one more path; ConfigError if it is in use."""
        if path.encode() in self._table.fixed or self._table.with_variables(path.encode()) is not None:
            raise ConfigError(f"health_path cannot be {path}: the server already uses this path")
        page = PageRoute(path, self.health.status, self.problems, guarded=False, bounded=False)
        return RouteTable([*self._table.all, page])

    def _probes(self) -> list[Route]:
        health, problems = self.health, self.problems
        return [
            PageRoute("/livez", health.livez, problems, guarded=False, bounded=False),
            PageRoute("/readyz", health.readyz, problems, guarded=False, bounded=False),
            HealthRoute("/health", health, DeepCheck(self.services, self.clock), problems),
            PageRoute("/metrics", self.metrics.page, problems),
            PageRoute("/scale", Scale(self.services).page, problems),
        ]

    def _documents(self) -> list[Route]:
        document = PageRoute("/openapi.json", self._openapi, self.problems)
        return [document, *docs_routes(self.problems).values()]

    def renewals(self) -> list[Renewal]:
        """The file of API keys, if there is one.  Each request whose head comes afterwards is held to the new keys."""
        path = self.options.api_key_file
        return [] if path is None else [Renewal(f"api_key_file {path!r}", partial(self._read_keys, path))]

    def _read_keys(self, path: str) -> UseRenewed:
        return partial(self._use_keys, read_keys(path))

    def _use_keys(self, keys: ApiKeys) -> None:
        self.identities.use_file_keys(keys)

    def admit(self, request: HttpRequest) -> Response | None:
        """Refuse a request by its head, or None to read its body and `handle` it.  Sets its id, route and formats."""
        given = request.headers.get(b"x-request-id")
        if given is None or _PROPER_ID.fullmatch(given) is None:
            request.id = self._next_id()
        else:
            request.id = given
        route = self._routes.get(request.path)
        if route is None:
            route = self._other_route(request)
            if route is None:
                return self._preflight(request) or self._to_page(request, self._no_route(request))
        if request.method != route.method or self._asks_who or self._page_bytes > self._page_bytes_limit:
            if request.method != route.method:
                leave = self._preflight(request)
                if leave is not None:
                    return leave
                route = route.for_method(request.method)
            refusal = self._refuse(request, route)
            if refusal is not None:
                return self._to_page(request, refusal)
        refused = route.admit(request)
        return None if refused is None else self._completed(request, refused)

    def _other_route(self, request: HttpRequest) -> Route | None:
        """The route of a path that is in the table of fixed ones not as it came, or of one with variables."""
        if b"%" in request.path:
            request.path = without_needless_escapes(request.path)
            route = self._routes.get(request.path)
            if route is not None:
                return route
        return self._table.with_variables(request.path)

    def waits_until(self, request: HttpRequest) -> float | None:
        """Until when a request may wait for its service to start: a call, by its deadline.

        None for what needs no service, and for what is refused whatever that does.  Any thread may ask before `admit`.
        """
        route = self._routes.get(request.path)
        if not isinstance(route, ServiceRoute) or request.method != route.method:
            return None
        seconds = read_time_limit(request.headers, route.service.options.timeout)
        if math.isnan(seconds) or self._refuse_key(request, route) is not None:
            return None
        return request.arrived + seconds

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer a request that was admitted and whose body is complete: `reply` is called exactly once."""
        route: Route = request.route
        formats: Formats | None = request.formats
        # What a route has negotiated says it already: to look at the header again would cost 1 % of an echo.
        if names_messagepack(request.headers.get(b"accept")) if formats is None else formats.names_messagepack:
            reply = partial(_reply_in_messagepack, reply, request.headers[b"accept"])
        if self._adds_fields:
            reply = self._completing(request, reply)
        if self._chaos is not None and isinstance(route, ServiceRoute):
            self._chaos.handle(route, request, reply)
        else:
            route.handle(request, reply)

    def _completing(self, request: HttpRequest, reply: Reply) -> Reply:
        """A `reply` whose answers have what `_completed` adds."""
        if self._cors is not None:
            reply = self._cors.replying(request, reply)
        if self._rated and isinstance(request.route, ServiceRoute):
            reply = partial(self._reply_with_limits, request, reply)
        return reply

    def _completed(self, request: HttpRequest, response: Response) -> Response:
        """An answer with its tenant's limits, where there are any, and as a page of another origin may read it."""
        if self._rated:
            self._add_limits(request, response)
        return self._to_page(request, response)

    def _to_page(self, request: HttpRequest, response: Response) -> Response:
        accept = request.headers.get(b"accept")
        if accept is not None and names_messagepack(accept):
            response = in_messagepack(response, accept)
        return response if self._cors is None else self._cors.add(request, response)

    def _preflight(self, request: HttpRequest) -> Response | None:
        return None if self._cors is None else self._cors.preflight(request)

    def _reply_with_limits(self, request: HttpRequest, reply: Reply, response: Response) -> None:
        if response is not DROPPED:
            self._add_limits(request, response)
        reply(response)

    def _add_limits(self, request: HttpRequest, response: Response) -> None:
        """Let the answer say what its tenant may still send, where that has a rate."""
        engine = _engine(request)
        if engine is not None and isinstance(request.route, ServiceRoute):
            allowance = engine.allowance(request.tenant)
            if allowance is not None:
                response.headers = (*response.headers, *rate_limit_fields(allowance))

    def cancel(self, request: HttpRequest) -> None:
        """Withdraw a request whose client has left.  Harmless at any time after `admit`."""
        if self._chaos is not None:
            self._chaos.cancel(request)
        if request.ticket is not None:
            route: Route = request.route
            route.cancel(request)

    def refuse(self, status: int, detail: str, request: HttpRequest | None = None) -> Response:
        """The answer to something that the carrier refuses itself: a problem with `status`.

        Without a request the refusal is counted here, and its headers have an id: the carrier has no request to take
        the id from.
        """
        if request is None:
            self._elsewhere.statuses[status] = self._elsewhere.statuses.get(status, 0) + 1
            request_id = self._next_id()
            return self.problems.refuse(status, detail, request_id, ((b"x-request-id", request_id),))
        if not request.id:
            request.id = self._next_id()
        return self._completed(request, self.problems.refuse(status, detail, request.id))

    def answer_error(self, error: RequestError, request: HttpRequest) -> Response:
        """The answer to a request that ends with `error` before `handle`, where its carrier learns of it first."""
        return self._to_page(request, self.problems.answer(error, request))

    def hold(self, request: HttpRequest | None, nbytes: int) -> None:
        """Count the bytes of a half-received body, for the service it belongs to; negative gives them back."""
        engine = _engine(request)
        if engine is not None:
            engine.hold(nbytes)
        else:
            self._page_bytes += nbytes

    def hold_answer(self, request: HttpRequest | None, nbytes: int) -> None:
        """Count bytes of a finished answer, for the service it belongs to; negative gives them back."""
        engine = _engine(request)
        if engine is not None:
            engine.hold_answer(nbytes)
        else:
            self._page_bytes += nbytes

    def answers_overfull(self, request: HttpRequest | None) -> bool:
        """Whether more bytes of answers are held than may be, by the service of `request`, or of pages."""
        engine = _engine(request)
        return self._page_bytes > self._page_bytes_limit if engine is None else engine.answers_overfull

    def any_answers_overfull(self) -> bool:
        """Whether any service holds more bytes of answers than it may, or more of pages are held."""
        for service in self.services:
            engine = service.engine
            if engine is not None and engine.answers_overfull:
                return True
        return self.answers_overfull(None)

    def overfull(self, request: HttpRequest, own: int) -> Response | None:
        """Refuse the rest of a body where more bytes are held than may be, unless this body alone holds them.

        The rest of a large body for a page is always refused: its head may have announced chunks.

        The head was admitted while there was room.  Without this check many slow senders together could hold any number
        of bytes.  Finished answers have a bound of their own.
        """
        engine = _engine(request)
        if engine is None:
            route: Route | None = request.route
            judged = None if route is None else route.judge_body(request, own)
            if judged is None and self._page_bytes > self._page_bytes_limit and self._page_bytes > own:
                judged = self.problems.answer(
                    Overloaded(
                        "Too many buffered bytes for the server's own endpoints. Try again later.",
                        reason="memory_budget",
                    ),
                    request,
                )
            return None if judged is None else self._to_page(request, judged)
        held = engine.held_bytes - engine.answer_bytes
        if held <= engine.options.max_queued_bytes or held <= own:
            return None
        # As of `Lane.BACK`: the head has passed the quota, the deadline and whom it displaces; only room is asked for.
        error = engine.refusal(lane=Lane.BACK)
        if error is None:
            return None
        if isinstance(error, Overloaded):
            error.reason = "memory_budget"  # whatever else there is no room for: these bytes are why it does not go on
        count_refusal(engine.counters, error)
        engine.note_refused(request.tenant)
        return self._completed(request, self.problems.answer(error, request))

    def piece_for(self, request: HttpRequest, body: ArrivingBody) -> memoryview | None:
        """A piece for the body of `request`, where its route passes the body on as it came and its engine gives one."""
        engine, route = _engine(request), request.route
        return None if engine is None or not route.passes_body_on else engine.piece_for(body)

    def arrived(self, request: HttpRequest, body: ArrivingBody) -> None:
        """Tell the engine of `request` that a body with a piece is in arrival no more."""
        engine = _engine(request)
        if engine is not None:
            engine.arrived(body)

    def body_due(self, request: HttpRequest) -> float:
        """When a body must be complete: at the deadline of its request, because no item is run after that."""
        route: Route = request.route
        if isinstance(route, ServiceRoute):
            return route.deadline(request)
        return request.arrived + BODY_TIMEOUTS_PER_BODY * self.options.body_timeout

    def answered(self, request: HttpRequest, status: int, nbytes: int) -> None:
        """Count a request whose answer was written, or whose client left before it (499); log it if that is wanted."""
        seconds = self._now() - request.arrived
        route: Route | None = request.route
        traffic = self._elsewhere if route is None else route.traffic
        statuses = traffic.statuses
        statuses[status] = statuses.get(status, 0) + 1
        traffic.seconds.add(seconds)
        if self._access_log:
            urgency = self.identities.shown_urgency(traffic.service, request.tenant, request.urgency)
            write_line(request, status, nbytes, seconds, urgency=urgency, proxies=self._proxies)

    def _next_id(self) -> bytes:
        return self._id_prefix + b"%x" % next(self._count)

    def _refuse(self, request: HttpRequest, route: Route) -> Response | None:
        """Check the key, the method and the unread pages.  Most requests need none of these checks."""
        request.route = route
        request.engine = route.engine()
        refusal = self._refuse_key(request, route) if route.guarded else None
        if refusal is not None:
            return refusal
        if request.method != route.method and not (route.method == "GET" and request.method == "HEAD"):
            return self._other_method(request, route)
        if self._page_bytes > self._page_bytes_limit and route.bounded:
            return self.problems.answer(
                Overloaded(
                    "Too many unsent responses of the server's own endpoints. Try again later.", reason="memory_budget"
                ),
                request,
            )
        if not request.tenant and isinstance(route, ServiceRoute):
            return self._read_tenant(request)
        return None

    def _read_tenant(self, request: HttpRequest) -> Response | None:
        """Let the header name the tenant of a request whose key names none; the refusal of what is no name."""
        name = self.identities.named(request.headers)
        if name is None:
            field = self.options.tenant_header
            return self.problems.refuse(400, f"{field} must be 1 to 64 letters, digits or `._-`", request.id)
        request.tenant = name
        return None

    def _refuse_key(self, request: HttpRequest, route: Route | None) -> Response | None:
        """The refusal of a request without an accepted key; sets its tenant where the key is that of one."""
        service = route.traffic.service if isinstance(route, ServiceRoute) else ""
        holder = self.identities.key_holder(request.headers, service)
        if holder is not None:
            request.tenant = holder
            return None
        unknown = "unknown API key; "
        return self.problems.refuse(
            401,
            (unknown if has_key(request.headers) else "")
            + "send an API key as `Authorization: Bearer KEY` or as `X-API-Key: KEY`",
            request.id,
            ((b"www-authenticate", b"Bearer"),),
        )

    def _no_route(self, request: HttpRequest) -> Response:
        meant = self._without_slash_route(request.path)
        refusal = self._refuse_key(request, meant) if meant is None or meant.guarded else None
        if refusal is not None:
            return refusal
        return self._unknown(request) if meant is None else self._without_slash(request)

    def _without_slash_route(self, path: bytes) -> Route | None:
        """The route of `path` without the slash at its end, where it has one."""
        if not path.endswith(b"/"):
            return None
        return self._routes.get(path[:-1]) or self._table.with_variables(path[:-1])

    def _without_slash(self, request: HttpRequest) -> Response:
        """Send the client to the same path without the slash at its end, with the same method, body and query.

        The address is relative to the one that was asked for, which may have begun with a proxy's or an ASGI mount's
        path that was taken off before it came here.
        """
        place = b"../" + request.path[:-1].rpartition(b"/")[2]
        if request.query:
            place += b"?" + request.query
        detail = "the path has a trailing slash; use the URL in the Location header"
        return self.problems.refuse(308, detail, request.id, ((b"location", place),))

    def _unknown(self, request: HttpRequest) -> Response:
        if request.path == b"*" and request.method == "OPTIONS":  # about the server as a whole (RFC 9110, 9.3.7)
            return Response(204, b"", b"", ((b"allow", b"GET, HEAD, POST, OPTIONS"),))
        if request.method == "CONNECT":
            return self.problems.refuse(
                405, "CONNECT is not supported: this server is not a proxy", request.id, ((b"allow", b""),)
            )
        if not self._calls:
            paths = ", ".join(path.decode() for path in self._routes)
            return self.problems.refuse(404, f"there is nothing at this path; this server has {paths}", request.id)
        calls = ", ".join(self._calls)
        return self.problems.refuse(404, f"there is nothing at this path; POST to {calls}, or read /docs", request.id)

    def _other_method(self, request: HttpRequest, route: Route) -> Response:
        allow = ((b"allow", route.allow),)
        if request.method == "OPTIONS":
            return Response(204, b"", b"", allow)
        return self.problems.refuse(
            405, f"this path takes {route.allow.decode()}, not {request.method}", request.id, allow
        )

    def _openapi(self, _request: HttpRequest) -> Response:
        if self._document is None:
            document = openapi(
                self.services,
                self._calls,
                self.options,
                keys=self.identities.guarded,
                others=self._others,
                schemas=self._schemas,
            )
            self._document = msgspec.json.encode(document)
        return Response(200, JSON, self._document)


def _read_identities(services: Sequence[Servable], options: ServerOptions) -> Identities:
    rules = {service.name: read_tenants(service.options.tenants_file) for service in services}
    keys = None if options.api_key_file is None else read_keys(options.api_key_file)
    return Identities(rules, options.tenant_header, keys)


def _reply_in_messagepack(reply: Reply, accept: bytes, response: Response) -> None:
    reply(in_messagepack(response, accept))


def _check_names(names: Sequence[str], own: Iterable[Route]) -> None:
    """ConfigError if a service's name is what a path of the server begins with: `/docs` and `/predict`, for two."""
    taken = {route.path.split("/")[1] for route in own} | {kind.verb for kind in KINDS}
    for name in names:
        if name in taken:
            raise ConfigError(f"a service cannot be named {name!r}: the server itself uses the path /{name}")


def _check_paths(calls: Mapping[str, ServiceRoute], own: Iterable[Route]) -> None:
    """ConfigError if a call has a path that a page has too, or that fits one with variables."""
    patterns = [route.pattern for route in own]
    for path, call in calls.items():
        if any(pattern.values(path.encode()) is not None for pattern in patterns):
            raise path_in_use(path, call.service.name)


def _engine(request: HttpRequest | None) -> HostedEngine | None:
    """The engine that holds what belongs to `request`, or None where no service does."""
    engine: HostedEngine | None = request.engine if request is not None else None
    return engine
