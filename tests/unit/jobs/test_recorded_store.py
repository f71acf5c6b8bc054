"""What a recorded store and a recorded call write down: a line before each act, and one after it."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from penstock.errors import JobConflict, StoreUnavailable
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, NewJob, Room
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.testing.history import Act, EventLog, Part, RecordedStore, log_to, read_events, record_call
from penstock.testing.history_events import pair_up


@pytest.fixture
def lines():
    return []


@pytest.fixture
def store(lines):
    return RecordedStore(MemoryStore(), EventLog(lines.append, process="p"))


def claim(store):
    return store.claim("h", lease=30.0, rooms=[Room(("",), 10, 100)])


def test_each_act_is_a_line_before_it_and_a_line_after_it(store, lines):
    store.submit([NewJob("a", body=b"xyz")])
    (job,) = claim(store)
    store.renew([job.hold], 20.0)
    store.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED)])
    events = read_events(lines)
    assert [(event.act, event.ended) for event in events] == [
        (act, ended) for act in (Act.SUBMIT, Act.CLAIM, Act.RENEW, Act.END) for ended in (False, True)
    ]
    assert [done.parts for done in pair_up(events)] == [
        (Part("a", run=1, answer="queued"),),
        (Part("a", fence=1, run=1, size=3, answer="ok"),),
        (Part("a", fence=1, answer="ok"),),
        (Part("a", fence=1, to="succeeded", answer="ok"),),
    ]
    assert [done.begun.lease for done in pair_up(events)] == [0.0, 30.0, 20.0, 0.0]


def test_a_claim_is_written_down_with_its_rooms_and_what_its_jobs_are_for(store, lines):
    store.submit([NewJob("a", service="s", input_url="https://x/a"), NewJob("b", service="t", body=b"1")])
    rooms = [Room(("s", ""), 1, 2, 3, Counter({"https://x": 1})), Room(("t",), 4, 5)]
    store.claim("h", lease=30.0, rooms=rooms)
    store.claim("h", lease=30.0, rooms=[])
    (_, first, second) = pair_up(read_events(lines))
    assert (first.begun.rooms, second.begun.rooms) == (tuple(rooms), ())
    assert [(part.job, part.service, part.host) for part in first.parts] == [("a", "s", "https://x"), ("b", "t", "")]


def test_a_pause_is_written_down_with_its_end(store, lines):
    store.pause()
    store.resume()
    assert [(done.begun.act, done.ended is not None) for done in pair_up(read_events(lines))] == [
        (Act.PAUSE, True),
        (Act.RESUME, True),
    ]


def test_what_the_store_refuses_was_nothing_to_any_job(store, lines):
    store.submit([NewJob("a")])
    for refused in (lambda: store.submit([NewJob("a", digest="other")]), lambda: store.retry("a")):
        with pytest.raises(JobConflict):
            refused()
        done = pair_up(read_events(lines))[-1]
        assert (done.begun.parts, done.parts) == ((Part("a"),), ())


def test_a_call_that_the_store_did_not_answer_has_no_end(lines):
    class Gone(MemoryStore):
        def submit(self, jobs):
            raise StoreUnavailable("gone")

        cancel = submit

        def claim(self, holder, **options):
            raise StoreUnavailable("gone")

    store = RecordedStore(Gone(), EventLog(lines.append, process="p"))
    for call in (lambda: store.submit([NewJob("a")]), lambda: store.cancel("a"), lambda: claim(store)):
        with pytest.raises(StoreUnavailable):
            call()
    assert [(done.begun.act, done.ended) for done in pair_up(read_events(lines))] == [
        (Act.SUBMIT, None),
        (Act.CANCEL, None),
        (Act.CLAIM, None),
    ]


def test_what_a_holder_has_given_up_is_written_down_before_the_claim(store, lines):
    store.submit([NewJob("a")])
    (job,) = claim(store)
    store.claim("h", lease=30.0, rooms=[Room(("",), 10, 100)], given_up=[job.hold])
    acts = pair_up(read_events(lines))[-2:]
    assert [(done.begun.act, done.parts) for done in acts] == [(Act.GIVE_UP, (Part("a", fence=1),)), (Act.CLAIM, ())]


def test_it_is_the_store_that_it_records(store):
    store.submit([NewJob("a"), NewJob("b")])
    assert store.queue == "default"
    assert store.cancel("a").state is JobState.CANCELLED
    assert store.retry("a").generation == 2
    store.pause()
    assert (claim(store), store.stats().paused) == ([], True)
    store.resume()
    (first, _) = claim(store)
    store.end_attempts([AttemptEnd(first.hold, JobState.SUCCEEDED, result=b"1")])
    assert store.result("a").body == b"1"
    assert [job.id for job in store.list_jobs(None, 10, None)] == ["a", "b"]
    store.tend(keep=100.0, keep_dead=100.0, seconds_per_job=None)
    assert store.purge(JobState.SUCCEEDED, 0.0) == 1
    assert store.get(["a"]) == [None]
    assert store.deliveries(limit=1, lease=1.0) == []
    store.delivered([])
    store.close()


def call_the_model(path):
    with record_call(path, ["a", "b"], stage="m"):
        assert len(path.read_bytes().splitlines()) == 2
        raise ZeroDivisionError


def test_a_call_of_the_model_is_written_into_the_file_that_others_write_into(tmp_path):
    path = tmp_path / "log"
    other = log_to(path, process="other").begin(Act.SUSPEND)
    with pytest.raises(ZeroDivisionError):
        call_the_model(path)
    other()
    with path.open("rb") as file:
        suspended, call = pair_up(read_events(file))
    assert (suspended.begun.process, suspended.ended is not None) == ("other", True)
    assert (call.begun.process, call.begun.stage, call.parts) == (str(os.getpid()), "m", (Part("a"), Part("b")))
    assert call.ended is not None
    assert path.stat().st_mode & 0o777 == 0o600
