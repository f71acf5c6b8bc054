"""The wire of the clients: HTTP over httpx.  The only file of the package that imports httpx.

Contract
--------
* A connection that cannot be had is `NoReply` with ``sent=False``, any that is lost later is `NoReply` with
  ``sent=True``: what was sent may have run.
* Whoever is cancelled, at whatever point, leaves no connection open: the server withdraws the item, and nobody later
  waits for a connection that is in nobody's hands.
* A connection that is kept is closed at an answer after which the server's name may lead elsewhere.
* An answer has at most as many bytes as its request says, and one that is no success `LARGEST_PAGE_BYTES`; the
  connection of a larger one is closed.

Requests go straight to httpx's transports, without what a browser needs: no redirects, no cookies, no proxies from the
environment.  Each transport has one connection, since the pool of httpcore looks at every connection for each request:
with twenty of them that took more than twice the time.  A transport whose request was cancelled is never used again:
httpcore may keep its connection as one that is busy, and then every later request of that transport would wait for it.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import httpx

from penstock.client.client_options import ServerAddress
from penstock.client.replies import NoReply, Reply
from penstock.client.wire import LARGEST_PAGE_BYTES, OutgoingRequest
from penstock.core.tls_words import speaks_no_tls
from penstock.errors import ConfigError

KEPT_SECONDS: Final = 5.0
"""How long an idle connection is kept: much shorter than by servers and proxies, which else may close it just when the
next request is sent."""
_ONE: Final = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEPT_SECONDS)


class HttpxWire:
    """Connections to one server, of which up to `most_kept` stay open while they are idle."""

    def __init__(self, address: ServerAddress, most_kept: int) -> None:
        try:
            httpx.URL(address.base).host  # noqa: B018  # read: that is where a host that is no name is found
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"the server must be a URL, got {address.base!r}: {error}") from None
        self._uds = address.uds
        # A context takes milliseconds to make, and serves every connection.
        self._tls = httpx.create_ssl_context() if address.base.startswith("https://") else False
        self._most_kept = most_kept
        self._idle: deque[tuple[float, httpx.AsyncHTTPTransport]] = deque()
        """Since when each is idle; the one that was used last stands last."""

    async def send(self, request: OutgoingRequest) -> Reply | NoReply:
        """The answer, over a connection that is idle or a new one."""
        transport = self._idle.pop()[1] if self._idle else self._new()
        try:
            found = await _exchange(transport, request)
        except BaseException:
            await transport.aclose()
            raise
        self._idle.append((time.monotonic(), transport))
        if isinstance(found, Reply) and found.may_have_moved:
            await self.close()  # whatever leads to that address; the next connection looks the name up again
        else:
            await self._close_old()
        return found

    async def close(self) -> None:
        """Close every connection that is not in use."""
        while self._idle:
            await self._idle.popleft()[1].aclose()

    def _new(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._tls, uds=self._uds, limits=_ONE)

    async def _close_old(self) -> None:
        """Close what nobody has used for long, and what is too many."""
        before = time.monotonic() - KEPT_SECONDS
        while self._idle and (self._idle[0][0] < before or len(self._idle) > self._most_kept):
            await self._idle.popleft()[1].aclose()


async def _exchange(transport: httpx.AsyncHTTPTransport, request: OutgoingRequest) -> Reply | NoReply:
    outgoing = httpx.Request(request.method, request.url, headers=dict(request.headers), content=request.body)
    try:
        response = await transport.handle_async_request(outgoing)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        words = "the server does not use TLS: write http://" if speaks_no_tls(str(error)) else _words(error)
        return NoReply(sent=False, detail=f"cannot connect to the server: {words}")
    except httpx.TransportError as error:
        return NoReply(sent=True, detail=f"connection lost before the response: {_words(error)}")
    largest = request.largest if response.is_success else LARGEST_PAGE_BYTES
    try:
        body = await _read(response, largest)
    except httpx.TransportError as error:
        return NoReply(sent=True, detail=f"connection lost within the response: {_words(error)}")
    finally:
        await response.aclose()
    if body is None:
        return NoReply(sent=True, detail=f"the response has more than {largest} bytes")
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


async def _read(response: httpx.Response, largest: int) -> bytes | None:
    """The body; None where it has more than `largest` bytes."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > largest:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
