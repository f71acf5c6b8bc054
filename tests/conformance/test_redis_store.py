"""The suite of `penstock.testing.stores` over Redis: each test has a queue of its own on one server."""

from __future__ import annotations

import itertools

import pytest

from penstock.testing.stores import StoreSuite
from redis_server import private_redis


@pytest.fixture(scope="module")
def redis():
    with private_redis() as server:
        yield server


class TestRedisStore(StoreSuite):
    queues = itertools.count()

    @pytest.fixture(autouse=True)
    def _server(self, redis):
        self.connect = redis.connect

    def open(self):
        return self.connect(f"queue-{next(self.queues)}")

    def open_again(self, store):
        return self.connect(store.queue)
