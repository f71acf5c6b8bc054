"""Reach a Redis server, and run the scripts of one queue on it.

Contract
--------
* A server is looked at before it is used: its version, and the schema of the queue; also after it was restarted.
* A server that was used and refuses us later is not available, as one that is gone: whoever holds jobs goes on with
  them, and asks again.
* A call that loses its connection is made once more at once.  Every call ends within a few times the timeout.
* No message and no `repr` has a password.
"""

from __future__ import annotations

from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import DefaultParser, SSLConnection
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from penstock.core.leases import LONGEST_CALL_SECONDS
from penstock.errors import ConfigError, PenstockError, StoreUnavailable
from penstock.jobs.advice import Advice
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds
from penstock.jobs.stores.redis_advice import LEAST_VERSION, advise, read_version
from penstock.jobs.stores.redis_refusals import explain_refusal
from penstock.jobs.stores.redis_scripts import read_scripts
from penstock.jobs.stores.redis_store import RedisStore
from penstock.jobs.stores.redis_tls import asked_wrongly
from penstock.jobs.stores.urls import QUEUE_NAME, StoreUrl

SCHEMA: Final = "1"
"""The version of the records and indexes that the scripts keep."""

_SCRIPTS = read_scripts()
_TOLD: Final = ("server", "memory", "persistence", "replication")
"""The parts of INFO that an advice needs."""


def open_redis_store(place: StoreUrl, *, timeout: float = LONGEST_CALL_SECONDS) -> RedisStore:
    """The store that a URL names; see `connect_redis`."""
    parse_url: Any = redis.connection.parse_url  # it has no types
    try:
        parts = parse_url(place.server)
    except ValueError:
        raise ConfigError(f"{place.shown} cannot be read as the URL of a Redis server") from None
    if "path" in parts:
        parts["unix_socket_path"] = parts.pop("path")
    if parts.pop("connection_class", None) is SSLConnection:
        parts["ssl"] = True
    return connect_redis(place.queue, timeout=timeout, bounds=place.bounds, **parts)


def connect_redis(
    queue: str = "default",
    *,
    timeout: float = LONGEST_CALL_SECONDS,
    bounds: WaitingBounds = NO_BOUNDS,
    **server: Any,
) -> RedisStore:
    """A store of the queue `queue` on the Redis server that `server` says.

    Args:
        queue: the name of the queue.
        timeout: the seconds that it may take to connect, and to answer.
        bounds: how much may wait in the queue when this store submits.
        server: as `redis.Redis` takes it: `host`, `port`, `db`, `username`, `password`, `ssl`, `ssl_ca_certs`,
            `ssl_certfile`, `ssl_keyfile`, or `unix_socket_path`.

    Raises:
        ConfigError: the server is too old, refuses us, has TLS where we use none or the other way round, or has a queue
            of another version of Penstock.
        StoreUnavailable: it cannot be reached.
    """
    if QUEUE_NAME.fullmatch(queue) is None:
        raise ConfigError(f"the name of a queue has 1 to 64 of A-Z a-z 0-9 . _ -, got {queue!r}")
    connected = RedisServer(queue, timeout, server)
    try:
        connected.prepare()
    except PenstockError as error:
        connected.close()
        if isinstance(error, StoreUnavailable) and "unix_socket_path" not in server:
            place, tls = (server.get("host", "localhost"), server.get("port", 6379)), bool(server.get("ssl"))
            if instead := asked_wrongly(*place, tls=tls, timeout=timeout):
                raise ConfigError(f"{connected} {instead}") from None
        raise
    return RedisStore(connected, queue, bounds)


class _Parser(DefaultParser):  # type: ignore[misc, valid-type]  # it has no types
    """Reads answers, and does not refer to itself: else each connection would leave its buffer to the cycle collector.

    The library's own keeps methods of itself as handlers of push messages, which protocol 2 does not have.
    """

    def __init__(self, socket_read_size: int) -> None:
        super().__init__(socket_read_size)
        for name, value in list(vars(self).items()):
            if getattr(value, "__self__", None) is self:
                setattr(self, name, None)


class RedisServer:
    """A Redis server with the scripts of one queue; threads share it.  `where` is what `connect_redis` takes."""

    def __init__(self, queue: str, timeout: float, where: dict[str, Any]) -> None:
        self._queue = queue
        self._prefix = f"{{penstock:{queue}}}:"
        self._where = where.get("unix_socket_path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        self._timeout = timeout
        self._client: Any = redis.Redis(  # Any: most of its methods have no types that mypy can use
            **where,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            socket_read_size=1 << 18,
            retry=Retry(NoBackoff(), 0),  # `run` decides what is tried again
            protocol=2,
        )
        self._client.connection_pool.connection_kwargs["parser_class"] = _Parser

    def __repr__(self) -> str:
        return f"Redis at {self._where}"

    def run(self, name: str, *arguments: str | bytes | float) -> Any:
        """See `ScriptServer`."""
        sha, failures = _SCRIPTS[name].sha, 0
        while True:
            try:
                return self._client.execute_command("EVALSHA", sha, 1, self._prefix, *arguments)
            except RedisError as error:
                failures += 1
                if failures > 2 or (failures > 1 and type(error) is Disconnected):
                    raise self._not_now(error) from None
                if isinstance(error, NoScriptError):
                    self.prepare()  # it was restarted
                elif type(error) is not Disconnected:
                    raise self._not_now(error) from None

    def prepare(self) -> None:
        """See that we can use the server and the queue in it, and have the server know the scripts.

        Raises:
            ConfigError, StoreUnavailable: see `connect_redis`.
        """
        try:
            server = self._info("server")
            if read_version(server.get("redis_version", "")) < LEAST_VERSION:
                found = server.get("redis_version", "unknown")
                raise ConfigError(f"{self} is version {found}; at least 6.2 is needed")
            run_id, script = server.get("run_id", ""), _SCRIPTS["open"].text
            schema = self._client.execute_command("EVAL", script, 1, self._prefix, SCHEMA, run_id).decode()
            if schema != SCHEMA:
                raise ConfigError(
                    f"queue {self._queue} in {self} has schema {schema}, and this Penstock knows {SCHEMA}"
                )
            # Behind the check: who misses a script comes here, so that nobody claims from a server not looked at.
            for each in _SCRIPTS.values():
                self._client.script_load(each.text)
        except RedisError as error:
            raise self._explained(error) from None

    def advice(self) -> list[Advice]:
        """See `ScriptServer`."""
        try:
            told = {name: text for part in _TOLD for name, text in self._info(part).items()}
            return advise(told, self._settings())
        except RedisError as error:
            raise self._explained(error) from None

    def close(self) -> None:
        """See `ScriptServer`."""
        self._client.close()

    def _info(self, part: str) -> dict[str, str]:
        return {name: str(value) for name, value in self._client.info(part).items()}

    def _settings(self) -> dict[str, str]:
        """What the server tells of its configuration."""
        try:
            found = [self._client.config_get(name) for name in ("maxmemory-policy", "appendfsync")]
        except ResponseError:
            return {}  # hosted servers have no CONFIG, and some users may not ask
        return {str(name): str(value) for each in found for name, value in each.items()}

    def _not_now(self, error: RedisError) -> StoreUnavailable:
        explained = self._explained(error)
        return explained if isinstance(explained, StoreUnavailable) else StoreUnavailable(str(explained))

    def _explained(self, error: RedisError) -> PenstockError:
        return explain_refusal(repr(self), type(error).__name__, str(error), self._timeout)
