"""Histories that a mistake leaves, written down by hand: what `check_history` says of each.

`tests/faults/test_job_mutants.py` has real consumers make them.
"""

from __future__ import annotations

import pytest

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, NewJob, Room
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.testing.history import Act, EventLog, Part, RecordedStore, check_history, read_events

LEASE = 10.0
PLACE = "file:///out/x"


class History:
    """One job, the store of it, and the log that its consumers share, on a clock that the test sets."""

    def __init__(self, output: str | None = None) -> None:
        self.now = 100.0
        self.lines: list[bytes] = []
        self.store = MemoryStore(now=lambda: self.now, wall=lambda: self.now)
        self.of("submitter").submit([NewJob("job", output=output)])

    def log(self, process):
        return EventLog(self.lines.append, process=process, now=lambda: self.now)

    def of(self, process):
        """The store as a process sees it, which writes down what it does."""
        return RecordedStore(self.store, self.log(process))

    def claim(self, process):
        """The hold on the job that a process gets."""
        (job,) = self.of(process).claim(process, lease=LEASE, rooms=[Room(("",), 1, 1000)])
        return job.hold

    def compute(self, process, hold):
        end = self.log(process).begin(Act.CALL, [Part(*hold)], stage=process)
        self.now += 1.0
        end()

    def commit(self, process, hold):
        return self.of(process).end_attempts([AttemptEnd(hold, JobState.SUCCEEDED)])

    def move(self, process, hold):
        self.log(process).begin(Act.MOVE, [Part(*hold)])()

    def check(self, **options):
        check_history(read_events(self.lines), self.store.list_jobs(None, 10, None), **options)


def test_who_acknowledges_before_it_computes_is_told():
    history = History()
    hold = history.claim("a")
    history.commit("a", hold)
    history.compute("a", hold)
    with pytest.raises(AssertionError, match="before the model had run"):
        history.check()


def test_who_commits_without_a_fence_is_told():
    history = History()
    first = history.claim("a")
    history.compute("a", first)
    suspended = history.log("a").begin(Act.SUSPEND)
    history.now += LEASE + 1.0
    second = history.claim("b")
    suspended()
    end = history.log("a").begin(Act.END, [Part(*first, to=JobState.SUCCEEDED)])
    history.store.end_attempts([AttemptEnd(second, JobState.SUCCEEDED)])  # as a store does that looks at no fence
    end([Part(*first, to=JobState.SUCCEEDED, answer="ok")])
    with pytest.raises(AssertionError, match="was taken from fence 1 after the next claim"):
        history.check()


def test_who_does_not_renew_is_told():
    history = History()
    history.claim("a")
    history.now += LEASE + 1.0
    history.claim("b")
    history.log("a").begin(Act.CLAIM)([])  # it lives, and asks for more
    with pytest.raises(AssertionError, match="was not renewed in time"):
        history.check(finished=False)


def test_who_moves_an_output_before_the_commit_is_told():
    history = History(output=PLACE)
    hold = history.claim("a")
    history.compute("a", hold)
    history.move("a", hold)
    history.commit("a", hold)
    with pytest.raises(AssertionError, match="had its output moved before"):
        history.check(finished=False)


def test_who_holds_more_than_it_may_is_told():
    history = History()
    history.of("submitter").submit([NewJob("other")])
    history.of("a").claim("a", lease=LEASE, rooms=[Room(("",), 2, 1000)])
    with pytest.raises(AssertionError, match="process a holds 2 jobs"):
        history.check(finished=False, most_held=1)


def test_a_store_that_hands_out_what_is_leased_is_told():
    history = History()
    history.claim("a")
    history.store._jobs["job"].lease_ends = 0.0
    history.claim("b")
    with pytest.raises(AssertionError, match="was handed on while fence 1 had its lease"):
        history.check(finished=False)


def test_a_store_that_gives_two_holders_one_fence_is_told():
    history = History()
    history.claim("a")
    history.now += LEASE + 1.0
    history.store._jobs["job"].fence = 0
    history.claim("b")
    with pytest.raises(AssertionError, match="was handed to two processes under fence 1"):
        history.check(finished=False)


def test_a_store_that_takes_a_job_from_its_own_holder_is_told():
    history = History()
    history.claim("a")
    history.now += LEASE + 1.0
    history.of("a").claim("a by another name", lease=LEASE, rooms=[Room(("",), 1, 1000)])
    with pytest.raises(AssertionError, match="was taken from fence 1 by the process that held it"):
        history.check(finished=False)


def test_what_a_holder_has_given_up_may_be_its_own_once_more():
    history = History()
    hold = history.claim("a")
    history.now += LEASE - 1.0
    history.of("a").claim("a", lease=LEASE, rooms=[Room(("",), 1, 1000)])  # it lives
    history.now += 1.0
    history.of("a").claim("a", lease=LEASE, rooms=[Room(("",), 1, 1000)], given_up=[hold])
    history.check(finished=False)


def test_a_store_that_does_not_count_what_was_lost_is_told():
    history = History()
    history.claim("a")
    history.now += LEASE + 1.0
    history.claim("b")
    history.store._jobs["job"].attempts.clear()
    with pytest.raises(AssertionError, match="counts 0 of lost, and 1 were told or lost"):
        history.check(finished=False)


def test_a_store_that_forgets_a_job_is_told():
    history = History()
    history.store._jobs.clear()
    with pytest.raises(AssertionError, match="was accepted and is lost"):
        history.check()
