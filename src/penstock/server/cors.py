"""Let pages of other origins call the server from a browser, where `cors_allow_origin` names them.

This is CORS, of the Fetch standard.

A browser lets a page read the answer of another origin only if the answer names the page's origin, or every one.  It
asks for leave first, by a preflight, for whatever a plain form could not send.

Contract
--------
* An answer to a page of a named origin says that the page may read it, and the headers of ours in it.  So does every
  refusal of a request whose head was read.
* A preflight is answered before the key, the path and the method are looked at: it has no key, and what it asks for is
  judged when it comes.
* Nothing changes for a request of an origin that is not named, or of none.
* With ``*`` every page may read what the server answers to the browser that shows it.  It names nobody, see `names`.
* Cookies are never allowed: no page acts with what a browser keeps for this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, TypeAlias

from penstock.config import ServerOptions
from penstock.option_fields import as_texts
from penstock.server.application import DROPPED, HttpRequest, Reply, Response
from penstock.server_names import ANY_ORIGIN

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]

METHODS: Final = ("GET", "HEAD", "POST", "DELETE")
"""Those of all routes."""
REQUEST_HEADERS: Final = (
    *("accept", "authorization", "content-type", "grpc-timeout", "idempotency-key", "priority", "x-api-key"),
    "x-attempt",
    *("x-envoy-expected-rq-timeout-ms", "x-request-id", "x-request-timeout"),
)
"""What a page may send: what is read of a request, but for what browsers set themselves."""
RESPONSE_HEADERS: Final = (
    *("accept", "allow", "location", "ratelimit", "ratelimit-policy", "retry-after", "retry-after-ms"),
    *("www-authenticate", "x-chaos", "x-request-id", "x-should-retry"),
)
"""What a page may read besides what browsers show to every page, such as the content type."""
PREFLIGHT_SECONDS: Final = 7200
"""How long a browser need not ask again: the longest that Chromium remembers."""

_VARIES: Final = (b"vary", b"origin")


class Cors:
    """The named origins, and what answers to their pages have besides."""

    def __init__(self, origins: tuple[str, ...], tenant_header: str | None) -> None:
        exposed = (b"access-control-expose-headers", _listed(RESPONSE_HEADERS))
        self._of: dict[bytes, Fields] = {}
        self._of_others: Fields = ()
        for origin in origins:
            if origin == ANY_ORIGIN:
                self._of_others = (_allowed(b"*"), exposed)
            else:
                self._of[origin.encode()] = (_allowed(origin.encode()), exposed, _VARIES)
        tenant = () if tenant_header is None else (tenant_header.lower(),)
        self._leave: Fields = (
            (b"access-control-allow-methods", _listed(METHODS)),
            (b"access-control-allow-headers", _listed((*REQUEST_HEADERS, *tenant))),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
        )

    @classmethod
    def of(cls, options: ServerOptions) -> Cors | None:
        """What `options` say; None where they name no origin."""
        origins = as_texts("cors_allow_origin", options.cors_allow_origin)
        return cls(origins, options.tenant_header) if origins else None

    def names(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request is sent for a page of an origin that is named, and not only by ``*``."""
        return headers.get(b"origin") in self._of

    def preflight(self, request: HttpRequest) -> Response | None:
        """The leave that a browser asks for, or None where this is no preflight, or of no named origin."""
        if request.method != "OPTIONS" or b"access-control-request-method" not in request.headers:
            return None
        fields = self._fields(request.headers)
        if not fields:
            return None
        allowed, _, *varies = fields
        return Response(204, b"", b"", (allowed, *self._leave, *varies))

    def add(self, request: HttpRequest, response: Response) -> Response:
        """`response` as it is sent: the page that has asked, where it may, is let read it."""
        return _with(self._fields(request.headers), response)

    def replying(self, request: HttpRequest, reply: Reply) -> Reply:
        """A `reply` that adds as `add` does."""
        fields = self._fields(request.headers)
        return partial(_reply_with, fields, reply) if fields else reply

    def _fields(self, headers: Mapping[bytes, bytes]) -> Fields:
        origin = headers.get(b"origin")
        return () if origin is None else self._of.get(origin, self._of_others)


def _allowed(origin: bytes) -> tuple[bytes, bytes]:
    return (b"access-control-allow-origin", origin)


def _listed(names: tuple[str, ...]) -> bytes:
    return ", ".join(names).encode()


def _with(fields: Fields, response: Response) -> Response:
    if not fields or response is DROPPED:
        return response
    # Another object: whoever made the response may give it to others, too.
    return Response(response.status, response.content_type, response.body, (*response.headers, *fields))


def _reply_with(fields: Fields, reply: Reply, response: Response) -> None:
    reply(_with(fields, response))
