"""Jobs in memory, on a clock that stands still: whatever consumers do and suffer, the history keeps its promises.

Consumers claim, renew, compute, commit, release, die, are killed in the middle of a commit, stand still beyond their
leases, and cannot reach the store for longer than a lease.  The store is compared with a plain model after each step,
and the whole history is checked in the end: the model runs once for each attempt, and an attempt is lost to another
consumer only.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from night import examples
from penstock.errors import JobConflict, StoreUnavailable
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, AttemptEnd, NewJob, Room
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.testing.history import Act, EventLog, Part, RecordedStore, check_history, read_events

LEASE = 10.0
BEAT = 3.0
"""Seconds between two renewals."""
MOST_HELD = 3
"""Of the jobs of a room whose input is in the store."""
MOST_FETCHED = 2
OF_HOST = 1
MOST_BYTES = 1000
TOGETHER = (("", "b"),)
APART = (("",), ("b",))
"""The services of the rooms that consumers claim with."""
PLACE = "file:///out/x"


class World:
    """One store, the consumers of it, and the log that they share."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines = []
        self.store = MemoryStore(now=lambda: self.now, wall=lambda: self.now)
        self.away = False
        """Whether consumers cannot reach the store."""
        self.consumers = []
        self.names = count()
        self.submitter = RecordedStore(self.store, self.log("submitter"))

    def log(self, process):
        return EventLog(self.lines.append, process=process, now=lambda: self.now)

    def start(self):
        consumer = Consumer(self, f"consumer-{next(self.names)}")
        self.consumers.append(consumer)
        return consumer

    def pass_time(self, seconds):
        """Let time pass; who is awake renews what it holds."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + BEAT, end)
            for consumer in self.consumers:
                if consumer.awake:
                    consumer.renew()

    def finish(self):
        """Wake who stands still, let everybody else die, and have one consumer do what is left."""
        self.away = False
        self.submitter.resume()
        for consumer in self.consumers:
            consumer.resume()
        self.pass_time(BEAT)
        for consumer in list(self.consumers):
            consumer.die()
        last = self.start()
        for _ in range(100):
            last.claim()
            for hold in list(last.held):
                last.compute(hold)
                last.commit(hold)
            last.move()
            if all(job.is_finished for job in self.store.list_jobs(None, 1000, None)):
                return
            self.pass_time(LEASE)

    def check(self, **options):
        check_history(
            read_events(self.lines),
            self.store.list_jobs(None, 1000, None),
            most_held=2 * (MOST_HELD + MOST_FETCHED),
            **options,
        )


class Reached:
    """The store of a world, while it can be reached."""

    def __init__(self, world) -> None:
        self.world = world

    def __getattr__(self, name):
        if self.world.away:
            raise StoreUnavailable("away")
        return getattr(self.world.store, name)


class Consumer:
    """A consumer as it should be."""

    def __init__(self, world, name) -> None:
        self.world = world
        self.name = name
        self.log = world.log(name)
        self.store = RecordedStore(Reached(world), self.log)
        self.held = {}
        """The local deadline of each hold."""
        self.jobs = {}
        """What it was handed, by hold."""
        self.computed = set()
        self.awake = True
        self.woken = None

    def catch_up(self):
        """Renew what it may have lost, and commit what it has computed, before it claims."""
        if any(self.world.now >= until for until in self.held.values()):
            self.renew()
            for hold in list(self.held):
                self.commit(hold)

    def claim(self, rooms=None):
        """What it is handed; None where the store does not answer."""
        asked = self.world.now
        try:
            claimed = self.store.claim(self.name, lease=LEASE, rooms=self.rooms() if rooms is None else rooms)
        except StoreUnavailable:
            return None
        self.held.update({job.hold: asked + LEASE for job in claimed})
        self.jobs.update({job.hold: job for job in claimed})
        return [job.id for job in claimed]

    def claim_without_an_answer(self, rooms):
        """Ask for jobs, and never hear that they are its own."""
        self.log.begin(Act.CLAIM, lease=LEASE, rooms=rooms)
        return [job.id for job in self.world.store.claim(self.name, lease=LEASE, rooms=rooms)]

    def rooms(self, groups=APART):
        """Rooms for each group of services, and of each kind."""
        rooms = []
        for services in groups:
            held = [job for hold, job in self.jobs.items() if hold in self.held and job.service in services]
            hosts = Counter(job.host for job in held if job.host)
            rooms.append(Room(services, MOST_HELD - (len(held) - hosts.total()), MOST_BYTES))
            rooms.append(Room(services, MOST_FETCHED - hosts.total(), 0, OF_HOST, hosts))
        return [room for room in rooms if room.jobs > 0]

    def renew(self):
        holds, asked = list(self.held), self.world.now
        try:
            answers = self.store.renew(holds, LEASE) if holds else []
        except StoreUnavailable:
            return
        for hold, told in zip(holds, answers, strict=True):
            if told.answer is Answer.LOST:
                del self.held[hold]
            elif told.cancel:
                self.end(AttemptEnd(hold, JobState.CANCELLED))
            else:
                self.held[hold] = asked + LEASE

    def compute(self, hold, seconds=0.0):
        if self.world.now >= self.held[hold] or hold in self.computed:
            return
        end = self.log.begin(Act.CALL, [Part(hold.job_id, hold.fence)], stage=self.name)
        self.world.pass_time(seconds)
        end()
        self.computed.add(hold)

    def commit(self, hold):
        if hold in self.computed and hold in self.held:
            self.end(AttemptEnd(hold, JobState.SUCCEEDED))

    def release(self, hold):
        self.end(AttemptEnd(hold, JobState.QUEUED, FailureCause.RELEASED))

    def fail(self, hold):
        self.end(AttemptEnd(hold, JobState.SCHEDULED, FailureCause.TRANSFER, counts=True, rest=5.0))

    def end(self, end):
        try:
            self.store.end_attempts([end])
        except StoreUnavailable:
            return
        del self.held[end.hold]

    def move(self):
        if self.world.away:
            return
        for delivery in self.store.deliveries(limit=10, lease=LEASE):
            if delivery.fence:
                self.log.begin(Act.MOVE, [Part(delivery.job_id, delivery.fence)])()
            self.store.delivered([delivery])

    def die(self):
        self.world.consumers.remove(self)

    def die_in_commit(self, hold, *, done):
        """Be killed before or after the store has heard of a commit."""
        if hold in self.computed:
            end = AttemptEnd(hold, JobState.SUCCEEDED)
            self.log.begin(Act.END, [Part(*hold, to=end.to)])
            if done:
                self.world.store.end_attempts([end])
        self.die()

    def suspend(self):
        if self.awake:
            self.awake = False
            self.woken = self.log.begin(Act.SUSPEND)

    def resume(self):
        if not self.awake:
            self.awake = True
            self.woken()


# -- the machine ------------------------------------------------------------------------------------------------------


class PlainJob:
    """What the contract says of a job, in as few words as it takes."""

    def __init__(self, new, due, turn) -> None:
        self.state, self.run, self.fence, self.attempts = "queued" if due is None else "scheduled", 1, 0, Counter()
        self.priority, self.due, self.deadline, self.turn = new.priority, due, new.deadline, turn
        self.service, self.host, self.size = new.service, new.host, len(new.body)
        self.lease_ends, self.cancel, self.holder = 0.0, False, ""

    def look(self, now):
        if self.state == "scheduled" and now >= self.due:
            self.state = "queued"
        if self.state in ("scheduled", "queued") and self.deadline is not None and now >= self.deadline:
            self.state = "expired"

    def is_for(self, room, now):
        """Whether a room may have it."""
        free = self.state == "queued" or (self.state == "running" and now >= self.lease_ends)
        return free and self.service in room.services and bool(self.host) == bool(room.of_host)

    def claimed(self, now, holder):
        """Whether a claim gets it."""
        if self.state == "running" and now >= self.lease_ends:
            if self.holder == holder and not self.cancel:
                self.lease_ends = now + LEASE
                return True
            if self.cancel or (self.deadline is not None and now >= self.deadline):
                self.state = "cancelled" if self.cancel else "expired"
                return False
            self.attempts["lease_expired"] += 1
            self.state = "dead" if self.attempts["lease_expired"] == 5 else "queued"
        if self.state != "queued":
            return False
        self.state, self.lease_ends, self.holder = "running", now + LEASE, holder
        self.fence += 1
        return True

    def shown(self):
        return self.state, self.run, dict(self.attempts), self.fence


SUBMITTED = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 1),
        "delay": st.sampled_from([0.0, 0.0, 4.0]),
        "patience": st.sampled_from([None, None, 1.0, 30.0]),
        "output": st.sampled_from([None, PLACE]),
        "service": st.sampled_from(["", "", "b"]),
        "given": st.sampled_from([b"", b"x" * 600, "https://x/1", "HTTPS://y/2", "s3://z/3"]),
    }
)


GROUPS = st.sampled_from([APART, APART[::-1], APART[:1], TOGETHER])
KINDS = st.sampled_from([slice(None), slice(None, None, -1), slice(0, None, 2), slice(1, None, 2)])
"""Which of the rooms that a consumer has it claims with, and in which order."""


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = {}
        self.turns = count()
        self.paused = False
        self.watch_store()
        for _ in range(2):
            self.world.start()

    def watch_store(self):
        """Have the model told what holders tell the store."""
        store, model, world, turns = self.world.store, self.model, self.world, self.turns
        renew, end_attempts = store.renew, store.end_attempts

        def renewed(holds, lease):
            for hold in holds:
                job = model[hold.job_id]
                if job.state == "running" and job.fence == hold.fence:
                    job.lease_ends = world.now + lease
            return renew(holds, lease)

        def ended(ends):
            for end in ends:
                job = model[end.hold.job_id]
                if job.state == "running" and job.fence == end.hold.fence:
                    goes_back = end.to in (JobState.QUEUED, JobState.SCHEDULED)
                    job.attempts.update([end.cause] * end.counts)
                    job.state = "cancelled" if goes_back and job.cancel else str(end.to)
                    job.due = world.now + end.rest
                    job.turn = next(turns) if job.state == "scheduled" else job.turn
            return end_attempts(ends)

        store.renew, store.end_attempts = renewed, ended

    def awake(self, number):
        """One of the consumers that are awake; there is always one."""
        consumers = [consumer for consumer in self.world.consumers if consumer.awake] or [self.world.start()]
        return consumers[number % len(consumers)]

    def job(self, number):
        ids = list(self.model)
        return ids[number % len(ids)] if ids else None

    @initialize(jobs=st.lists(SUBMITTED, min_size=4, max_size=8))
    def submit_some(self, jobs):
        """Most rules do nothing without jobs."""
        for job in jobs:
            self.submit_one(**job)

    @rule(job=SUBMITTED)
    def submit(self, job):
        self.submit_one(**job)

    def submit_one(self, priority, delay, patience, output, service, given):
        name, now = f"job-{len(self.model)}", self.world.now
        deadline = None if patience is None else now + patience
        where = {"body": given} if isinstance(given, bytes) else {"input_url": given}
        options = {"priority": priority, "delay": delay, "deadline": deadline, "output": output, "service": service}
        new = NewJob(name, **where, **options)
        self.model[name] = PlainJob(new, now + delay if delay else None, next(self.turns))
        self.world.submitter.submit([new])

    @rule(number=st.integers(0, 9))
    def submit_again(self, number):
        if (name := self.job(number)) is not None:
            self.world.submitter.submit([NewJob(name)])

    def expected(self, consumer, rooms):
        """What a claim gets."""
        found = []
        for job in self.model.values():
            job.look(self.world.now)
        for room in () if self.paused else rooms:
            found += self.expected_from(room, consumer)
        return found

    def expected_from(self, room, consumer):
        now, at_hosts, size, found = self.world.now, Counter(room.at_hosts), 0, []
        for name, job in sorted(self.model.items(), key=lambda pair: (-pair[1].priority, pair[1].turn)):
            if not job.is_for(room, now) or (job.host and at_hosts[job.host] >= room.of_host):
                continue
            if len(found) == room.jobs or (found and size + job.size > room.nbytes):
                break
            if job.claimed(now, consumer.name):
                found.append(name)
                at_hosts[job.host] += 1
                size += job.size
        return found

    @rule(number=st.integers(0, 9), how=st.sampled_from(["", "late", "unanswered"]), groups=GROUPS, kinds=KINDS)
    def claim(self, number, how, groups, kinds):
        """A late one was sent before the consumer knew that it had stood still, or the store been away."""
        self.claim_by(self.awake(number), how, groups, kinds)

    @rule(groups=GROUPS, kinds=KINDS, then=st.sampled_from(["", "commit", "fail", "release"]))
    def all_claim_and_work(self, groups, kinds, then):
        """Each consumer that is awake."""
        for consumer in [consumer for consumer in self.world.consumers if consumer.awake]:
            self.claim_by(consumer, "", groups, kinds)
            for hold in list(consumer.held)[: 2 if then else 0]:
                consumer.compute(hold)
                getattr(consumer, then)(hold)

    def claim_by(self, consumer, how, groups, kinds):
        if how != "late":
            consumer.catch_up()
        rooms = consumer.rooms(groups)[kinds]
        if self.world.away:
            assert consumer.claim(rooms) is None
            return
        expected = self.expected(consumer, rooms)
        claim = consumer.claim_without_an_answer if how == "unanswered" else consumer.claim
        assert claim(rooms) == expected

    @rule(paused=st.sampled_from([False, False, True]))
    def pause_or_resume(self, paused):
        self.paused = paused
        if paused:
            self.world.submitter.pause()
        else:
            self.world.submitter.resume()

    @rule(away=st.sampled_from([False, False, True]))
    def lose_or_find_the_store(self, away):
        self.world.away = away

    @rule(number=st.integers(0, 9), seconds=st.sampled_from([0.0, 4.0]), then=st.sampled_from(["", "commit", "fail"]))
    def work(self, number, seconds, then):
        consumer = self.awake(number)
        for hold in list(consumer.held)[:1]:
            consumer.compute(hold, seconds)
            if then and hold in consumer.held:
                getattr(consumer, then)(hold)

    @rule(number=st.integers(0, 9))
    def commit(self, number):
        consumer = self.awake(number)
        for hold in list(consumer.held):
            consumer.commit(hold)

    @rule(number=st.integers(0, 9))
    def release(self, number):
        consumer = self.awake(number)
        for hold in list(consumer.held)[-1:]:
            consumer.release(hold)

    @rule(number=st.integers(0, 9))
    def move(self, number):
        self.awake(number).move()

    @rule(number=st.integers(0, 9))
    def die(self, number):
        self.awake(number).die()

    @rule(number=st.integers(0, 9), done=st.booleans())
    def die_in_commit(self, number, done):
        consumer = self.awake(number)
        if consumer.held:
            consumer.die_in_commit(next(iter(consumer.held)), done=done)

    @rule(number=st.integers(0, 9))
    def suspend(self, number):
        self.awake(number).suspend()

    @rule()
    def resume(self):
        for consumer in self.world.consumers:
            consumer.resume()

    @rule(number=st.integers(0, 9))
    def cancel(self, number):
        if (name := self.job(number)) is None:
            return
        job = self.model[name]
        job.look(self.world.now)
        try:
            self.world.submitter.cancel(name)
        except JobConflict:
            assert job.state in ("succeeded", "dead", "expired")
        else:
            job.cancel = job.state == "running"
            if job.state != "running" or self.world.now >= job.lease_ends:
                job.state = "cancelled"

    @rule(number=st.integers(0, 9))
    def retry(self, number):
        if (name := self.job(number)) is None:
            return
        job = self.model[name]
        job.look(self.world.now)
        try:
            self.world.submitter.retry(name)
        except JobConflict:
            assert job.state not in ("dead", "cancelled", "expired")
        else:
            late = job.deadline is not None and self.world.now >= job.deadline
            job.state, job.cancel, job.deadline = "queued", False, None if late else job.deadline
            job.run += 1
            job.attempts.clear()

    @rule(seconds=st.sampled_from([1.0, BEAT, LEASE / 2, LEASE * 1.5]))
    def pass_time(self, seconds):
        self.world.pass_time(seconds)

    @invariant()
    def the_store_is_as_the_model(self):
        for name, job in self.model.items():
            job.look(self.world.now)
            (kept,) = self.world.store.get([name])
            fence = kept.attempts[-1].fencing_token if kept.attempts else 0
            assert (kept.state, kept.generation, kept.failures, fence) == job.shown()

    def teardown(self):
        self.world.check(finished=False)
        self.world.finish()
        self.world.check(finished=True)
        events = read_events(self.world.lines)
        calls = Counter(part for event in events if event.act is Act.CALL and not event.ended for part in event.parts)
        assert set(calls.values()) <= {1}  # of each attempt


TestHistories = Machine.TestCase
TestHistories.settings = settings(max_examples=examples(20), stateful_step_count=40)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_the_history_of_what_keeps_them_is_not_objected_to():
    world = World()
    store = world.submitter
    store.submit([NewJob("a", output=PLACE), NewJob("b")])
    first, second = world.start(), world.start()
    first.claim()
    first.suspend()
    world.pass_time(LEASE + 1)
    second.claim()
    for hold in list(second.held):
        second.compute(hold, 2.0)
        second.commit(hold)
    second.move()
    first.resume()
    first.renew()
    assert first.held == {}
    world.check(reclaim_within=2.0)


def test_two_calls_of_one_model_at_once_are_told():
    world = World()
    consumer = world.start()
    ends = []
    for _ in range(2):
        ends.append(consumer.log.begin(Act.CALL, [Part("a")], stage="m"))
        world.now += 1.0
    for end in ends:
        end()
    with pytest.raises(AssertionError, match="I7: job a ran in m while another call was running"):
        world.check()


def test_a_job_that_lies_about_after_its_lease_is_told():
    world = World()
    world.submitter.submit([NewJob("a")])
    dead, late = world.start(), world.start()
    dead.claim()
    dead.die()
    world.pass_time(LEASE + 5.0)
    late.claim()
    with pytest.raises(AssertionError, match="I5: job a lay about for too long after fence 1"):
        world.check(finished=False, reclaim_within=4.0)
    world.check(finished=False, reclaim_within=5.0)


def test_an_accepted_job_that_never_ends_is_told():
    world = World()
    world.submitter.submit([NewJob("a")])
    with pytest.raises(AssertionError, match="I1: job a never ended: it is queued"):
        world.check()
