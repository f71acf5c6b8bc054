"""The suite of `penstock.testing.stores` over Redis: each test has a queue of its own on one server."""

from __future__ import annotations

import itertools

import pytest
from waiting import until_now

from penstock.errors import ConfigError
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.rules.waiting_bounds import WaitingBounds
from penstock.jobs.store import Answer, AttemptEnd, NewJob, Room
from penstock.jobs.stores.redis_store import MOST_SUBMITTED
from penstock.testing.stores import StoreSuite
from redis_server import private_redis


@pytest.fixture(scope="module")
def redis():
    with private_redis() as server:
        yield server


def test_one_call_submits_no_more_than_the_server_does_soon(redis):
    store = redis.connect("large")
    many = [NewJob(id=str(n), digest=str(n)) for n in range(MOST_SUBMITTED + 1)]
    with pytest.raises(ConfigError, match="the maximum for Redis is 10000"):
        store.submit(many)
    assert store.stats().queued == 0
    assert len(store.submit(many[:-1])) == MOST_SUBMITTED
    store.close()


def test_a_job_that_an_earlier_version_has_submitted_is_claimed_wherever_its_input_is(redis, monkeypatch):
    store = redis.connect("earlier")
    with monkeypatch.context() as earlier:
        earlier.setattr(NewJob, "host", "")
        store.submit([NewJob("a", input_url="https://in/a")])
    store.submit([NewJob("b", input_url="https://in/b")])
    (claimed,) = store.claim("h", lease=30.0, rooms=[Room(("",), 9, 9)])
    assert (claimed.id, claimed.host) == ("a", "https://in")
    rests = AttemptEnd(claimed.hold, JobState.SCHEDULED, rest=0.001)
    assert store.end_attempts([rests]) == [Answer.OK]
    store.submit([NewJob("c")])
    until_now(lambda: store.stats().queued == 3)
    assert [job.id for job in store.claim("h", lease=30.0, rooms=[Room(("",), 9, 9)])] == ["a", "c"]
    store.close()


class TestRedisStore(StoreSuite):
    queues = itertools.count()

    @pytest.fixture(autouse=True)
    def _server(self, redis):
        self.connect = redis.connect

    def open(self):
        return self.connect(f"queue-{next(self.queues)}")

    def open_again(self, store):
        return self.connect(store.queue)

    def open_bounded(self, store, *, max_waiting, max_waiting_bytes):
        return self.connect(store.queue, bounds=WaitingBounds(max_waiting, max_waiting_bytes))
