"""Find the addresses of a host, and refuse those that nobody may connect to.

Contract
--------
* Who asks gets addresses that were judged, and connects to these: a name is looked up once for each connection.
* One address that is refused refuses the host: who answers for its name could lead the next connection there.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from penstock.errors import TransferFailed, TransferRejected
from penstock.transfer.addresses import Network, why_refused
from penstock.transfer.places import WebPlace
from penstock.transfer.time_limit import TimeLimit


class Resolved(NamedTuple):
    """An address to connect to."""

    family: int
    sockaddr: tuple[Any, ...]
    """As `socket.connect` takes it: the address as text, the port, and for IPv6 the flow and the scope."""


Resolve: TypeAlias = Callable[[str, int], list[Resolved]]

NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def ask_the_system(host: str, port: int) -> list[Resolved]:
    """The addresses of `host`, as this machine finds them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [Resolved(family, address) for family, _, _, _, address in found]


def checked_addresses(
    place: WebPlace, resolve: Resolve, allowed: tuple[Network, ...], limit: TimeLimit, how: str
) -> list[Resolved]:
    """The addresses of the place's host, at least one, each of which may be connected to.

    `how` is said beside a refusal.

    Raises:
        TransferRejected: one of them may not, or there is no such name.
        TransferFailed: the name could not be looked up now.
    """
    found = _look_up(place, resolve, limit)
    for address in found:
        scoped = len(address.sockaddr) > 3 and address.sockaddr[3]
        text = address.sockaddr[0]
        reason = why_refused(f"{text}%{scoped}" if scoped and "%" not in text else text, allowed)
        if reason:
            raise TransferRejected(f"{place}: {reason}; {how}")
    if not found:
        raise TransferRejected(f"{place}: {place.host} has no address")
    return found


class _Lookup(threading.Thread):
    """One call of a resolver.

    It has a thread of its own because nothing can end it: the system's resolver may wait for half a minute, whatever
    the time limit.  The thread then ends later, and nobody hears its answer.
    """

    def __init__(self, resolve: Resolve, host: str, port: int) -> None:
        super().__init__(name="penstock-lookup", daemon=True)
        self._ask: Callable[[], list[Resolved]] = partial(resolve, host, port)
        self.found: list[Resolved] = []
        self.error: OSError | UnicodeError | None = None

    def run(self) -> None:
        try:
            self.found = self._ask()
        except (OSError, UnicodeError) as error:
            self.error = error


def _look_up(place: WebPlace, resolve: Resolve, limit: TimeLimit) -> list[Resolved]:
    lookup = _Lookup(resolve, place.host, place.port)
    lookup.start()
    while lookup.is_alive():
        lookup.join(limit.glance())
    match lookup.error:
        case None:
            return lookup.found
        case UnicodeError():  # a part of the name is longer than names are
            raise TransferRejected(f"{place}: {place.host!r} is not a valid host name")
        case socket.gaierror(errno=number) if number in NO_SUCH_NAME:
            raise TransferRejected(f"{place}: host {place.host} not found")
        case error:
            raise TransferFailed(f"{place}: cannot resolve {place.host}: {error.strerror or error}")
