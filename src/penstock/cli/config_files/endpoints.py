"""Read an address of a proxy or a replica: ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:/PATH``.  Pure.

Contract
--------
* An `Endpoint` that exists can be written into a file of HAProxy and of nginx, but for the characters of a path: what
  the quotes of each cannot hold is refused by whoever writes it.
* The path of a Unix socket is absolute, because a proxy has another folder than whoever asked for its file.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from penstock.config import LONGEST_SOCKET_PATH
from penstock.errors import ConfigError

_UNIX: Final = "unix:"
HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_EXAMPLES: Final = "127.0.0.1:8080, [::1]:8080 or unix:/run/a.sock"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where somebody listens; a path, or a host and a port."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an address of IPv6, which stands in brackets."""
        return ":" in self.host

    def __str__(self) -> str:
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"


def read_endpoint(what: str, text: str) -> Endpoint:
    """The endpoint that `text` names; ConfigError, about `what`, where it names none."""
    if text.startswith(_UNIX):
        return Endpoint(path=_checked_path(what, text.removeprefix(_UNIX)))
    host, colon, digits = text.rpartition(":")
    port = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 5 else 0
    if not colon or not 1 <= port <= 65535:
        raise ConfigError(f"{what} must be an address with a port from 1 to 65535, such as {_EXAMPLES}, got {text!r}")
    if host.startswith("[") and host.endswith("]"):
        try:
            found = ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise ConfigError(f"{what}: {host!r} is not an IPv6 address: {error}") from None
        if found.scope_id is not None:
            raise ConfigError(
                f"{what}: {host!r} names an interface (scope), which the proxies do not support; remove it"
            )
        return Endpoint(host=str(found), port=port)
    if HOST_NAME.fullmatch(host) is None:
        raise ConfigError(f"{what}: invalid host {host!r}; write {_EXAMPLES}, got {text!r}")
    return Endpoint(host=host, port=port)


def _checked_path(what: str, path: str) -> str:
    if not path.startswith("/"):
        raise ConfigError(f"{what}: the path of a socket must be absolute, as in unix:/run/a.sock, got {path!r}")
    if not path.isprintable():
        raise ConfigError(f"{what}: the path of a socket must have printable characters only, got {path!r}")
    nbytes = len(path.encode())
    if nbytes > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"{what} is a path of {nbytes} bytes, but a Unix socket has at most {LONGEST_SOCKET_PATH}: {path!r}"
        )
    return path
