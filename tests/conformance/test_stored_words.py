"""Queues that an earlier version has written are read, worked on, and keep their words.

`data/earlier` has the same jobs as SQL of a file and as commands for Redis, both from that version: at least one job in
each state, and after an attempt of each cause.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import LEASE_RAN_OUT, Answer, AttemptEnd, NewJob, Room
from penstock.jobs.stores.sqlite_schema import QUEUE_FILE
from penstock.jobs.stores.sqlite_store import SqliteStore
from redis_server import private_redis

EARLIER = Path(__file__).parents[1] / "data" / "earlier"
FOUND = {
    "succeeded": ("succeeded", {}, ["succeeded"]),
    "dead-by-input": ("dead", {"invalid_input": 1}, ["dead"]),
    "dead-by-crash": ("dead", {"worker_lost": 2}, ["worker_lost", "worker_lost", "dead"]),
    "dead-by-lost": ("dead", {"lease_expired": 5}, [*["lease_expired"] * 4, "dead"]),
    "retried": ("queued", {}, ["dead"]),
    "expired": ("expired", {}, []),
    "cancelled": ("cancelled", {}, []),
    "transfer": ("scheduled", {"transfer": 3}, ["transfer"]),
    "scheduled": ("scheduled", {}, []),
    "leased": ("running", {}, [""]),
    "lost": ("running", {"lease_expired": 1}, ["lease_expired", ""]),
    "to-be-cancelled": ("running", {}, [""]),
    "crash": ("queued", {"worker_lost": 1}, ["worker_lost"]),
    "released": ("queued", {}, ["released"]),
    "waiting": ("queued", {}, []),
}
"""The state of each job, its failures, and the causes of its attempts."""
LEFT = FOUND | {
    "retried": ("running", {}, ["dead", ""]),
    "leased": ("queued", {"lease_expired": 1, "worker_lost": 1}, ["lease_expired", "worker_lost"]),
    "lost": ("succeeded", {"lease_expired": 2}, ["lease_expired", "lease_expired", "succeeded"]),
    "to-be-cancelled": ("cancelled", {}, ["cancelled"]),
    "crash": ("dead", {"worker_lost": 2}, ["worker_lost", "dead"]),
    "released": ("queued", {}, ["released", "released"]),
    "waiting": ("dead", {"invalid_input": 1}, ["dead"]),
    "dead-by-lost": ("queued", {}, [*["lease_expired"] * 4, "dead"]),
    "new": ("queued", {}, []),
}
"""The same after `work_on`."""
OLD_WORDS = {
    "queued": "waiting", "running": "leased", "lease_expired": "lost", "worker_lost": "crash", "invalid_input": "input",
}  # fmt: skip
OLD_STATES = ("scheduled", "waiting", "leased", "succeeded", "dead", "cancelled", "expired")
"""By their numbers in a file."""


def in_old_words(jobs):
    return {
        job_id: (
            OLD_WORDS.get(state, state),
            {OLD_WORDS.get(cause, cause): count for cause, count in failures.items()},
            [OLD_WORDS.get(cause, cause) for cause in causes],
        )
        for job_id, (state, failures, causes) in jobs.items()
    }


class OldFile:
    """A queue in a file."""

    def __init__(self, folder):
        self.path = folder / "q.db"
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript((EARLIER / "queue.sql").read_text())
            connection.execute(f"PRAGMA application_id = {QUEUE_FILE.application_id}")
            connection.execute("PRAGMA user_version = 2")

    def open(self):
        return SqliteStore(str(self.path), "q")

    def raw(self):
        """The jobs by the words in the file."""
        columns = "id, state, attempts, history, claimed, claim_ended, cause"
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(f"SELECT {columns} FROM jobs").fetchall()
        found = {}
        for job_id, state, counts, history, claimed, ended, cause in rows:
            older = json.loads(history or "[]")
            assert all(each.keys() == {"run", "fence", "holder", "claimed", "ended", "cause"} for each in older)
            assert (cause is None) == (ended is None)
            causes = [each["cause"] for each in older] + ([] if claimed is None else [cause or ""])
            found[job_id] = (OLD_STATES[state], json.loads(counts), causes)
        return found


class OldServer:
    """A queue in Redis."""

    def __init__(self, redis):
        self.redis = redis
        for name, key, *words in json.loads((EARLIER / "queue.json").read_text()):
            values = [base64.b64decode(word) if name == "HSET" and n % 2 else word for n, word in enumerate(words)]
            redis.command(name, key, *values)

    def open(self):
        return self.redis.connect("q")

    def raw(self):
        """The jobs by the words in their records; each stands in the index of its state."""
        found = {}
        for key in self.redis.command("KEYS", "{penstock:q}:job:*"):
            words = self.redis.command("HGETALL", key)
            fields = words if isinstance(words, dict) else dict(zip(words[::2], words[1::2], strict=True))
            live = msgspec.msgpack.decode(fields[b"live"])
            assert self.redis.command("ZSCORE", f"{{penstock:q}}:state:{live['state']}", live["id"]) is not None
            attempts = [fields.get(f"h{n}".encode()) for n in range(1, live["claims"] + 1)]
            causes = ["" if each is None else msgspec.msgpack.decode(each)[5] for each in attempts]
            found[live["id"]] = (live["state"], live.get("attempts") or {}, causes)
        return found


@pytest.fixture(params=["sqlite", "redis"])
def old(request, tmp_path):
    if request.param == "sqlite":
        yield OldFile(tmp_path)
        return
    with private_redis() as redis:
        yield OldServer(redis)


def shown(store):
    jobs = store.list_jobs(None, 100, None)
    return {job.id: (job.state.value, job.failures, [attempt.cause for attempt in job.attempts]) for job in jobs}


def work_on(store):
    """Claim all that may be claimed, and end it by each cause."""
    claimed = {job.id: job for job in store.claim("new", lease=60.0, rooms=[Room(("",), 99, 1 << 20)])}
    assert claimed.keys() == {"retried", "leased", "lost", "crash", "released", "waiting"}
    assert (claimed["crash"].attempts, claimed["lost"].attempts) == ({"worker_lost": 1}, {"lease_expired": 2})
    holds = {job_id: job.hold for job_id, job in claimed.items()}
    ends = [
        AttemptEnd(holds["leased"], JobState.QUEUED, FailureCause.WORKER_LOST, counts=True),
        AttemptEnd(holds["lost"], JobState.SUCCEEDED, result=b"3", content_type="application/json"),
        AttemptEnd(holds["crash"], JobState.DEAD, FailureCause.WORKER_LOST, counts=True, problem=LEASE_RAN_OUT),
        AttemptEnd(holds["released"], JobState.QUEUED, FailureCause.RELEASED),
        AttemptEnd(holds["waiting"], JobState.DEAD, FailureCause.INVALID_INPUT, counts=True),
    ]
    for _ in range(2):  # an end whose answer was lost is told again
        assert store.end_attempts(ends) == [Answer.OK] * len(ends)
    store.retry("dead-by-lost")
    store.submit([NewJob("new", digest="n")])


def test_a_queue_of_an_earlier_version_is_read(old):
    assert old.raw() == in_old_words(FOUND)
    store = old.open()
    assert shown(store) == FOUND
    stats = store.stats()
    assert (stats.queued, stats.running, stats.scheduled, stats.dead) == (4, 3, 2, 3)
    queued = store.list_jobs(JobState.QUEUED, 100, None)
    assert [job.id for job in queued] == ["retried", "crash", "released", "waiting"]
    assert [job.id for job in store.list_jobs(JobState.RUNNING, 100, None)] == ["leased", "lost", "to-be-cancelled"]
    store.close()


def test_what_is_written_to_it_has_its_words(old):
    store = old.open()
    work_on(store)
    assert shown(store) == LEFT
    store.close()
    assert old.raw() == in_old_words(LEFT)


def test_jobs_are_forgotten_by_their_states(old):
    store = old.open()
    assert store.purge(JobState.QUEUED, 0) == 4
    assert shown(store).keys() == FOUND.keys() - {"retried", "crash", "released", "waiting"}
    store.close()
