"""Read the URL of a store: which store is meant, where it is, and which of its queues.

Contract
--------
* A URL that is read names one queue of one store.  Whatever else is in it is an error, never ignored.
* No message and no `repr` has the password of a URL in it: see `masked`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from penstock.errors import ConfigError
from penstock.hosting.disk_room import RESERVE_BYTES
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds
from penstock.spelling import nearest

DEFAULT_QUEUE: Final = "default"
QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

MEMORY: Final = "memory"
SQLITE: Final = "sqlite"
SENTINEL: Final = "redis+sentinel"
REDIS_SCHEMES: Final = ("redis", "rediss", "unix", "redis+unix", SENTINEL)
SCHEMES: Final = (MEMORY, SQLITE, *REDIS_SCHEMES)
SYNCHRONOUS: Final = ("FULL", "NORMAL")

_TLS_PARAMETERS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_PARAMETERS: Final = {
    MEMORY: (),
    SQLITE: ("synchronous", "reserve"),
    "redis": (),
    "rediss": _TLS_PARAMETERS,
    "unix": ("db",),
    "redis+unix": ("db",),
    SENTINEL: ("db", "sentinel_username", "sentinel_password"),
}
"""Parameters behind the question mark, besides those of all schemes."""
_SENTINEL_PORT: Final = 26379
_MOST_DIGITS: Final = 18
_LIKELY_SCHEME: Final = 0.7
"""How alike a wrong scheme must be to one that there is: `sqlite3` and `sqlite` have 0.92."""
_CREDENTIALS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:/*)?(?:([^:@/?#]*:))?.*@", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"([?&][^=&]*(?:passw|secret|token)[^=&]*=)[^&#]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where a queue is."""

    scheme: str
    """One of `SCHEMES`."""
    queue: str
    shown: str
    """The URL as it may be shown: without its password."""
    bounds: WaitingBounds = NO_BOUNDS
    """How much may wait in the queue, for submissions over this URL."""
    name: str = ""
    """Which store of this process, with `MEMORY`."""
    path: str = ""
    """The file, with `SQLITE`; a relative one lies below the current folder."""
    synchronous: str = SYNCHRONOUS[0]
    """How SQLite writes; one of `SYNCHRONOUS`."""
    reserve: int = RESERVE_BYTES
    """How many bytes of its file system new jobs leave free, with `SQLITE`."""
    server: str = field(default="", repr=False)
    """The URL of the server as its library takes it, with its password and without our own parameters.

    With `SENTINEL` it has no host.
    """
    sentinels: tuple[tuple[str, int], ...] = ()
    """Host and port of each Sentinel, with `SENTINEL`."""
    primary: str = ""
    """The name under which they know the server."""
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The `username` and `password` that they want, where the URL has them."""


def masked(url: str) -> str:
    """`url` with its password replaced, as it may be logged and shown."""
    if url.startswith(("sqlite:///", "memory:")):
        return url  # no server, so no password; a path may have an @ in it
    hidden = _CREDENTIALS.sub(lambda found: f"{found[1] or ''}{found[2] or ''}***@", url, count=1)
    return _PASSWORD_PARAMETER.sub(r"\1***", hidden)


def read_store_url(url: str) -> StoreUrl:
    """What `url` says.

    Raises:
        ConfigError: it is not the URL of a queue; the sentence says why.
    """
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"the URL of a queue must be a string such as sqlite:///q.db, got {url!r}")
    url = url.strip()
    shown = masked(url)
    try:
        parts = urlsplit(url)
        port = None if parts.scheme == SENTINEL else parts.port
    except ValueError as error:
        raise ConfigError(f"{shown} is not a valid URL of a queue: {_without_url(error)}") from None
    _check_scheme(parts.scheme, shown)
    if "\0" in unquote(url):
        raise ConfigError(f"{shown!r} is not a valid URL of a queue: it contains a null character")
    if parts.fragment:
        raise ConfigError(f"{shown} contains a #; in a name or a path write %23")
    given = _parameters(parts, shown)
    queue = given.pop("queue", DEFAULT_QUEUE)
    bounds = WaitingBounds(
        _whole_number("max_waiting", given, shown, None), _whole_number("max_waiting_bytes", given, shown, None)
    )
    if QUEUE_NAME.fullmatch(queue) is None:
        raise ConfigError(
            f"{shown}: the name of a queue must be 1 to 64 characters of A-Z a-z 0-9 . _ -, got {queue!r}"
        )
    if parts.scheme == MEMORY:
        return StoreUrl(MEMORY, queue, shown, bounds, name=_memory_name(parts, shown))
    if parts.scheme == SQLITE:
        return StoreUrl(
            SQLITE,
            queue,
            shown,
            bounds,
            path=_sqlite_path(parts, shown),
            synchronous=_synchronous(given, shown),
            reserve=_whole_number("reserve", given, shown, RESERVE_BYTES) or 0,
        )
    if port == 0:
        raise ConfigError(f"{shown}: port 0 is not valid")
    if parts.scheme == SENTINEL:
        found = {name: given.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        return StoreUrl(
            SENTINEL,
            queue,
            shown,
            bounds,
            server=_watched_server_url(parts, given, shown),
            sentinels=_sentinels(parts, shown),
            primary=_primary(parts, shown),
            sentinel_login={name: value for name, value in found.items() if value},
        )
    return StoreUrl(parts.scheme, queue, shown, bounds, server=_server_url(parts, given, shown))


def _check_scheme(scheme: str, shown: str) -> None:
    if scheme in SCHEMES and "://" in shown:
        return
    there_are = "use " + ", ".join(f"{known}://" for known in SCHEMES)
    if "://" not in shown:
        raise ConfigError(f"{shown} is not the URL of a queue, such as sqlite:///q.db; {there_are}")
    near = nearest(scheme, SCHEMES, _LIKELY_SCHEME)
    meant = f": did you mean {near}://?" if near else f"; {there_are}"
    raise ConfigError(f"{shown}: scheme {scheme}:// is not supported{meant}")


def _parameters(parts: SplitResult, shown: str) -> dict[str, str]:
    """What stands behind the question mark; each name once, and only those that this scheme knows."""
    known = ("queue", "max_waiting", "max_waiting_bytes", *_PARAMETERS[parts.scheme])
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            near = nearest(name, known, _LIKELY_SCHEME)
            meant = f": did you mean {near}?" if near else f"; parameters: {', '.join(known)}"
            raise ConfigError(f"{shown}: {parts.scheme}:// has no parameter {name!r}{meant}")
        if name in found:
            raise ConfigError(f"{shown}: the parameter {name!r} is given twice")
        found[name] = value
    return found


def _memory_name(parts: SplitResult, shown: str) -> str:
    name = unquote(parts.netloc)
    if parts.path not in ("", "/") or (name and QUEUE_NAME.fullmatch(name) is None):
        raise ConfigError(f"{shown}: write memory://, or memory://NAME with 1 to 64 of A-Z a-z 0-9 . _ -")
    return name


def _sqlite_path(parts: SplitResult, shown: str) -> str:
    if parts.netloc:
        there = f"{parts.netloc}{parts.path}".rpartition("@")[2]
        raise ConfigError(
            f"{shown} has two slashes: write sqlite:///{there} for a path below the current directory, or "
            f"sqlite:////{there} for an absolute path"
        )
    path = unquote(parts.path[1:])
    if not path or path.endswith("/"):
        raise ConfigError(f"{shown} names no file: write sqlite:///q.db, or sqlite:////path/q.db with an absolute path")
    if path == ":memory:":
        raise ConfigError(f"{shown}: for a store in memory write memory://")
    return path


def _synchronous(given: dict[str, str], shown: str) -> str:
    synchronous = given.get("synchronous", SYNCHRONOUS[0])
    if synchronous.upper() not in SYNCHRONOUS:
        raise ConfigError(f"{shown}: synchronous must be {' or '.join(SYNCHRONOUS)}, got {synchronous!r}")
    return synchronous.upper()


def _whole_number(name: str, given: dict[str, str], shown: str, default: int | None) -> int | None:
    text = given.pop(name, None)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise ConfigError(f"{shown}: {name} must be an integer of at least 0, got {text!r}")
    return int(text)


def _server_url(parts: SplitResult, given: dict[str, str], shown: str) -> str:
    """The URL that the library of the store takes."""
    if parts.scheme in ("unix", "redis+unix"):
        if not parts.path.strip("/"):
            raise ConfigError(f"{shown} names no socket: write unix:///path/of/redis.sock")
        database = given.get("db", "0")
        parts = parts._replace(scheme="unix")
    else:
        if not parts.hostname:
            raise ConfigError(f"{shown} names no host: write {parts.scheme}://HOST:6379")
        database = parts.path.strip("/") or "0"
    _database(database, shown)
    query = urlencode(given, quote_via=quote)
    return f"{parts.scheme}://{parts.netloc}{parts.path}{f'?{query}' if query else ''}"


def _sentinels(parts: SplitResult, shown: str) -> tuple[tuple[str, int], ...]:
    login, _, places = parts.netloc.rpartition("@")
    if "," in login:
        raise ConfigError(
            f"{shown}: write the user and the password of Redis once, before the first Sentinel; write a "
            "comma in them as %2C"
        )
    found = []
    for place in places.split(","):
        try:
            one = urlsplit(f"//{place}")
            host, port = one.hostname, one.port
        except ValueError as error:
            raise ConfigError(f"{shown}: in {place!r} {_without_url(error)}") from None
        if not host:
            raise ConfigError(f"{shown} names no Sentinel: write {SENTINEL}://HOST:PORT,HOST:PORT/NAME")
        if port == 0:
            raise ConfigError(f"{shown}: port 0 is not valid for a Sentinel")
        found.append((host, port or _SENTINEL_PORT))
    return tuple(found)


def _primary(parts: SplitResult, shown: str) -> str:
    name = unquote(parts.path.strip("/"))
    if not name:
        raise ConfigError(
            f"{shown} does not name the primary: write {SENTINEL}://HOST:PORT/NAME, with the NAME of `sentinel monitor`"
        )
    if "/" in name:
        raise ConfigError(f"{shown}: {name!r} is not a name of a primary; write the database of Redis as ?db=1")
    return name


def _watched_server_url(parts: SplitResult, given: dict[str, str], shown: str) -> str:
    """The URL of a server whose host only Sentinels know."""
    login, at, _ = parts.netloc.rpartition("@")
    return f"redis://{login}{at}/{_database(given.get('db', '0'), shown)}"


def _database(text: str, shown: str) -> str:
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{shown}: the database of Redis must be a number such as 0, got {text!r}")
    return text


def _without_url(error: ValueError) -> str:
    """The reason of a parser, which may repeat the part of the URL that has the password."""
    return "its port is not a number from 0 to 65535" if "ort" in str(error) else "its host cannot be read"
