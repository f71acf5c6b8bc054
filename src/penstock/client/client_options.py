"""The options of a client and of its calls: frozen, and checked when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from penstock.client.call_bodies import CODECS
from penstock.config import LONGEST_SOCKET_PATH, check_service_name
from penstock.core.tenants import BEST_URGENCY, USUAL_URGENCY, WORST_URGENCY, check_tenant_name
from penstock.errors import ConfigError
from penstock.option_fields import check_options, option

UNIX: Final = "http+unix://"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,120}")
"""The server takes 128 characters; the parts of a call of many items have a number behind."""
_FIELD_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server is."""

    base: str
    """What every path is put behind, without a slash at its end."""
    uds: str | None = None
    """The path of its Unix socket."""


def read_server_address(url: object) -> ServerAddress:
    """The server that `url` names.

    Raises:
        ConfigError: it names none.
    """
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        raise ConfigError(f"the server must be a URL such as http://127.0.0.1:8000, got {url!r}")
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        if not path.startswith("/") or len(path.encode()) > LONGEST_SOCKET_PATH:
            raise ConfigError(
                f"a Unix socket must be {UNIX} and an absolute path of at most {LONGEST_SOCKET_PATH} "
                f"bytes, such as {UNIX}/run/a.sock, got {url!r}"
            )
        return ServerAddress("http://localhost", path)
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        named = False
    if not named:
        raise ConfigError(f"the server must be http://, https:// or {UNIX} and its address, got {url!r}")
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigError("the URL of a server must not have a query, a fragment or a user; pass a key as api_key")
    # In small letters, as everything that asks for the scheme writes it: `HTTPS://` means TLS, too.
    return ServerAddress(f"{parts.scheme}{url[len(parts.scheme) :]}".rstrip("/"))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client behaves; the arguments of `Client` and `AsyncClient`."""

    api_key: str | None = option(None, "API key sent with every request; without it no key is sent")
    timeout: float = option(30.0, "seconds for a call, including all waits and attempts; inf: no limit", minimum=0)
    max_retries: int = option(4, "maximum retries of a request; 0: no retry", minimum=0)
    max_concurrency: int = option(64, "maximum requests in flight", minimum=1)
    max_result: int = option(1 << 30, "maximum bytes of a result; the connection of a larger one is closed", minimum=1)
    tenant_header: str | None = option(None, "header that names the tenant, as in the server's option tenant_header")
    retry_non_idempotent: bool = option(False, "retry also requests that may have run: the model may run twice then")
    format: str = option("json", "format of items that are neither bytes nor arrays", choices=tuple(CODECS))

    def __post_init__(self) -> None:
        check_options(self)
        check_timeout(self.timeout)
        if self.api_key is not None and not is_field_value(self.api_key):  # said without the value: it is secret
            raise ConfigError("api_key must be printable ASCII characters, without spaces around them")
        header = self.tenant_header
        if header is not None and (not isinstance(header, str) or _FIELD_NAME.fullmatch(header) is None):
            raise ConfigError(f"tenant_header must be the name of a header, got {header!r}")


@dataclass(frozen=True, slots=True)
class CallTerms:
    """What one call asks for itself."""

    service: str = ""
    urgency: int = USUAL_URGENCY
    tenant: str = ""
    timeout: float | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        if self.service != "":
            check_service_name(self.service)
        whole = isinstance(self.urgency, int) and not isinstance(self.urgency, bool)
        if not whole or not BEST_URGENCY <= self.urgency <= WORST_URGENCY:
            raise ConfigError(f"urgency must be a whole number from 0 (first) to 7 (last), got {self.urgency!r}")
        check_tenant_name(self.tenant)
        if self.timeout is not None:
            check_timeout(self.timeout)
        known_as = self.request_id
        if known_as is not None and (not isinstance(known_as, str) or _REQUEST_ID.fullmatch(known_as) is None):
            raise ConfigError(f"request_id must be 1 to 120 of A-Z a-z 0-9 . _ -, got {known_as!r}")


def is_field_value(text: object) -> bool:
    """Whether `text` can be the value of a header field, as it is."""
    return isinstance(text, str) and text.isascii() and text.isprintable() and text == text.strip()


def check_timeout(timeout: object) -> None:
    """Raise ConfigError where `timeout` is no span of time that a call may take."""
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ConfigError(f"timeout must be more than 0 seconds, or inf, got {timeout!r}")
