"""What a store in memory does besides the contract, which `tests/conformance/test_stores.py` holds it to."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, NewJob, Room, Store
from penstock.jobs.stores import memory_store
from penstock.jobs.stores.memory_job import MemoryJob
from penstock.jobs.stores.memory_store import MOST_LEFT_OVER, MemoryStore
from penstock.jobs.stores.opening import open_store


@pytest.fixture
def named():
    """Gives stores by name, and leaves no job in them."""
    given = []

    def give(name, queue="default"):
        given.append(MemoryStore.named(name, queue))
        return given[-1]

    yield give
    for store in given:
        store.purge(None, 0.0)


def test_one_name_and_queue_are_the_same_jobs_each_time(named):
    named("jobs").submit([NewJob("a")])
    assert [job.id for job in named("jobs").list_jobs(None, 10, None)] == ["a"]


def test_another_name_or_another_queue_are_other_jobs(named):
    named("jobs").submit([NewJob("a")])
    others = [named("jobs", "other"), named("other")]
    assert [store.list_jobs(None, 10, None) for store in others] == [[], []]


def test_the_time_is_told_by_the_functions_given():
    times = {"now": 5.0, "wall": 1000.0}
    store: Store = MemoryStore(now=lambda: times["now"], wall=lambda: times["wall"])
    (job,) = store.submit([NewJob("a", delay=2.0)])
    assert (job.state, job.created_at, job.scheduled_at) == (JobState.SCHEDULED, 1000.0, 1002.0)
    times["now"] = 6.99
    assert store.claim("h", lease=30.0, rooms=[Room(("",), 1, 100)]) == []
    times["now"] = 7.0
    (claimed,) = store.claim("h", lease=30.0, rooms=[Room(("",), 1, 100)])
    assert claimed.hold == ("a", 1)


def test_a_closed_store_still_has_its_jobs(named):
    store = named("jobs")
    store.submit([NewJob("a")])
    store.close()
    store.close()
    assert store.get(["a"]) != [None]


def test_the_url_of_a_store_in_memory_names_the_same_jobs_each_time(named):
    named("jobs", "q").submit([NewJob("a")])
    assert open_store("memory://jobs?queue=q").get(["a"]) != [None]
    assert open_store("memory://jobs").get(["a"]) == [None]


def claim(store, limit=1, lease=30.0, services=()):
    return store.claim("h", lease=lease, rooms=[Room(("", *services), limit, 1 << 30)])


def test_a_claim_looks_at_few_jobs_however_many_wait(monkeypatch):
    looks = []
    rank, see_time = memory_store._rank, MemoryJob.see_time
    monkeypatch.setattr(memory_store, "_rank", lambda job: looks.append(job) or rank(job))
    monkeypatch.setattr(MemoryJob, "see_time", lambda job, at: looks.append(job) or see_time(job, at))
    store = MemoryStore()
    store.submit([NewJob(f"{n}", priority=n % 7) for n in range(5000)])
    store.submit([NewJob(f"later-{n}", delay=3600.0, deadline=9e9) for n in range(5000)])
    held = claim(store, limit=10)
    looks.clear()
    claim(store, limit=10)
    store.renew([job.hold for job in held], 30.0)
    store.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED) for job in held])
    assert 0 < len(looks) < 100


def test_forgotten_jobs_are_not_held():
    store = MemoryStore()
    for _ in range(5):
        store.submit([NewJob(f"{n}", delay=3600.0 * (n % 2), deadline=9e9) for n in range(1000)])
        held = claim(store, limit=100)
        assert store.purge(None, 0.0) == 900
        store.end_attempts([AttemptEnd(job.hold, JobState.CANCELLED) for job in held])
        assert store.purge(None, 0.0) == 100
    lanes = [lane for lanes in store._waiting.values() for lane in lanes.values()]
    heaps = [store._scheduled, store._deadlines, store._leases, *lanes]
    assert max(len(heap._heap) for heap in heaps) <= MOST_LEFT_OVER
    assert (store._waits, store._waiting_bytes) == ({}, 0)


@pytest.mark.parametrize("seed", range(5))
def test_claims_come_in_the_order_of_a_look_at_all_jobs(seed):
    """Jobs go and come back by every way there is; each claim is compared with the jobs as they are listed."""
    draw = random.Random(seed)
    times = [1000.0]
    store = MemoryStore(now=lambda: times[0], wall=lambda: times[0])
    numbers, held, claims = iter(range(10**6)), {}, 0
    turns = []  # the ids, in the order in which those of one priority are claimed
    for _ in range(600):
        times[0] += draw.choice((0.0, 0.1, 1.0, 4.0))
        what = draw.randrange(8)
        jobs = store.list_jobs(None, 10**6, None)
        some = draw.choice(jobs).id if jobs else ""
        if what < 2:
            for _ in range(draw.randrange(4)):
                delay, deadline = draw.choice((0.0, 0.0, 2.0)), draw.choice((None, None, times[0] + 5.0))
                service = draw.choice(("", "a", "b"))
                url = draw.choice((None, None, "https://x/1", "https://y/1", "https://x/2"))
                more = {"delay": delay, "deadline": deadline, "service": service, "input_url": url}
                turns.append(f"{next(numbers)}")
                store.submit([NewJob(turns[-1], priority=draw.randrange(3), **more)])
        elif what < 4:
            services = draw.choice(((), ("a",), ("a", "b")))
            lapsed = {job_id for job_id, (_, until) in held.items() if until <= times[0]}
            found = [
                job
                for job in jobs
                if job.service in ("", *services) and (job.state is JobState.QUEUED or job.id in lapsed)
            ]
            found.sort(key=lambda job: (-job.priority, turns.index(job.id)))
            holder = draw.choice("hi")
            others = [job for job in found if job.id in lapsed and job.attempts[-1].consumer_id != holder]
            ended = [job.id for job in others if (job.expires_at or times[0] + 1) <= times[0]]
            ended += [job.id for job in others if job.failures.get("lease_expired", 0) == 4]
            limit, lease = draw.randrange(1, 4), draw.choice((1.0, 3.0, 30.0))
            at_hosts = {"https://x": draw.randrange(3)}
            rooms = [
                Room(("", *services), limit, 1 << 30),
                Room(("", *services), limit, 1 << 30, of_host=2, at_hosts=at_hosts),
            ]
            expected, taken = [], Counter(at_hosts)
            for kind in (False, True):
                left = limit
                for job in found:
                    host = NewJob("", input_url=job.input_url).host
                    if job.id not in ended and bool(host) is kind and left and (not kind or taken[host] < 2):
                        expected.append(job.id)
                        taken[host] += 1
                        left -= 1
            claimed = store.claim(holder, lease=lease, rooms=rooms)
            assert [job.id for job in claimed] == expected
            claims += len(claimed)
            held.update({job.id: (job.hold, times[0] + lease) for job in claimed})
        elif what == 4 and held:
            hold, _ = draw.choice(list(held.values()))
            to = draw.choice((JobState.QUEUED, JobState.SCHEDULED, JobState.SUCCEEDED, JobState.DEAD))
            cause = FailureCause.RELEASED if to is JobState.QUEUED else None
            if store.end_attempts([AttemptEnd(hold, to, cause=cause, rest=2.0)]) == ["ok"] and to is JobState.SCHEDULED:
                turns.remove(hold.job_id)
                turns.append(hold.job_id)
        elif what == 5 and held:
            hold, _ = draw.choice(list(held.values()))
            lease = draw.choice((1.0, 10.0))
            if store.renew([hold], lease)[0].answer == "ok":
                held[hold.job_id] = (hold, times[0] + lease)
        elif what == 6 and some and some not in held:
            (job,) = store.get([some])
            if not job.is_finished:
                store.cancel(some)
            elif job.state is not JobState.SUCCEEDED:
                store.retry(some)
        elif what == 7 and draw.random() < 0.1:
            store.purge(draw.choice((JobState.CANCELLED, JobState.QUEUED, JobState.SUCCEEDED)), 0.0)
        leased = {job.id for job in store.list_jobs(JobState.RUNNING, 10**6, None)}
        held = {job_id: each for job_id, each in held.items() if job_id in leased}
    assert claims > 50
