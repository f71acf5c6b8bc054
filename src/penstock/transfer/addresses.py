"""Decide which IP addresses a URL from outside may lead to.  Text in, a reason out; nothing is looked up.

Contract
--------
* Only addresses that anybody on the internet can reach are public.  What is kept back by a standard or by a provider
  is refused: private and shared networks, loopback, link-local, multicast, reserved, documentation, benchmarks.
* An IPv6 address that carries an IPv4 address is as public as what it carries.
* An address with a scope id (``fe80::1%eth0``) is never public and never allowed.
* A network that the operator has named is allowed, whatever it is.

`ipaddress.is_global` is asked too, and is not enough: it differs between versions of Python, calls multicast global,
and does not look into every address that carries another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from penstock.errors import ConfigError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

NOT_PUBLIC_4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a provider and its customers; metadata of Alibaba Cloud
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the platform of Azure, as each of its machines sees it
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
UNICAST_6: Final = IPv6Network("2000::/3")
"""All that is given out as public in IPv6.  Unique local, link-local, site-local and multicast lie outside."""
NOT_PUBLIC_6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, and benchmarks
        "2001:db8::/32",  # documentation
        "3ffe::/16",  # given back
        "3fff::/20",  # documentation
    )
)

MAPPED: Final = IPv6Network("::ffff:0:0/96")
COMPATIBLE: Final = IPv6Network("::/96")
NAT64: Final = IPv6Network("64:ff9b::/96")
"""The other prefix of NAT64, ``64:ff9b:1::/48``, is for local use.

Where in such an address the IPv4 address stands depends on the network.  So it is not looked for, and all are refused.
"""
SIX_TO_FOUR: Final = IPv6Network("2002::/16")
TEREDO: Final = IPv6Network("2001::/32")

NET_OPTION: Final = "--allow-net"
"""The flag by which an operator of `penstock consume` allows more, for messages."""


def parse_nets(text: str, name: str = "allow_net") -> tuple[Network, ...]:
    """The networks of a comma-separated list, as ``10.0.0.0/8,fd00::/8``; none of an empty text.

    Raises ConfigError, with the name of the option, for what is no network.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ip_network(part))
        except ValueError as error:
            raise ConfigError(f"{name}: {error}; write an address and a prefix length, such as 10.0.0.0/8") from None
    return tuple(found)


def why_refused(text: str, allowed: tuple[Network, ...] = ()) -> str:
    """Why nobody may connect to the address `text`; "" where one may."""
    if "%" in text:
        return f"{text} has a scope id, which is not supported"
    try:
        address = ip_address(text)
    except ValueError:
        return f"{text!r} is not an IP address"
    if is_named(address, allowed) or is_public(address):
        return ""
    return f"{address} is not a public address"


def is_named(address: Address, allowed: tuple[Network, ...]) -> bool:
    """Whether the operator has named a network that `address` is in.

    The mapped form of an IPv4 address is that address: both lead to the same socket.  The other forms lead through a
    relay, and are allowed only as themselves.
    """
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return any(address in net or (mapped is not None and mapped in net) for net in allowed)


def is_public(address: Address) -> bool:
    """Whether anybody on the internet can reach `address`, as far as standards say."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in net for net in NOT_PUBLIC_4)
    carried = tuple(carried_addresses(address))
    if carried:
        return all(map(is_public, carried))
    return address in UNICAST_6 and address.is_global and not any(address in net for net in NOT_PUBLIC_6)


def carried_addresses(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses in an IPv6 address of a kind that has some."""
    bits = int(address)
    if any(address in net for net in (MAPPED, COMPATIBLE, NAT64)):
        yield IPv4Address(bits & 0xFFFFFFFF)
    elif address in SIX_TO_FOUR:
        yield IPv4Address(bits >> 80 & 0xFFFFFFFF)
    elif address in TEREDO:
        yield IPv4Address(bits >> 64 & 0xFFFFFFFF)  # the server
        yield IPv4Address(~bits & 0xFFFFFFFF)  # the client, whose bits are turned round
