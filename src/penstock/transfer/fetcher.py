"""Fetch from the web, and put there, for those who are not trusted to name where.

Contract
--------
* Each connection goes to an address that was judged, at the first request and at each redirect.  The name stays in the
  header `Host` and in TLS.  No proxy is asked, whatever the environment says: it would choose the address.
* A redirect of a PUT leads to the host that was named, or to one with a public address.  A network that is allowed
  besides is so for those who name a URL, and not for a server that is told to keep an output.
* No answer is decoded and none is larger than its limit.  One that is not whole is a failure.
* TransferRejected is what trying again cannot help: an address that is not allowed, 404 and its like, too many bytes.
  TransferFailed is the rest: a server that is slow, is cut off, is not there, or answers 408, 425, 429 or 5xx.
* Nothing is tried again here.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException, HTTPResponse
from socket import socket
from typing import Final, cast

from penstock.errors import TransferFailed, TransferRejected
from penstock.transfer.addresses import NET_OPTION, Network
from penstock.transfer.connecting import TimedConnection, connected
from penstock.transfer.lookups import Resolve, ask_the_system, checked_addresses
from penstock.transfer.outgoing import Outgoing
from penstock.transfer.places import WebPlace
from penstock.transfer.time_limit import TimeLimit
from penstock.transfer.web_body import announced_length, read_body

MOST_REDIRECTS = 5
STALL_SECONDS = 20.0
"""How long a server may be silent."""
REDIRECTS: Final = {301, 302, 303, 307, 308}
SAME_METHOD: Final = {307, 308}
"""The redirects that ask for the same request again; the others turn it into a GET."""
MAY_SUCCEED_LATER: Final = {408, 425, 429}
"""Refusals that are no refusals of the request itself: timeout, too early, too many."""

_VALUE: Final = re.compile(r"[ -~]{1,256}")


@dataclass(frozen=True)
class Fetcher:
    """Reads pages of the web and writes them.  Safe to use from several threads at once."""

    allowed_nets: tuple[Network, ...] = ()
    """Networks that may be reached although they are not public."""
    stall: float = STALL_SECONDS
    resolve: Resolve = ask_the_system
    """What finds the addresses of a name.  Its answers are judged, whoever it is."""
    net_option: str = NET_OPTION

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """What is asked of servers: the machine's certificates, or those that ``SSL_CERT_FILE`` names."""
        return ssl.create_default_context()

    def get(self, place: WebPlace, write: Callable[[bytes], object], *, most_bytes: int, limit: TimeLimit) -> str:
        """Give the body at `place` to `write`, piece by piece, and return its content type, or "".

        Raises:
            TransferRejected: it may not be fetched, or is not there, or has more than `most_bytes`.
            TransferFailed: it could not be fetched now.
            TransferCancelled: the limit says so.
        """
        with self._answered("GET", place, None, limit) as (response, connection):
            if response.status not in (200, 203):
                raise _refusal(place, response.status)
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                raise TransferRejected(
                    f"{place}: the response has the Content-Encoding {encoding[:100]!r}, which was not requested "
                    "and is not supported"
                )
            _take_body(place, response, connection, write, most_bytes)
            return response.headers.get("Content-Type", "")

    def put(self, place: WebPlace, outgoing: Outgoing, *, limit: TimeLimit) -> None:
        """Put `outgoing` there.  Raises as `get` does.

        After TransferFailed and TransferCancelled it is not known whether it was done.
        """
        with self._answered("PUT", place, outgoing, limit) as (response, _):
            if not 200 <= response.status < 300:
                raise _refusal(place, response.status)

    @contextmanager
    def _answered(
        self, method: str, place: WebPlace, outgoing: Outgoing | None, limit: TimeLimit
    ) -> Iterator[tuple[HTTPResponse, TimedConnection]]:
        """The answer that is no redirect, with its connection behind its head."""
        here = place
        followed = REDIRECTS if outgoing is None else SAME_METHOD
        for _ in range(MOST_REDIRECTS + 1):
            named = outgoing is None or here.authority == place.authority
            nets = self.allowed_nets if named else ()
            how = f"{self.net_option} allows networks" if named else f"a PUT to {place} was redirected to this host"
            addresses = checked_addresses(here, self.resolve, nets, limit, how)
            with connected(addresses, limit, self.stall) as connection:
                if here.scheme == "https":
                    connection.encrypt(self.tls, here.host)
                response = _ask(connection, method, here, outgoing)
                there = _redirect(here, response, followed)
                if there is None:
                    yield response, connection
                    return
            here = there
        raise TransferRejected(f"{place}: too many redirects, more than {MOST_REDIRECTS}")


def _ask(connection: TimedConnection, method: str, place: WebPlace, outgoing: Outgoing | None) -> HTTPResponse:
    """Send one request and read the head of its answer."""
    fields = {
        "Host": place.authority,
        "User-Agent": "penstock",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if outgoing is not None:
        if not _VALUE.fullmatch(outgoing.content_type):
            raise TransferRejected(f"{place}: {outgoing.content_type[:100]!r} is not a valid content type")
        fields |= {"Content-Type": outgoing.content_type, "Content-Length": str(outgoing.nbytes)}
    lines = [f"{method} {place.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    response = HTTPResponse(cast("socket", connection), method=method)  # it wants nothing of it but `makefile`
    connection.send("\r\n".join([*lines, "", ""]).encode("ascii"))
    try:
        for chunk in outgoing.chunks() if outgoing is not None else ():
            connection.send(chunk)
    except TransferFailed:
        # A server that refuses need not read the body: its answer may have come before the connection broke.
        with suppress(TransferFailed):
            _read_head(response, connection, place)
            return response
        raise
    _read_head(response, connection, place)
    return response


def _read_head(response: HTTPResponse, connection: TimedConnection, place: WebPlace) -> None:
    try:
        response.begin()
    except HTTPException as error:
        raise TransferFailed(f"{place}: the response is not HTTP, or was cut off: {type(error).__name__}") from None
    if connection.ended:  # http.client takes the end of the connection for the end of the head
        raise TransferFailed(f"{place}: the response was cut off in its headers")


def _redirect(place: WebPlace, response: HTTPResponse, followed: Collection[int]) -> WebPlace | None:
    """Where an answer sends us, or None where it is an answer."""
    location = response.headers.get("Location")
    if response.status not in followed or location is None:
        return None
    return place.follow(location)


def _take_body(
    place: WebPlace,
    response: HTTPResponse,
    connection: TimedConnection,
    write: Callable[[bytes], object],
    most_bytes: int,
) -> None:
    announced = announced_length(response.headers, str(place))
    if announced is not None and announced > most_bytes:
        raise TransferRejected(
            f"{place} has {announced} bytes, which is more than {most_bytes} (max_input_bytes, or max_bytes of a stage)"
        )
    taken = 0
    for piece in read_body(response.headers, connection.makefile("rb"), str(place)):
        taken += len(piece)
        if taken > most_bytes:
            raise TransferRejected(
                f"{place} has more than {most_bytes} bytes (max_input_bytes, or max_bytes of a stage)"
            )
        write(piece)


def _refusal(place: WebPlace, status: int) -> TransferFailed | TransferRejected:
    """What a status means that is none of success."""
    later = status < 200 or status >= 500 or status in MAY_SUCCEED_LATER
    return (TransferFailed if later else TransferRejected)(f"{place}: the server responded with status {status}")
