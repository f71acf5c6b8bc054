from __future__ import annotations

import hashlib
import inspect
import os

import msgspec
import numpy as np
import pytest

from penstock import jobs
from penstock.errors import ConfigError, InvalidItem
from penstock.jobs.inputs import encode_input
from penstock.jobs.job import AttemptError
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, NewJob, Room
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.jobs.submitting import JobQueue
from penstock.jobs.submitting_async import AsyncJobQueue


class World:
    """A clock that goes on while somebody sleeps; what is planned happens on the way."""

    def __init__(self):
        self.time = 0.0
        self.pauses = []
        self.planned = {}
        self.unreachable = False
        self.asked = []

    def now(self):
        return self.time

    def wall(self):
        return 1_700_000_000.0 + self.time

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.time += seconds
        for moment in [moment for moment in self.planned if moment <= self.time]:
            self.planned.pop(moment)()


class FaultyStore(MemoryStore):
    """A store in memory that may be out of reach."""

    def __init__(self, world):
        super().__init__(now=world.now, wall=world.wall)
        self.world = world
        self.closed = 0

    def get(self, job_ids):
        self.world.asked.append(len(job_ids))
        if self.world.unreachable:
            raise jobs.StoreUnavailable("the store is gone")
        return super().get(job_ids)

    def close(self):
        self.closed += 1


@pytest.fixture
def world():
    return World()


@pytest.fixture
def store(world):
    return FaultyStore(world)


@pytest.fixture
def q(store, world):
    return JobQueue(store, shown="memory://", now=world.now, wall=world.wall, sleep=world.sleep)


def end(store, to=JobState.SUCCEEDED, **fields):
    """Claim the next job and end it."""
    (claimed,) = store.claim("holder", lease=30, rooms=[Room(("", "s"), 1, 1 << 20)])
    store.end_attempts([AttemptEnd(claimed.hold, to, **fields)])


# -- submit -----------------------------------------------------------------------------------------------------------


def test_a_job_is_kept_as_it_was_asked_for(q, store, world):
    job = q.submit({"x": 1}, priority=3, delay=5, deadline=world.wall() + 60, key="k", id="a", service="s",
                   output_url="s3://out/a", accept="application/msgpack")  # fmt: skip
    assert (job.id, job.state, job.priority, job.service, job.output_url) == ("a", "scheduled", 3, "s", "s3://out/a")
    assert (job.scheduled_at, job.expires_at) == (world.wall() + 5, world.wall() + 60)
    world.time += 5
    (claimed,) = store.claim("holder", lease=30, rooms=[Room(("", "s"), 1, 1 << 20)])
    assert (claimed.body, claimed.content_type, claimed.accept) == (
        b'{"x":1}',
        "application/json",
        "application/msgpack",
    )


def test_the_same_key_or_id_and_input_is_the_same_job_and_another_input_a_conflict(q):
    assert q.submit(1, key="k").id == q.submit(1, key="k").id
    assert q.submit(1, id="a") == q.submit(1, id="a")
    for same in ({"key": "k"}, {"id": "a"}):
        with pytest.raises(jobs.JobConflict):
            q.submit(2, **same)


@pytest.mark.parametrize(
    ("value", "same", "other"),
    [
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, {"a": 1, "b": 2}),
        (b'{"b": 1, "a": 2}', b'{"a":2,"b":1}', b'{"a":1,"b":2}'),
        ({0, 8}, {8, 0}, {8, 1}),
        (np.ones((2, 3)), np.ones((2, 3), order="F"), np.ones((3, 2))),
    ],
)
def test_inputs_are_compared_as_values_also_with_those_that_an_earlier_version_kept(q, store, value, same, other):
    type_ = "application/json" if isinstance(value, bytes) else None
    new = q.submit(value, key="new", content_type=type_)
    assert q.submit(same, key="new", content_type=type_) == new
    body, content_type = encode_input(value, type_)
    asked = msgspec.json.encode((content_type, None, "", 7, None, None))
    digest = hashlib.sha256(asked + b"\0" + body).hexdigest()
    store.submit([NewJob("old", body, content_type, "", key="old", digest=digest, priority=7)])
    for given in (value, same):
        assert q.submit(given, key="old", priority=7, content_type=type_).id == "old"
        many = [{"input": 1}, {"input": given, "id": "old", "priority": 7, "content_type": type_}]
        assert q.submit_many(many)[1].id == "old"
    for given, priority in ((other, 7), (value, 6), (same, 6)):
        with pytest.raises(jobs.JobConflict):
            q.submit(given, key="old", priority=priority, content_type=type_)


def test_an_input_that_is_gone_with_the_end_of_its_job_is_compared_as_its_digest_says(tmp_path):
    with jobs.connect(f"sqlite:///{tmp_path}/q.db") as q:
        q.submit({"b": 1, "a": 2}, key="k")
        old = b'{"b": 1, "a": 2}'
        digest = hashlib.sha256(msgspec.json.encode(("application/json", None, "", 0, None, None)) + b"\0" + old)
        q._connected.submit([NewJob("old", old, accept="", key="old", digest=digest.hexdigest())])
        for _ in range(2):
            end(q._connected, result=b"[]")
        assert q.submit({"a": 2, "b": 1}, key="k").state == "succeeded"
        assert q.submit(old, key="old", content_type="application/json").state == "succeeded"
        with pytest.raises(jobs.JobConflict):  # nothing says any more that this is the same value
            q.submit({"a": 2, "b": 1}, key="old")


def test_none_is_an_input_and_nothing_is_not(q):
    assert q.submit(None).state == "queued"
    with pytest.raises(ConfigError, match="a job needs an input"):
        q.submit()
    with pytest.raises(ConfigError, match="give input or input_url, not both"):
        q.submit(object(), input_url="s3://in/a")


def test_many_are_submitted_in_their_order(q):
    found = q.submit_many([{"input": 1}, {"input_url": "s3://in/a.wav", "priority": 5}])
    assert [(job.input_url, job.priority) for job in found] == [(None, 0), ("s3://in/a.wav", 5)]
    assert q.list() == found
    assert q.submit_many([]) == []


@pytest.mark.parametrize(
    ("entry", "kind", "words"),
    [
        ({"input": 1, "priorty": 5}, ConfigError, "entry 1: a job has no option 'priorty': did you mean 'priority'?"),
        ({}, ConfigError, "entry 1: a job needs an input"),
        (3, ConfigError, "entry 1: an entry must be a mapping such as {'input': 1, 'priority': 5}, got `int`"),
        ({"input": [float("nan")]}, InvalidItem, "entry 1: the input has a NaN or an infinity"),
        ({"input": bytes(300_000)}, jobs.InputTooLarge, "entry 1: the input has 300000 bytes"),
    ],
)
def test_one_wrong_entry_is_told_with_its_place_and_none_is_kept(q, entry, kind, words):
    with pytest.raises(kind, match=words.replace("?", r"\?").replace("{", r"\{")):
        q.submit_many([{"input": 1}, entry])
    assert q.list() == []


@pytest.mark.parametrize("entries", [5, None, "abc", b"abc", {"input": 1}])
def test_what_is_no_list_of_entries_is_told_in_a_sentence(q, entries):
    with pytest.raises(ConfigError, match=r"submit_many takes a list of mappings such as \[\{'input': 1\}\], got "):
        q.submit_many(entries)
    assert q.submit_many(iter([{"input": 1}]))


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16])
def test_numbers_of_numpy_are_taken_as_numbers(q, kind):
    job = q.submit(1, key="k", priority=kind(3), delay=kind(2))
    assert (job.priority, type(job.priority)) == (3, int)
    assert q.submit(1, key="k", priority=3, delay=np.float32(2)) == job
    assert q.submit(1, deadline=np.float64(job.created_at + 60)).expires_at == job.created_at + 60
    for wrong in (np.float64(3), np.bool_(True), np.int64(2_000_000_000)):
        with pytest.raises(ConfigError, match="priority must be an integer"):
            q.submit(1, priority=wrong)
    with pytest.raises(ConfigError, match="delay must be seconds"):
        q.submit(1, delay=np.bool_(True))


def test_the_largest_input_may_be_chosen():
    with jobs.connect("memory://tiny", max_inline_bytes=2) as q:
        q.submit(10)
        with pytest.raises(jobs.InputTooLarge):
            q.submit(100)
    for wrong in (-1, 1.0, True, None):
        with pytest.raises(ConfigError, match="max_inline_bytes must be a number of bytes"):
            jobs.connect("memory://tiny", max_inline_bytes=wrong)


# -- wait -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "body", "result"),
    [
        ("application/json", b'{"y":[1]}', {"y": [1]}),
        ("application/msgpack", msgspec.msgpack.encode({"y": 1}), {"y": 1}),
        ("application/octet-stream", b"\0", b"\0"),
        ("image/png", b"png", b"png"),
    ],
)
def test_a_result_is_read_by_its_media_type(q, store, content_type, body, result):
    job = q.submit(1)
    end(store, result=body, content_type=content_type)
    assert q.result(job) == q.result(job.id, timeout=0) == result


def test_a_result_that_is_an_array_comes_as_one(q, store):
    array = np.arange(6.0).reshape(2, 3)
    job = q.submit(array)
    (claimed,) = store.claim("holder", lease=30, rooms=[Room(("", "s"), 1, 1 << 20)])
    store.end_attempts(
        [AttemptEnd(claimed.hold, JobState.SUCCEEDED, result=claimed.body, content_type=claimed.content_type)]
    )
    assert np.array_equal(q.result(job), array)


def test_a_result_that_lies_elsewhere_is_its_url(q, store):
    job = q.submit(1, output_url="s3://out/a")
    end(store, content_type="application/json")
    assert q.result(job) == "s3://out/a"


def test_a_dead_job_raises_what_the_worker_raised(q, store):
    job = q.submit(1)
    problem = AttemptError("builtins.ValueError", "too long", "Traceback: here")
    end(store, JobState.DEAD, cause=FailureCause.INVALID_INPUT, counts=True, problem=problem)
    with pytest.raises(jobs.JobFailed) as caught:
        q.result(job)
    error = caught.value
    assert (error.job_id, error.type_name, error.traceback) == (job.id, "builtins.ValueError", "Traceback: here")
    assert str(error) == f"job {job.id} is dead: builtins.ValueError: too long\n\nTraceback: here"


def test_a_cancelled_and_an_expired_job_have_errors_of_their_own(q, world):
    cancelled, expired = q.submit(1), q.submit(2, deadline=world.wall() + 1)
    assert q.cancel(cancelled).state == "cancelled"
    with pytest.raises(jobs.JobCancelled, match=f"job {cancelled.id} is cancelled"):
        q.result(cancelled)
    with pytest.raises(jobs.JobExpired, match=f"job {expired.id} is expired"):
        q.result(expired)
    assert world.time >= 1


def test_who_waits_asks_soon_and_then_seldom(q, store, world):
    job = q.submit(1)
    world.planned[10.0] = lambda: end(store, result=b"1", content_type="application/json")
    assert q.result(job, timeout=60) == 1
    assert world.pauses[0] == 0.01
    assert all(later >= earlier for earlier, later in zip(world.pauses, world.pauses[1:], strict=False))
    assert max(world.pauses) == 0.2
    assert len(world.pauses) < 65


def test_who_waits_for_many_asks_in_pieces_and_more_seldom(q, store, world):
    many = q.submit_many([{"input": i} for i in range(1200)])
    world.planned[5.0] = lambda: [end(store, result=b"1", content_type="application/json") for _ in many]
    assert [job.id for job in q.wait(many, timeout=60)] == [job.id for job in many]
    assert max(world.asked) == 500
    assert max(world.pauses) == pytest.approx(0.6)


def test_only_the_jobs_that_have_not_ended_are_asked_for_again(q, store, world):
    first, second = q.submit(1), q.submit(2)
    end(store, result=b"1", content_type="application/json")
    world.planned[0.01] = lambda: end(store, result=b"2", content_type="application/json")
    assert [job.state for job in q.wait([second.id, first, first], timeout=1)] == ["succeeded"] * 3
    assert world.asked == [2, 1]


def test_what_has_not_ended_in_time_is_told(q, world):
    found = q.submit_many([{"input": i} for i in range(7)])
    with pytest.raises(TimeoutError, match=f"job {found[0].id} is still queued after 2 s"):
        q.result(found[0], timeout=2)
    assert world.time == 2
    with pytest.raises(TimeoutError, match=r"7 of 7 jobs have not finished after 0 s: .*, …"):
        q.wait(found, timeout=0)
    assert world.time == 2


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_a_timeout_is_a_number_of_seconds(q, timeout):
    with pytest.raises(ConfigError, match="timeout must be at least 0 seconds, or None to wait without a limit"):
        q.result("a", timeout=timeout)


def test_a_store_that_is_gone_for_a_while_is_asked_again(q, store, world):
    job = q.submit(1)
    end(store, result=b"1", content_type="application/json")
    world.unreachable = True
    world.planned[3.0] = lambda: setattr(world, "unreachable", False)
    assert q.result(job, timeout=10) == 1
    world.unreachable = True
    with pytest.raises(TimeoutError, match="after 1 s the states of the jobs are unknown: the store is gone"):
        q.result(job, timeout=1)
    with pytest.raises(jobs.StoreUnavailable):
        q.get(job)


# -- everything else --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nobody", "\udcff", "a\0b"])
def test_a_job_that_is_not_there_is_told(q, name):
    for call in (q.get, q.result, q.cancel, q.retry, lambda job_id: q.wait([job_id])):
        with pytest.raises(jobs.JobNotFound):
            call(name)
    with pytest.raises(jobs.JobNotFound):
        q.list(after=name)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q: q.get(7), "expected a Job or the id of a job, got 7"),
        (lambda q: q.get(""), "got ''"),
        (lambda q: q.wait("abc"), r"wait takes several jobs or ids, got one: write \['abc'\]"),
        (lambda q: q.wait(7), "wait takes jobs or their ids, got 7"),
        (lambda q: q.list("ded"), "there is no state 'ded': did you mean dead?"),
        (lambda q: q.list("x"), "there is no state 'x'; states: scheduled, queued"),
        (lambda q: q.list(limit=0), "limit must be an integer from 1 to 10000, got 0"),
        (lambda q: q.purge(older_than=-1), "older_than must be at least 0 seconds, got -1"),
        (lambda q: q.purge("all"), "there is no state 'all'"),
    ],
)
def test_what_is_asked_wrongly_is_told(q, call, words):
    with pytest.raises(ConfigError, match=words.replace("dead?", r"dead\?")):
        call(q)


def test_jobs_are_listed_retried_purged_and_counted(q):
    first, second = q.submit(1), q.submit(2)
    assert q.list(limit=1) == [first]
    assert q.list(after=first) == [second]
    q.cancel(first)
    assert [job.id for job in q.list("cancelled")] == [first.id]
    assert q.retry(first.id).generation == 2
    q.cancel(first)
    assert q.purge("cancelled") == 1
    q.pause()
    assert (q.stats().queued, q.stats().paused) == (1, True)
    q.resume()
    assert not q.stats().paused


def test_a_closed_queue_says_so(q, store):
    with q:
        q.submit(1)
    q.close()
    assert store.closed == 1
    assert repr(q) == "<JobQueue memory://, closed>"
    with pytest.raises(ConfigError, match="the connection to the queue memory:// is closed"):
        q.submit(1)


def test_a_queue_that_is_closed_during_a_wait_ends_the_wait(q, world):
    job = q.submit(1)
    world.planned[1.0] = q.close
    with pytest.raises(ConfigError, match="is closed"):
        q.result(job, timeout=None)


def test_a_fork_has_no_queue_and_leaves_its_parents_alone(q, store, monkeypatch):
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(ConfigError, match=f"was connected in process {parent}; connect in the fork"):
        q.submit(1)
    q.close()
    assert store.closed == 0


# -- awaited ----------------------------------------------------------------------------------------------------------


async def test_the_same_calls_are_awaited():
    async with jobs.connect_async("memory://awaited") as q:
        job = await q.submit({"x": 1}, key="a")
        (other,) = await q.submit_many([{"input": 2}])
        assert await q.get(job) == job
        assert await q.list() == [job, other]
        with pytest.raises(TimeoutError):
            await q.result(job, timeout=0)
        await q.cancel(job)
        assert [found.state for found in await q.wait([job], timeout=1)] == ["cancelled"]
        with pytest.raises(jobs.JobCancelled):
            await q.result(job)
        assert (await q.retry(job)).generation == 2
        await q.pause()
        assert (await q.stats()).paused
        await q.resume()
        assert await q.purge() == 2
    await q.close()
    with pytest.raises(ConfigError, match="is closed"):
        await q.submit(1)
    with pytest.raises(ConfigError, match="is connected already"):
        await q.__aenter__()


async def test_an_awaited_wait_pauses_on_its_event_loop(q, store, world):
    job = q.submit(1)
    world.planned[10.0] = lambda: end(store, result=b"1", content_type="application/json")

    async def sleep(seconds):
        world.sleep(seconds)

    async with AsyncJobQueue(lambda: q, sleep=sleep) as awaited:
        assert await awaited.result(job, timeout=60) == 1
    assert max(world.pauses) == 0.2


async def test_an_awaited_queue_says_when_it_is_not_connected_and_when_this_is_a_fork(monkeypatch):
    q = jobs.connect_async("memory://a")
    with pytest.raises(ConfigError, match="is not connected: write `async with"):
        await q.submit(1)
    with pytest.raises(ConfigError, match="two slashes"):
        jobs.connect_async("sqlite://q.db")
    async with q:
        parent = os.getpid()
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: parent + 1)
            with pytest.raises(ConfigError, match="connect in the fork"):
                await q.submit(1)
            await q.close()


def test_the_awaited_queue_is_called_as_the_other_is():
    for name, method in vars(JobQueue).items():
        if not name.startswith("_") and name not in ("poller", "result_poller", "run_poller", "get_many", "raw_result"):
            theirs = inspect.signature(getattr(AsyncJobQueue, name)).parameters.values()
            ours = inspect.signature(method).parameters.values()
            assert [(p.name, p.kind, p.default) for p in theirs] == [(p.name, p.kind, p.default) for p in ours], name
            assert inspect.iscoroutinefunction(getattr(AsyncJobQueue, name)), name
