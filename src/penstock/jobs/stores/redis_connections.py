"""Make connections to a Redis server that may be another one tomorrow, behind a name or behind Sentinels.

Contract
--------
* A server is looked at over each new connection before it is used: its version, and the schema of the queue.  A
  connection that is kept tells nothing of who stands behind the name by now, and a new one may reach another server.
* The server's name is looked up, or Sentinels are asked, for each new connection and for no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, DefaultParser
from redis.exceptions import RedisError
from redis.retry import Retry

from penstock.errors import ConfigError, PenstockError, StoreUnavailable
from penstock.jobs.stores.redis_advice import LEAST_VERSION, read_version
from penstock.jobs.stores.redis_refusals import explain_refusal
from penstock.jobs.stores.redis_scripts import SCRIPTS

SCHEMA: Final = "1"
"""The version of the records and indexes that the scripts keep."""


class Unusable(RedisError):
    """Carries an error of ours through the library, which closes the connection at it."""

    def __init__(self, explained: PenstockError) -> None:
        super().__init__(str(explained))
        self.explained = explained


class _Parser(DefaultParser):  # type: ignore[misc, valid-type]  # it has no types
    """Reads answers, and does not refer to itself: else each connection would leave its buffer to the cycle collector.

    The library's own keeps methods of itself as handlers of push messages, which protocol 2 does not have.
    """

    def __init__(self, socket_read_size: int) -> None:
        super().__init__(socket_read_size)
        for name, value in list(vars(self).items()):
            if getattr(value, "__self__", None) is self:
                setattr(self, name, None)


_READING: Final = {"parser_class": _Parser, "socket_read_size": 1 << 18}
"""How answers are read, of which `redis.Redis` takes nothing in every version."""


class Sentinels:
    """The Sentinels at `places` that watch the primary `name`; threads share them.

    Each search begins with another one, because a Sentinel that is cut off from the rest names the former primary for
    as long as it is.  They are asked over connections of the moment: where a Sentinel is may change as well.

    Args:
        places: a host and a port for each.
        name: the name under which they know the primary.
        timeout: the seconds that all of them together may take to connect, and to answer.
        login: the `username` and the `password` that they want, if any.
    """

    def __init__(
        self, places: Sequence[tuple[str, int]], name: str, timeout: float, login: Mapping[str, str] | None = None
    ) -> None:
        self._places = places
        self._name = name
        self._timeout = timeout / len(places)
        self._login = dict(login or {})
        self._searches = itertools.count()

    def __repr__(self) -> str:
        return f"{self._name} (Sentinel {', '.join(f'{host}:{port}' for host, port in self._places)})"

    def primary(self) -> tuple[str, int]:
        """The host and the port of the primary.

        Raises:
            Unusable: no Sentinel names it.  A reason against which another URL helps goes before the others.
        """
        first = next(self._searches) % len(self._places)
        problems: list[PenstockError] = []
        for host, port in (*self._places[first:], *self._places[:first]):
            try:
                return self._ask(host, port)
            except Unusable as error:
                problems.append(error.explained)
        for problem in problems:
            if isinstance(problem, ConfigError):
                raise Unusable(problem)
        raise Unusable(StoreUnavailable("; ".join(map(str, problems))))

    def _ask(self, host: str, port: int) -> tuple[str, int]:
        there = f"Sentinel at {host}:{port}"
        options = self._login | _options(self._timeout) | _READING
        connection: Any = Connection(host=host, port=port, **options)  # type: ignore[no-untyped-call]
        try:
            connection.connect()
            found = _ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        except RedisError as error:
            if "unknown command" in str(error):
                raise Unusable(ConfigError(f"{there} is not a Sentinel but a Redis server")) from None
            raise Unusable(explain_refusal(there, type(error).__name__, str(error), self._timeout)) from None
        finally:
            connection.disconnect()
        if found is None:
            raise Unusable(ConfigError(f"{there} monitors no primary with the name {self._name!r}"))
        return found[0].decode(), int(found[1])


class _ConnectionToPrimary(Connection):
    """Asks `sentinels` for its server whenever it connects."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # nothing of the library's connections has types
        self._sentinels = sentinels

    def _connect(self) -> Any:
        self.host, self.port = self._sentinels.primary()
        return super()._connect()  # type: ignore[no-untyped-call]


def make_client(
    where: Mapping[str, Any], sentinels: Sentinels | None, timeout: float, look: Callable[[Any], None]
) -> Any:
    """A client of the library, most of whose methods have no types that mypy can use.

    Args:
        where: as `redis.Redis` takes it; without a host where there are `sentinels`.
        sentinels: know the server.
        timeout: the seconds that it may take to connect, and to answer.
        look: is called with each new connection, as `look_at`.
    """
    client: Any = redis.Redis(**where, **_options(timeout), redis_connect_func=look)  # type: ignore[arg-type]
    pool = client.connection_pool
    pool.connection_kwargs |= _READING
    if sentinels is not None:
        pool.connection_class = _ConnectionToPrimary
        pool.connection_kwargs["sentinels"] = sentinels
    return client


def look_at(server: str, queue: str, prefix: str, connection: Any) -> None:
    """Look at a server over a new connection, and make the queue there.

    Raises:
        Unusable: it is too old, is no server for data, or has a queue of another version of Penstock.
    """
    connection.on_connect()
    told = dict(line.split(":", 1) for line in _ask(connection, "INFO", "server").decode().splitlines() if ":" in line)
    if told.get("redis_mode") == "sentinel":
        raise Unusable(ConfigError(f"{server} is a Sentinel: write redis+sentinel://HOST:PORT/NAME"))
    version = told.get("redis_version", "unknown")
    if read_version(version) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise Unusable(ConfigError(f"{server} has version {version}; version {least} or later is required"))
    schema = _ask(connection, "EVAL", SCRIPTS["open"].text, 1, prefix, SCHEMA, told.get("run_id", "")).decode()
    if schema != SCHEMA:
        raise Unusable(
            ConfigError(f"queue {queue} in {server} has schema {schema}, but this Penstock requires {SCHEMA}")
        )


def _ask(connection: Any, *words: str | int) -> Any:
    connection.send_command(*words)
    return connection.read_response()


def _options(timeout: float) -> dict[str, Any]:
    """How each connection is made, besides where to; `run` decides what is tried again."""
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
