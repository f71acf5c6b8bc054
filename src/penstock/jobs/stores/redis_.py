"""Reach a Redis server, and run the scripts of one queue on it.

Contract
--------
* A server is looked at before it is used: its version, and the schema of the queue; also after it was restarted, and
  where its name leads to another one by now.
* A server that was used and refuses us later is not available, as one that is gone: whoever holds jobs goes on with
  them, and asks again.
* A call that loses its connection, or is told that another server may be the one, is made once more at once, over a
  new connection.  Every call ends within a few times the timeout.
* No message and no `repr` has a password.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import redis
from redis.connection import SSLConnection
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from penstock.core.leases import LONGEST_CALL_SECONDS
from penstock.errors import ConfigError, PenstockError, StoreUnavailable
from penstock.jobs.advice import Advice
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds
from penstock.jobs.stores.redis_advice import advise
from penstock.jobs.stores.redis_connections import Sentinels, Unusable, look_at, make_client
from penstock.jobs.stores.redis_refusals import explain_refusal, may_have_moved
from penstock.jobs.stores.redis_scripts import SCRIPTS
from penstock.jobs.stores.redis_store import RedisStore
from penstock.jobs.stores.redis_tls import asked_wrongly
from penstock.jobs.stores.urls import QUEUE_NAME, StoreUrl

_TOLD: Final = ("server", "memory", "persistence", "replication")
"""The parts of INFO that an advice needs."""


def open_redis_store(place: StoreUrl, *, timeout: float = LONGEST_CALL_SECONDS) -> RedisStore:
    """The store that a URL names; see `connect_redis`."""
    parse_url: Any = redis.connection.parse_url  # it has no types
    try:
        parts = parse_url(place.server)
    except ValueError:
        raise ConfigError(f"{place.shown} is not a valid URL of a Redis server") from None
    if "path" in parts:
        parts["unix_socket_path"] = parts.pop("path")
    if parts.pop("connection_class", None) is SSLConnection:
        parts["ssl"] = True
    sentinels = Sentinels(place.sentinels, place.primary, timeout, place.sentinel_login) if place.sentinels else None
    return connect_redis(place.queue, timeout=timeout, bounds=place.bounds, sentinels=sentinels, **parts)


def connect_redis(
    queue: str = "default",
    *,
    timeout: float = LONGEST_CALL_SECONDS,
    bounds: WaitingBounds = NO_BOUNDS,
    sentinels: Sentinels | None = None,
    **server: Any,
) -> RedisStore:
    """A store of the queue `queue` on the Redis server that `server` says.

    Args:
        queue: the name of the queue.
        timeout: the seconds that it may take to connect, and to answer.
        bounds: how much may wait in the queue when this store submits.
        sentinels: tell which server it is, where `server` does not say so.
        server: as `redis.Redis` takes it: `host`, `port`, `db`, `username`, `password`, `ssl`, `ssl_ca_certs`,
            `ssl_certfile`, `ssl_keyfile`, or `unix_socket_path`.

    Raises:
        ConfigError: the server is too old, refuses us, has TLS where we use none or the other way round, or has a queue
            of another version of Penstock.
        StoreUnavailable: it cannot be reached.
    """
    if QUEUE_NAME.fullmatch(queue) is None:
        raise ConfigError(f"the name of a queue must be 1 to 64 characters of A-Z a-z 0-9 . _ -, got {queue!r}")
    connected = RedisServer(queue, timeout, server, sentinels)
    try:
        connected.prepare()
    except PenstockError as error:
        connected.close()
        if isinstance(error, StoreUnavailable) and sentinels is None and "unix_socket_path" not in server:
            place, tls = (server.get("host", "localhost"), server.get("port", 6379)), bool(server.get("ssl"))
            if instead := asked_wrongly(*place, tls=tls, timeout=timeout):
                raise ConfigError(f"{connected} {instead}") from None
        raise
    return RedisStore(connected, queue, bounds)


class RedisServer:
    """A Redis server with the scripts of one queue; threads share it.  The arguments are those of `connect_redis`."""

    def __init__(self, queue: str, timeout: float, where: dict[str, Any], sentinels: Sentinels | None = None) -> None:
        self._prefix = f"{{penstock:{queue}}}:"
        host_and_port = f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        self._where = where.get("unix_socket_path") or (host_and_port if sentinels is None else f"{sentinels!r}")
        self._timeout = timeout
        look = partial(look_at, repr(self), queue, self._prefix)
        self._client: Any = make_client(where, sentinels, timeout, look)

    def __repr__(self) -> str:
        return f"Redis at {self._where}"

    def run(self, name: str, *arguments: str | bytes | float) -> Any:
        """See `ScriptServer`."""
        sha, failures, missing = SCRIPTS[name].sha, 0, False
        while True:
            try:
                if missing:
                    self._load_scripts()
                return self._client.execute_command("EVALSHA", sha, 1, self._prefix, *arguments)
            except RedisError as error:
                failures += 1
                missing = isinstance(error, NoScriptError)  # it was restarted, or is another server
                lost = type(error) is Disconnected or may_have_moved(type(error).__name__, str(error))
                if lost or isinstance(error, NoAnswer):
                    # That of the error is idle again, and others lead to where it did.  Calls of other threads go on.
                    self._client.connection_pool.disconnect(inuse_connections=False)
                if failures > 2 or (failures > 1 and lost) or not (missing or lost):
                    raise self._not_now(error) from None

    def prepare(self) -> None:
        """See that we can use the server and the queue in it, and have the server know the scripts.

        Raises:
            ConfigError, StoreUnavailable: see `connect_redis`.
        """
        try:
            self._load_scripts()
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

    def _load_scripts(self) -> None:
        for each in SCRIPTS.values():
            self._client.script_load(each.text)

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
        if isinstance(error, Unusable):
            return error.explained
        return explain_refusal(repr(self), type(error).__name__, str(error), self._timeout)
