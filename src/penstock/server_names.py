"""What the options of a server name: hosts, proxies, origins whose pages may call it, a path, a header field.

A name is judged by how it is written: nothing is looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

from penstock.errors import ConfigError
from penstock.option_fields import as_texts

USUAL_HOST = "127.0.0.1"
"""Where a server listens that is told nothing."""

ANY_ORIGIN = "*"
"""Stands for every origin."""

UNIX_PEER = "unix"
"""Whoever has no address, as at the other end of a Unix socket: who may connect there is who may open its file."""

_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?P<host>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
"""How browsers write an origin (RFC 6454, 6.2): in small letters, and a host that is not ASCII in Punycode."""
_USUAL_PORTS = {"http": "80", "https": "443"}
"""Browsers leave them out."""
_HIGHEST_PORT = 65535


def listening_hosts(host: str | Sequence[str] | None, uds: str | None) -> tuple[str, ...]:
    """The hosts to listen on, given the options `host` and `uds`; none where there is only a Unix socket."""
    if host is None:
        return () if uds is not None else (USUAL_HOST,)
    return as_texts("host", host)


def read_network(text: str) -> IPv4Network | IPv6Network:
    """The network, or the address alone, that `text` names among `trusted_proxies`; ConfigError where it is neither."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"trusted_proxies must be networks such as 10.0.0.0/8, addresses, or {UNIX_PEER}: {error}"
        ) from None


def check_origin(text: str) -> None:
    """Do nothing, or raise ConfigError where `text` is nothing that a browser sends as the origin of a page."""
    if text == ANY_ORIGIN:
        return
    if text == "null":
        raise ConfigError(
            "cors_allow_origin cannot be 'null', because any page can use that origin; serve the page over HTTP"
        )
    found = _ORIGIN.fullmatch(text)
    port = None if found is None else found["port"]
    if found is None or (port is not None and int(port) > _HIGHEST_PORT):
        raise ConfigError(
            "cors_allow_origin must be SCHEME://HOST or SCHEME://HOST:PORT as browsers send it: lowercase, without a "
            f"path or a trailing slash, such as https://app.example; or * for every origin; got {text!r}"
        )
    if port is not None and port == _USUAL_PORTS.get(found["scheme"]):
        raise ConfigError(
            f"cors_allow_origin must be {text.removesuffix(f':{port}')} as browsers send it, got {text!r}"
        )


_PATH = re.compile(r"/|(/(?!\.{1,2}(/|$))[A-Za-z0-9._~:-]+)+")
"""A path of the user's: the same in a request line, after a proxy, and under a mount point."""


def check_path(name: str, path: object, example: str) -> None:
    """Do nothing, or raise ConfigError where `path`, the option `name`, cannot be that of a route."""
    if not isinstance(path, str) or _PATH.fullmatch(path) is None:
        raise ConfigError(
            f"{name} must start with a slash, must not end with one, and may have letters, digits and `._~:-` between "
            f"slashes, such as {example}, got {path!r}"
        )


_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_FIELDS_IN_USE = frozenset(
    (
        *("accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length"),
        *("content-type", "cookie", "date", "expect", "grpc-timeout", "host", "idempotency-key", "keep-alive"),
        *("access-control-request-headers", "access-control-request-method", "origin", "priority"),
        *("proxy-authorization", "range", "te", "trailer", "transfer-encoding", "upgrade", "via", "x-api-key"),
        *("x-attempt", "x-forwarded-for"),
        *("x-envoy-expected-rq-timeout-ms", "x-request-id", "x-request-timeout"),
    )
)
"""The header fields of a request that mean something else, to us or to any server."""


def check_tenant_header(name: object) -> None:
    """Do nothing, or raise ConfigError where `name` is no field of a request that can name a tenant."""
    if not isinstance(name, str) or _FIELD_NAME.fullmatch(name) is None:
        raise ConfigError(f"tenant_header must be the name of a header, such as X-Tenant, got {name!r}")
    if name.lower() in _FIELDS_IN_USE:
        raise ConfigError(f"tenant_header cannot be {name}, because that header has another meaning; use X-Tenant")
