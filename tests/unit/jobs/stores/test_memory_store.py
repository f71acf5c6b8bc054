"""What a store in memory does besides the contract, which `tests/conformance/test_stores.py` holds it to."""

from __future__ import annotations

import pytest

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import NewJob, Store
from penstock.jobs.stores.memory_store import MemoryStore
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
    assert (job.state, job.created, job.not_before) == (JobState.SCHEDULED, 1000.0, 1002.0)
    times["now"] = 6.99
    assert store.claim("h", lease=30.0, limit=1, max_bytes=100, services=()) == []
    times["now"] = 7.0
    (claimed,) = store.claim("h", lease=30.0, limit=1, max_bytes=100, services=())
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
