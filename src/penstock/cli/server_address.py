"""Decide where the server is that `penstock health` asks: from a URL, or from the variables that the server reads.

No I/O.  What can be no address is a ConfigError, and says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.option_fields import environment_name, from_environment, renamed
from penstock.server_names import listening_hosts

READY_PATH = "/readyz"
_ON_THIS_HOST = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104  # where a server listens, not who asks it
"""Where a server is found that listens on every interface.

With ``::`` it takes IPv4 too, and a container often has an address of that version alone.
"""
_ASKED = ("host", "port", "uds", "tls_cert", "tls_key")
"""The options of a server that say where it is, and how it is asked."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FORMS = "http://HOST:PORT, https://HOST:PORT, unix:/PATH or http+unix:///PATH"


@dataclass(frozen=True, slots=True)
class HealthAddress:
    """Where to connect, and what to ask for there."""

    host: str
    """With a Unix socket only the name that the request carries."""
    port: int
    unix_path: str | None = None
    tls: bool = False
    target: str = READY_PATH

    @property
    def name(self) -> str:
        """The address as a person writes it."""
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def address_from_environment(environ: Mapping[str, str]) -> HealthAddress:
    """Where a server is that was started with these variables, and without flags that say otherwise."""
    try:
        options = ServerOptions(**from_environment(ServerOptions, environ, _ASKED, flags=False))
    except ConfigError as error:
        raise renamed(error, ServerOptions, environment_name) from None
    tls = options.tls_cert is not None
    if options.uds is not None:
        return HealthAddress("localhost", 0, unix_path=options.uds, tls=tls)
    if not options.port:
        raise ConfigError("port 0 is chosen at the start, and only the server's log has it: pass the URL")
    host = listening_hosts(options.host, options.uds)[0]
    return HealthAddress(_ON_THIS_HOST.get(host, host), options.port, tls=tls)


def address_of(url: str) -> HealthAddress:
    """What `url` names.  A path in it is where the server's routes begin; `/readyz` may stand at its end."""
    scheme, _, rest = url.partition(":")
    if scheme == "unix":
        return _unix_address(rest)
    if not re.fullmatch(r"[!-~]+", url):
        raise ConfigError(f"{url!r} is not a URL: it has characters that must be escaped")
    if "@" in url.partition("//")[2].partition("/")[0]:
        # Said without the URL: a password in it would be kept by whoever keeps what health checks say.
        raise ConfigError("the URL of a server must not have a user")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme in ("http+unix", "https+unix"):
        if parts.netloc:
            raise ConfigError(f"{url!r} has a host: the URL of a Unix socket has three slashes, http+unix:///PATH")
        return _unix_address(unquote(parts.path), tls=parts.scheme == "https+unix")
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ConfigError(f"{url!r} does not name a server: write {_FORMS}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{url!r} must not have a query or fragment")
    if port == 0:
        raise ConfigError(f"{url!r}: no server can listen on port 0")
    target = f"{parts.path.rstrip('/').removesuffix(READY_PATH)}{READY_PATH}"
    return HealthAddress(
        parts.hostname, port or _DEFAULT_PORTS[parts.scheme], tls=parts.scheme == "https", target=target
    )


def _unix_address(path: str, *, tls: bool = False) -> HealthAddress:
    if not path or "\0" in path:
        raise ConfigError(f"{path!r} cannot be the path of a Unix socket")
    return HealthAddress("localhost", 0, unix_path=path, tls=tls)
