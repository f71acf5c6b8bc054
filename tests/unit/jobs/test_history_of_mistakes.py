"""Histories that a mistake leaves, written down by hand: what `check_history` says of each.

`tests/faults/test_job_mutants.py` has real consumers make them.
"""

from __future__ import annotations

import pytest

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, Hold, NewJob, Room
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.testing.history import Act, EventLog, Part, RecordedStore, check_history, read_events

LEASE = 10.0
PLACE = "file:///out/x"
ANY = [Room(("",), 9, 1000), Room(("",), 9, 1000, of_host=2)]


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
    with pytest.raises(AssertionError, match="counts 0 of lease_expired, and 1 were told or lost"):
        history.check(finished=False)


def test_a_store_that_forgets_a_job_is_told():
    history = History()
    history.store._jobs.clear()
    with pytest.raises(AssertionError, match="was accepted and is lost"):
        history.check()


# -- claims and their rooms -------------------------------------------------------------------------------------------


class AsksOtherwise:
    """A store that fills other rooms than it is asked for."""

    def __init__(self, store, rooms) -> None:
        self.store, self.rooms = store, rooms

    def claim(self, holder, *, rooms, **options):
        return self.store.claim(holder, rooms=self.rooms, **options)


class Claims(History):
    """Several jobs, and claims whose rooms the store may take for others."""

    def __init__(self, *jobs) -> None:
        super().__init__()
        self.of("submitter").submit(list(jobs))

    def claim(self, process="a", rooms=ANY, *, filled=None):
        """The jobs that a process is handed; `filled` are the rooms that the store fills instead."""
        store = self.store if filled is None else AsksOtherwise(self.store, filled)
        return RecordedStore(store, self.log(process)).claim(process, lease=LEASE, rooms=rooms)

    def release(self, process, *jobs):
        self.of(process).end_attempts([AttemptEnd(job.hold, JobState.QUEUED) for job in jobs])


def elsewhere(*names, host="https://x"):
    return [NewJob(name, input_url=f"{host}/{name}") for name in names]


def test_a_store_that_hands_out_a_job_of_a_service_without_room_is_told():
    history = Claims(NewJob("b", service="b"))
    history.claim(filled=[*ANY, Room(("b",), 1, 1000)])
    with pytest.raises(AssertionError, match="I8: job b was handed to a claim without room for its service 'b'"):
        history.check(finished=False)


@pytest.mark.parametrize(
    ("room", "told"),
    [
        (Room(("",), 1, 1000), "2 jobs of 600 bytes were handed out from a room for 1 of 1000"),
        (Room(("",), 2, 599), "2 jobs of 600 bytes were handed out from a room for 2 of 599"),
    ],
)
def test_a_store_that_hands_out_more_than_a_room_has_is_told_whatever_the_others_have(room, told):
    history = Claims(NewJob("big", b"x" * 600))
    history.claim(rooms=[room, Room(("b",), 9, 1000)], filled=ANY)
    with pytest.raises(AssertionError, match=f"I8: {told}"):
        history.check(finished=False)


def test_one_job_may_have_more_bytes_than_its_room():
    history = Claims(NewJob("big", b"x" * 600, priority=1))
    assert len(history.claim(rooms=[Room(("",), 2, 1)])) == 1
    history.check(finished=False)


@pytest.mark.parametrize(("held", "told"), [({}, 1), ({"https://x": 1}, 0), ({"https://x": 9}, 0)])
def test_a_store_that_hands_out_more_of_a_host_than_its_share_is_told(held, told):
    history = Claims(*elsewhere("x1", "x2"), *elsewhere("y", host="https://y"))
    history.claim(rooms=[Room(("",), 9, 1000, 1, held)], filled=ANY[1:])
    with pytest.raises(AssertionError, match=f"I8: 2 jobs of https://x were handed out from a room for {told}"):
        history.check(finished=False)


@pytest.mark.parametrize(("asked", "told"), [(0, "job x .* elsewhere"), (1, "job job .* in the store")])
def test_a_store_that_hands_out_a_job_from_a_room_for_other_inputs_is_told(asked, told):
    history = Claims(*elsewhere("x"))
    history.claim(rooms=[ANY[asked]], filled=ANY)
    with pytest.raises(AssertionError, match=f"I8: {told}"):
        history.check(finished=False)


@pytest.mark.parametrize("held_up", [0, 1])
@pytest.mark.parametrize("again", [True, False])
def test_a_store_in_which_a_room_holds_up_another_is_told(held_up, again):
    history = Claims(*elsewhere("x"))
    history.claim(filled=[ANY[1 - held_up]])
    if again:
        history.claim("b")
    with pytest.raises(AssertionError, match=f"I9: job {['job', 'x'][held_up]} waited, and a claim with room for it"):
        history.check(finished=False)


def test_a_store_in_which_a_full_host_holds_up_another_is_told():
    history = Claims(*elsewhere("x"), *elsewhere("y", host="https://y"))
    history.claim(rooms=[Room(("",), 9, 1000, 1, {"https://x": 1})], filled=[])
    history.claim("b")
    with pytest.raises(AssertionError, match="I9: job y waited, and a claim with room for it") as told:
        history.check(finished=False)
    assert "job x" not in str(told.value)


@pytest.mark.parametrize("begins", ["released", "retried"])
def test_a_store_that_passes_over_what_was_claimed_before_is_told(begins):
    history = Claims()
    if begins == "released":
        history.release("a", *history.claim())
    else:
        history.claim()
        history.release("a")
        history.of("submitter").cancel("job")
        history.store.end_attempts([AttemptEnd(Hold("job", 1), JobState.CANCELLED)])
        history.of("submitter").retry("job")
    history.check(finished=False)
    history.claim("b", filled=[])
    history.claim("c")
    with pytest.raises(AssertionError, match="I9: job job waited, and a claim with room for it"):
        history.check(finished=False)


def paused(history):
    history.of("operator").pause()
    history.claim()
    history.of("operator").resume()


def in_a_pause_that_began_without_an_answer(history):
    history.log("operator").begin(Act.PAUSE)
    history.claim(filled=[])


def scheduled(history):
    history.release("a", *history.claim())
    history.of("b").end_attempts([AttemptEnd(history.claim("b")[0].hold, JobState.SCHEDULED, rest=5.0)])
    history.claim()
    history.now += 5.0


def without_room(history):
    history.claim(rooms=[Room(("b",), 9, 1000), Room(("",), 0, 1000), ANY[1]])


def without_an_answer(history):
    history.log("a").begin(Act.CLAIM, lease=LEASE, rooms=ANY)
    history.store.claim("a", lease=LEASE, rooms=ANY)
    history.claim("c")
    history.now += LEASE


def renewed_after_a_claim_without_an_answer(history):
    history.log("b").begin(Act.CLAIM, lease=LEASE, rooms=ANY)
    history.store.claim("b", lease=LEASE, rooms=ANY)
    history.claim("a")
    history.now += LEASE


def while_another_claims(history):
    end = history.log("a").begin(Act.CLAIM, lease=LEASE, rooms=ANY)
    history.now += 1.0
    history.claim("b")
    history.now += 1.0
    end([])


def as_long_as_a_lease(history):
    end = history.log("a").begin(Act.CLAIM, lease=LEASE, rooms=ANY)
    history.now += LEASE
    end([])


def expired(history):
    history.of("submitter").submit([NewJob("late", priority=1, deadline=history.now + 1.0)])
    history.now += 1.0
    history.claim(rooms=[Room(("b",), 1, 1)])
    history.release("a", *history.claim())


@pytest.mark.parametrize(
    "what",
    [
        paused,
        in_a_pause_that_began_without_an_answer,
        scheduled,
        without_room,
        without_an_answer,
        renewed_after_a_claim_without_an_answer,
        while_another_claims,
        as_long_as_a_lease,
        expired,
    ],
)
def test_a_claim_that_may_not_have_found_a_job_is_not_objected_to(what):
    history = Claims()
    what(history)
    history.claim("b")
    history.check(finished=False)
