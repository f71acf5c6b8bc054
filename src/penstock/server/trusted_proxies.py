"""Decide who the client of a request is: the peer of the connection, or whom proxies that are trusted name.

A proxy adds the address of its own peer at the end of `X-Forwarded-For`.  What stands before that was said by the peer,
and may be anything.  So the field is read from its end, and only as far as each who has added to it is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias

from penstock.server_names import UNIX_PEER, read_network

MOST_PROXIES: Final = 16
"""How many addresses of the field are looked at, from its end."""

Address: TypeAlias = IPv4Address | IPv6Address

_INTERFACE: Final = re.compile(r"[A-Za-z0-9._-]{1,15}")
"""What may stand behind the % of an address of IPv6: no more than a name of an interface, and one word of the log."""


class TrustedProxies:
    """The proxies of which is believed whom they forward for, as the option `trusted_proxies` names them."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._unix = UNIX_PEER in entries
        self._networks = [read_network(entry) for entry in entries if entry != UNIX_PEER]

    def client(self, peer: str, forwarded: bytes | None) -> str:
        """The address of the client that sent a request by `peer`, with this value of `X-Forwarded-For`.

        It is `UNIX_PEER` where that has none, and ``unknown`` where it cannot be read.
        """
        address = _address(peer.encode(errors="replace"))
        trusted = self._unix if peer == UNIX_PEER else address is not None and self._trusts(address)
        client = peer if peer == UNIX_PEER else "unknown" if address is None else str(address)
        if forwarded is None or not trusted:
            return client
        for text in reversed(forwarded.rsplit(b",", MOST_PROXIES)[-MOST_PROXIES:]):
            address = _address(text)
            if address is None:
                break
            client = str(address)
            if not self._trusts(address):
                break
        return client

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: bytes) -> Address | None:
    """The address that a proxy has written, perhaps with a port; None where it is none, as ``unknown``.

    An IPv4 address that comes as one of IPv6, as it does at a socket of both, is the IPv4 address.
    """
    try:
        host = text.strip().decode("ascii")
        if host.startswith("["):
            host = host[1:].partition("]")[0]
        elif host.count(":") == 1:
            host = host.partition(":")[0]
        found = ip_address(host)
    except ValueError:
        return None
    if not isinstance(found, IPv6Address):
        return found
    if found.scope_id is not None and _INTERFACE.fullmatch(found.scope_id) is None:
        return None
    return found.ipv4_mapped or found
