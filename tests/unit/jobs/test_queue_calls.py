import asyncio

import pytest

from fake_work import InlineThreads
from penstock.errors import ConfigError, JobNotFound, Overloaded, StoreUnavailable
from penstock.jobs import queue_calls
from penstock.jobs.queue_calls import QueueCalls
from penstock.jobs.store import StoreFull
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.jobs.submitting import JobQueue


class Connecting:
    """Connects to a queue in memory; raises `fails` instead while that is set."""

    def __init__(self):
        self.times = 0
        self.fails = None
        self.store = MemoryStore()

    def __call__(self):
        self.times += 1
        if self.fails is not None:
            raise self.fails
        return JobQueue(self.store)


class Seconds:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def now():
    return Seconds()


@pytest.fixture
def connecting():
    return Connecting()


@pytest.fixture
def calls(connecting, now):
    return QueueCalls(connecting, now=now, threads=InlineThreads)


def unavailable(queue):
    raise StoreUnavailable("gone")


async def test_a_store_that_is_full_is_asked_for_everything_else(calls):
    def full(queue):
        raise StoreFull("the disk is full")

    with pytest.raises(StoreFull):
        await calls.run(full)
    assert (await calls.run(lambda queue: queue.stats())).queued == 0


async def test_calls_share_one_connection(calls, connecting):
    job = await calls.run(lambda queue: queue.submit(1))
    assert (await calls.run(lambda queue: queue.get(job.id))) == job
    assert connecting.times == 1
    with pytest.raises(JobNotFound):
        await calls.run(lambda queue: queue.get("b"))


async def test_a_store_that_does_not_answer_is_not_asked_for_a_second(calls, connecting, now):
    asked = []
    with pytest.raises(StoreUnavailable, match="gone"):
        await calls.run(unavailable)
    now.now += queue_calls.REST_SECONDS / 2
    with pytest.raises(StoreUnavailable, match="gone"):
        await calls.run(asked.append)
    assert asked == []
    now.now += queue_calls.REST_SECONDS / 2
    await calls.run(asked.append)
    assert len(asked) == 1


async def test_a_store_that_was_gone_at_the_start_is_connected_to_later(calls, connecting, now):
    connecting.fails = StoreUnavailable("refused")
    with pytest.raises(StoreUnavailable, match="refused"):
        await calls.run(JobQueue.stats)
    with pytest.raises(StoreUnavailable, match="refused"):
        await calls.run(JobQueue.stats)
    assert connecting.times == 1
    connecting.fails = None
    now.now += queue_calls.REST_SECONDS
    assert (await calls.run(JobQueue.stats)).queued == 0


async def test_a_store_that_cannot_be_used_says_so(calls, connecting):
    connecting.fails = ConfigError("a foreign file")
    with pytest.raises(ConfigError, match="foreign"):
        await calls.run(JobQueue.stats)


async def test_there_are_no_more_calls_than_may_wait(connecting, now):
    gate = asyncio.Event()

    class Threads(InlineThreads):
        async def run(self, call):
            await gate.wait()
            return call()

    calls = QueueCalls(connecting, now=now, threads=Threads)
    running = [asyncio.ensure_future(calls.run(JobQueue.stats)) for _ in range(queue_calls.MOST_CALLS)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await calls.run(JobQueue.stats)
    running.pop().cancel()
    await asyncio.sleep(0)
    running.append(asyncio.ensure_future(calls.run(JobQueue.stats)))
    gate.set()
    assert len(await asyncio.gather(*running)) == queue_calls.MOST_CALLS


async def test_after_the_end_the_store_is_unavailable(connecting, now):
    calls = QueueCalls(connecting, now=now, threads=InlineThreads)
    await calls.run(JobQueue.stats)
    await calls.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await calls.run(JobQueue.stats)

    class Ended(InlineThreads):
        async def run(self, call):
            raise RuntimeError("cannot schedule new futures after shutdown")

    ended = QueueCalls(connecting, now=now, threads=Ended)
    with pytest.raises(RuntimeError):  # a mistake of ours is told as what it is
        await ended.run(JobQueue.stats)
    await ended.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await ended.run(JobQueue.stats)
