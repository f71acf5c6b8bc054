"""Waits for the ends of jobs, on a clock that stands still."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.errors import JobNotFound, Overloaded, StoreUnavailable
from penstock.jobs import job_waits
from penstock.jobs.job import Job
from penstock.jobs.job_waits import JobWaits
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.rules.pauses import IDS_IN_LOOK
from penstock.testing.virtual_clock import VirtualClock, rest


def waiting(name="a"):
    return Job(id=name, queue="q", state=JobState.QUEUED, created_at=1.0)


class Queue:
    """Answers looks, and notes when each was and for which jobs."""

    def __init__(self):
        self.clock = VirtualClock()
        self.waits = JobWaits(self.look, self.clock)
        self.jobs = {}
        self.looks = []
        self.fails = None
        self.gate = None

    async def look(self, ids):
        self.looks.append((round(self.clock.now() - 1000, 3), list(ids)))
        if self.gate is not None:
            await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return [self.jobs.get(name) for name in ids]

    def wait(self, name="a", seconds=60.0):
        job = self.jobs.setdefault(name, waiting(name))
        return asyncio.ensure_future(self.waits.until_ended(job, seconds))

    def end(self, name="a"):
        self.jobs[name] = msgspec.structs.replace(self.jobs[name], state=JobState.SUCCEEDED)


@pytest.fixture
def queue():
    return Queue()


async def test_a_wait_ends_soon_after_its_job(queue):
    wait = queue.wait()
    await queue.clock.advance(5.0)
    assert not wait.done()
    queue.end()
    await queue.clock.advance(job_waits.LONGEST_PAUSE_SECONDS + job_waits.TICK_SECONDS)
    assert wait.result().state is JobState.SUCCEEDED
    assert len(queue.waits) == 0


async def test_a_job_is_looked_at_seldom_after_a_while(queue):
    wait = queue.wait()
    await queue.clock.advance(60.0)
    moments = [moment for moment, _ in queue.looks]
    assert moments[0] <= 0.04
    assert 200 < len(moments) < 260
    assert wait.result().state is JobState.QUEUED


async def test_many_waits_are_one_look(queue):
    waits = [queue.wait(f"job{n}") for n in range(100)] + [queue.wait("job0")]
    await queue.clock.advance(0.05)
    assert [len(ids) for _, ids in queue.looks] == [100]
    for n in range(100):
        queue.end(f"job{n}")
    await queue.clock.advance(1.0)
    assert all(wait.done() for wait in waits)


async def test_very_many_waits_are_looked_at_in_parts_and_seldom(queue):
    waits = [queue.wait(f"job{n}") for n in range(4 * IDS_IN_LOOK)]
    await queue.clock.advance(20.0)
    assert max(len(ids) for _, ids in queue.looks) == IDS_IN_LOOK
    late = sum(len(ids) for moment, ids in queue.looks if moment > 10)
    assert late <= 10 / (5 * job_waits.LONGEST_PAUSE_SECONDS) * len(waits) * 1.2
    queue.waits.let_go()
    await asyncio.gather(*waits)


async def test_the_time_of_a_wait_ends_it_while_the_store_is_silent(queue):
    queue.gate = asyncio.Event()
    wait = queue.wait(seconds=1.0)
    await queue.clock.advance(0.5)
    assert queue.looks
    await queue.clock.advance(0.5)
    assert wait.result().state is JobState.QUEUED
    queue.gate.set()
    await rest()


async def test_a_store_that_comes_back_in_time_was_never_gone(queue):
    queue.fails = StoreUnavailable("gone")
    first, second = queue.wait(seconds=1.0), queue.wait(seconds=10.0)
    await queue.clock.advance(2.0)
    assert isinstance(first.exception(), StoreUnavailable)
    queue.fails = Overloaded()
    await queue.clock.advance(1.0)
    queue.fails = None
    queue.end()
    await queue.clock.advance(1.0)
    assert second.result().is_finished


async def test_a_look_that_found_no_place_is_made_again(queue):
    queue.fails = Overloaded()
    wait = queue.wait(seconds=1.0)
    await queue.clock.advance(1.0)
    assert wait.result().state is JobState.QUEUED


async def test_a_job_that_is_purged_meanwhile_is_not_found(queue):
    wait = queue.wait()
    del queue.jobs["a"]
    await queue.clock.advance(1.0)
    with pytest.raises(JobNotFound):
        wait.result()


async def test_who_has_left_is_looked_after_no_longer(queue):
    wait = queue.wait()
    await queue.clock.advance(0.01)
    wait.cancel()
    await queue.clock.advance(5.0)
    assert queue.looks == []
    assert len(queue.waits) == 0
    assert queue.clock.waiting == []
    again = queue.wait()  # the poller begins anew
    queue.end()
    await queue.clock.advance(1.0)
    assert again.result().is_finished


async def test_everybody_is_let_go_at_once(queue):
    wait = queue.wait()
    await queue.clock.advance(1.0)
    queue.waits.let_go()
    await rest()
    assert wait.result().state is JobState.QUEUED
    later = queue.wait()
    await rest()
    assert later.done()


async def test_nobody_waits_for_what_has_ended_or_for_no_time(queue):
    queue.wait().cancel()
    assert (await queue.wait(seconds=0)).state is JobState.QUEUED
    queue.end()
    assert (await queue.wait()).is_finished
    assert queue.looks == []
