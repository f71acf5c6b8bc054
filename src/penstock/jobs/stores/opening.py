"""Open the store that a URL names.

Each kind of store is imported when one is opened: nobody needs the library of a store that they do not use.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module

from penstock.core.leases import LONGEST_CALL_SECONDS
from penstock.errors import ConfigError
from penstock.jobs.store import Store
from penstock.jobs.stores.urls import MEMORY, SQLITE, StoreUrl, masked, read_store_url

__all__ = ["masked", "open_store", "read_store_url"]


def open_store(url: str, *, timeout: float = LONGEST_CALL_SECONDS) -> Store:
    """A connection of its own to the queue that `url` names.

    `timeout` is how many seconds a server may take to connect, and to answer a call; a file has no such limit.

    * ``memory://`` or ``memory://NAME``: in this process only; the same URL is the same store.
    * ``sqlite:///q.db``: a file below the current folder; ``sqlite:////path/q.db``: one with an absolute path.
      ``?synchronous=FULL`` or ``NORMAL``.
    * ``redis://HOST:PORT/DB``, ``rediss://…`` with TLS, ``unix:///path/of/redis.sock``.
    * ``redis+sentinel://HOST:PORT,HOST:PORT/NAME``: the Redis server that these Sentinels know as the primary NAME.

    Each with ``?queue=NAME``; without it the queue is ``default``.

    Raises:
        ConfigError: it is not the URL of a queue, the library of its store is not installed, or the store that is
            there is none of ours.
        StoreUnavailable: the store cannot be reached.
    """
    place = read_store_url(url)
    if place.scheme == MEMORY:
        return _opened("memory_store", "open_memory_store", place)
    if place.scheme == SQLITE:
        return _opened("sqlite_store", "open_sqlite_store", place)
    if importlib.util.find_spec("redis") is None:
        raise ConfigError(f"{place.shown} needs the redis library: pip install 'penstock[redis]'")
    return _opened("redis_", "open_redis_store", place, timeout=timeout)


def _opened(module: str, function: str, place: StoreUrl, **options: float) -> Store:
    """What a store's module makes of `place`."""
    store: Store = getattr(import_module(f"penstock.jobs.stores.{module}"), function)(place, **options)
    return store
