"""A Redis server that crashes, stands still, is full, or has its records broken: no job is lost, none is done twice."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import StoreUnavailable
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, NewJob
from penstock.testing.store_case import failure, handed_back, ids, put, see, success, take, take_one
from redis_server import private_redis

PREFIX = "{penstock:default}:"
SHORT_TIMEOUT = 0.5
"""What a test waits for when a server does not answer."""


@pytest.fixture
def server():
    # With `everysec` Redis may answer before it has written: it waits while an fsync of its goes on.
    with private_redis("--appendfsync", "always") as server:
        yield server


@pytest.fixture
def store(server):
    store = server.connect()
    yield store
    store.close()


@pytest.fixture
def client(server):
    redis = pytest.importorskip("redis")
    with redis.Redis(unix_socket_path=server.path) as client:
        yield client


# -- the server ends --------------------------------------------------------------------------------------------------


def test_what_was_answered_is_there_after_a_crash_of_the_server(server, store):
    store.submit([NewJob(f"{n}", b"[1]", key=f"k{n}") for n in range(4)])
    done, held, *_ = take(store, limit=2)
    store.end_attempts([success(done.hold, b"7")])
    before = store.get(["0", "1", "2", "3"])
    server.kill()
    server.start()
    assert store.get(["0", "1", "2", "3"]) == before
    assert store.result("0").body == b"7"
    assert store.end_attempts([success(done.hold), success(held.hold)]) == [Answer.OK, Answer.OK]
    assert ids(take(store)) == ["2", "3"]


def test_while_the_server_is_gone_every_call_says_so_and_then_goes_on(server, store):
    put(store)
    server.kill()
    for call in (store.stats, lambda: take(store), lambda: put(store, "b")):
        with pytest.raises(StoreUnavailable, match=r"cannot connect to Redis at .*redis\.sock: "):
            call()
    server.start()
    assert ids(take(store)) == ["a"]


def test_a_fence_that_the_server_may_have_forgotten_is_not_given_again(server, store):
    # A power cut takes the last second, and the claims in it: the next fence of every job makes a jump.
    put(store)
    first = take_one(store)
    store.end_attempts([handed_back(first.hold)])
    server.kill()
    server.start()
    second = take_one(store)
    assert second.fence > first.fence + 1
    store.end_attempts([handed_back(second.hold)])
    assert take_one(store).fence == second.fence + 1


def test_a_connection_that_is_cut_costs_nothing(store, client):
    put(store)
    client.client_kill_filter(_type="normal", skipme=True)
    assert ids(take(store)) == ["a"]


def test_a_server_that_has_lost_its_scripts_gets_them_again(store, client):
    put(store)
    client.script_flush()
    assert ids(take(store)) == ["a"]


# -- the server stands still ------------------------------------------------------------------------------------------


def test_a_server_that_stands_still_is_unavailable_until_it_goes_on(server):
    store = server.connect(timeout=SHORT_TIMEOUT)
    put(store)
    server.pause()
    with pytest.raises(StoreUnavailable, match=r"Redis at .* did not respond within 0\.5 s"):
        store.stats()
    server.go_on()
    assert store.stats().queued == 1
    store.close()


def test_a_claim_whose_answer_was_lost_gets_the_same_jobs_again(server, client):
    store = server.connect(timeout=SHORT_TIMEOUT)
    store.submit([NewJob(name) for name in "abc"])
    client.ping()
    server.pause()
    with pytest.raises(StoreUnavailable):
        take(store, "me", limit=2)
    server.go_on()
    other = server.connect()
    assert ids(take(other, "other")) == ["c"]  # the first claim was done, by the time that this one is
    claimed = take(store, "me", limit=1)
    assert ids(claimed) == ["a"]  # there is room for one now, and the other goes back
    assert [see(store, name).state for name in "abc"] == [JobState.RUNNING, JobState.QUEUED, JobState.RUNNING]
    assert see(store, "b").attempts[0].cause == "released"
    assert see(store, "a").failures == see(store, "b").failures == {}
    assert ids(take(store, "me")) == ["b"]
    store.close()
    other.close()


def test_a_holder_may_renew_while_another_call_of_its_process_waits(server, store):
    put(store)
    held = take_one(store)
    waiting = server.connect()
    server.pause()
    calls = [threading.Thread(target=call) for call in (waiting.stats, lambda: store.renew([held.hold], 60))]
    for call in calls:
        call.start()
    server.go_on()
    for call in calls:
        call.join()
    assert store.renew([held.hold], 60)[0].answer is Answer.OK
    waiting.close()


# -- the server refuses -----------------------------------------------------------------------------------------------


def test_a_full_server_takes_no_jobs_and_what_is_held_can_be_ended(store, client):
    store.submit([NewJob(name) for name in "abc"])
    held, failed = take(store, limit=2)
    client.config_set("maxmemory", "1")
    for call in (lambda: put(store, "d"), lambda: take(store)):
        with pytest.raises(StoreUnavailable, match="is out of memory: maxmemory is reached"):
            call()
    assert [renewed.answer for renewed in store.renew([held.hold, failed.hold], 60)] == [Answer.OK, Answer.OK]
    assert store.end_attempts([success(held.hold), failure(failed.hold)]) == [Answer.OK, Answer.OK]
    assert store.purge(JobState.DEAD, 0.0) == 1
    client.config_set("maxmemory", "0")
    put(store, "d")
    assert ids(take(store)) == ["c", "d"]


def test_a_replica_takes_no_changes_and_says_so(store, client):
    put(store)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="is a read-only replica"):
        take(store)
    client.execute_command("REPLICAOF", "NO", "ONE")
    assert ids(take(store)) == ["a"]


# -- somebody else changes the records --------------------------------------------------------------------------------

BREAKS = {
    "no record": lambda client, key: client.delete(key),
    "another type": lambda client, key: (client.delete(key), client.rpush(key, "x")),
    "no state": lambda client, key: client.hdel(key, "live"),
    "no input": lambda client, key: client.hdel(key, "body"),
    "no options": lambda client, key: client.hdel(key, "spec"),
    "a state that is no record": lambda client, key: client.hset(key, "live", b"\xc1\xc1"),
    "a state that is a number": lambda client, key: client.hset(key, "live", b"\x07"),
    "a state that is unknown": lambda client, key: client.hset(key, "live", b"\x82\xa2id\xa1b\xa5state\xa1?"),
    "options that are no record": lambda client, key: client.hset(key, "spec", b"\xc1"),
    "options of another type": lambda client, key: client.hset(key, "spec", b"\x93\x01\x02\x03"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_job_whose_record_is_broken_ends_as_dead_and_the_others_go_on(store, client, how):
    store.submit([NewJob(name, b"1", priority=1, key=name) for name in "abc"])
    BREAKS[how](client, f"{PREFIX}job:b")
    claimed = take(store)
    assert ids(claimed) == ["a", "c"]
    assert set(store.end_attempts([success(job.hold) for job in claimed])) == {Answer.OK}
    broken = see(store, "b")
    assert broken.state is JobState.DEAD
    assert broken.error.message.startswith("the record of this job in Redis cannot be read")
    assert ids(store.list_jobs(None, 10, None)) == ["a", "b", "c"]
    assert (store.stats().succeeded, store.stats().dead, store.stats().running) == (2, 1, 0)
    assert store.purge(None, 0.0) == 3


@pytest.mark.parametrize("how", BREAKS)
def test_a_held_job_whose_record_is_broken_is_lost_to_its_holder(store, client, how):
    store.submit([NewJob(name) for name in "ab"])
    mine, broken = take(store)
    BREAKS[how](client, f"{PREFIX}job:b")
    assert see(store, "b").state in (JobState.DEAD, JobState.RUNNING)  # its input is not looked at once more
    answers = [renewed.answer for renewed in store.renew([mine.hold, broken.hold], 60)]
    assert answers == [Answer.OK, Answer.OK if how == "no input" else Answer.LOST]


def test_a_broken_job_that_is_retried_is_dead_once_more(store, client):
    put(store, "b")
    client.hdel(f"{PREFIX}job:b", "body")
    assert take(store) == []
    assert store.retry("b").generation == 2
    assert take(store) == []
    assert see(store, "b").state is JobState.DEAD


@pytest.mark.parametrize(
    ("options", "lease", "after"),
    [
        ({"delay": 0.001}, None, JobState.QUEUED),
        ({}, 0.001, JobState.RUNNING),
    ],
    ids=["due", "lost"],
)
def test_a_broken_job_does_not_stop_what_time_does(store, client, options, lease, after):
    store.submit([NewJob(name, **options) for name in "bc"])
    if lease is not None:
        take(store, lease=lease)
    client.delete(f"{PREFIX}job:b")
    while store.stats().dead == 0:  # until its time has come, in a millisecond
        store.tend(keep=60, keep_dead=60, seconds_per_job=None)
    assert see(store, "c").state is after


# -- what is left behind ----------------------------------------------------------------------------------------------


def test_all_keys_of_a_queue_are_in_one_slot_and_go_with_its_jobs(store, client):
    store.submit([NewJob(f"{n}", b"1", key=f"k{n}", service="s", deadline=1e12) for n in range(3)])
    claimed = take(store, services=["s"])
    store.end_attempts([success(claimed[0].hold), failure(claimed[1].hold), handed_back(claimed[2].hold)])
    names = client.keys("*")
    assert all(name.startswith(PREFIX.encode()) for name in names)
    assert store.purge(None, 0.0) == 3
    left = {name.removeprefix(PREFIX.encode()) for name in client.keys("*")}
    lasting = {name for name in left if not name.startswith(b"claim:")}
    assert lasting == {b"meta", b"services"}
    assert all(client.pttl(PREFIX.encode() + name) > 0 for name in left - lasting)


def test_a_thousand_jobs_that_have_expired_are_ended_in_bounded_steps(store):
    for first in range(0, 1200, 100):
        store.submit([NewJob(f"{first + n}", deadline=1.0) for n in range(100)])
    put(store, "last", priority=-1)
    found = []
    while not found:
        found = take(store)
    assert ids(found) == ["last"]
    assert store.stats().queued == 0
