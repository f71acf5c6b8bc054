"""`stream`: any length, in order, in bounded memory, and nothing left behind however it ends."""

from __future__ import annotations

import asyncio
import math
import threading

import facade_stages
import numpy as np
import pytest
import stages
from notes_and_gates import notes
from waiting import until, until_now

import penstock as ps

LOOPS = ("uvloop",)


class Source:
    """Counts how far it was read."""

    def __init__(self, items) -> None:
        self._items = items
        self.read = 0

    def __iter__(self):
        for item in self._items:
            self.read += 1
            yield item

    async def slowly(self):
        for item in self:
            await asyncio.sleep(0)
            yield item


def read(stream, answers: list) -> None:
    """As `drain`, of a blocking stream."""
    for answer in stream:
        answers.append(answer)


async def drain(stream, answers: list) -> None:
    """Read `stream` to its end, keeping what came before a failure."""
    async for answer in stream:
        answers.append(answer)


@pytest.mark.smoke
async def test_a_stream_answers_in_order_and_reads_its_source_no_further_than_its_bound():
    source, ahead = Source(range(5000)), 0
    async with ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double, max_queued=100) as service:
        answers = []
        async for answer in service.stream(source):
            answers.append(answer)
            ahead = max(ahead, source.read - len(answers))
            assert service.engine.queued <= 50
    assert answers == [(i + 1) * 2 for i in range(5000)]
    assert ahead <= 50


async def test_a_slow_reader_slows_the_reading_of_the_source():
    source = Source(range(1000))
    async with ps.Service(stages.EchoBatch, max_queued=20) as service:
        stream = service.stream(source)
        assert await anext(stream) == 0
        await until(lambda: service.engine.queued == 0)
        assert source.read <= 11
        assert await anext(stream) == 1
        await stream.aclose()


async def test_a_source_may_be_asynchronous():
    async with ps.Service(stages.EchoBatch) as service:
        assert [y async for y in service.stream(Source(range(2000)).slowly())] == list(range(2000))
        assert [y async for y in service.stream([])] == []


async def test_leaving_a_stream_early_cancels_what_it_had_in_hand(tmp_path):
    async with ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), max_queued=20) as service:
        source = Source(range(1000))
        stream = service.stream(source)
        first = asyncio.create_task(anext(stream))
        await until(lambda: service.engine.queued == 10)
        (tmp_path / "open").touch()
        assert await first == 0
        await asyncio.wait_for(stream.aclose(), 20)
        assert service.engine.queued == 0
        assert service.engine.held_bytes == 0
        assert source.read <= 20


async def test_a_broken_off_loop_leaves_the_service_free_for_others():
    async with ps.Service(stages.Echo, max_queued=8) as service:
        async for answer in service.stream(range(100_000)):
            if answer == 10:
                break
        await until(lambda: service.engine.queued == 0)
        assert await service.predict("x") == "x"


async def test_cancelling_the_reader_of_a_stream_leaves_nothing_in_hand(tmp_path):
    async with ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), max_queued=8) as service:

        async def reader() -> None:
            async for _ in service.stream(range(100)):
                pass

        task = asyncio.create_task(reader())
        await until(lambda: service.engine.queued == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)
        await until(lambda: service.engine.queued == 0)
        (tmp_path / "open").touch()


async def test_a_failing_source_is_seen_after_the_answers_before_it():
    def source():
        yield 1
        yield 2
        raise LookupError("no more")

    async def slow_source():
        for x in source():
            yield x

    async with ps.Service(stages.EchoBatch) as service:
        for make in (source, slow_source):
            answers = []
            with pytest.raises(LookupError, match="no more"):
                await drain(service.stream(make()), answers)
            assert answers == [1, 2]


async def test_a_failure_is_raised_in_its_place_or_stands_there():
    items = [1, ("raise", "two"), 3]
    async with ps.Service(stages.ActBatch) as service:
        answers = []
        with pytest.raises(ps.StageFailed, match="two"):
            await drain(service.stream(items), answers)
        assert answers == [1]
        first, second, third = [y async for y in service.stream(items, return_exceptions=True)]
        assert (first, third) == (1, 3)
        assert isinstance(second, ps.StageFailed)
        await until(lambda: service.engine.queued == 0)


async def test_an_item_that_cannot_be_pickled_is_invalid_in_its_place():
    items = [1, lambda: None, 3]
    async with ps.Service(stages.EchoBatch) as service:
        answers = []
        with pytest.raises(ps.InvalidItem, match="`function` cannot be pickled"):
            await drain(service.stream(items), answers)
        assert answers == [1]
        first, second, third = [y async for y in service.stream(items, return_exceptions=True)]
        assert (first, third) == (1, 3)
        assert isinstance(second, ps.InvalidItem)
        assert "Can't pickle" in second.reason or "local object" in second.reason
        # Many of them are bounded as all others are, and leave nothing behind.
        stream = service.stream(items * 3000, return_exceptions=True)
        assert sum(isinstance(y, ps.InvalidItem) for y in [y async for y in stream]) == 3000
        assert service.engine.queued == 0


async def test_a_result_that_cannot_be_unpickled_fails_in_its_place():
    items = [1, "stranger", 3]
    async with ps.Service(facade_stages.estrange) as service:
        answers = []
        with pytest.raises(ps.StageFailed, match="the result cannot be unpickled here: never seen here"):
            await drain(service.stream(items), answers)
        assert answers == [1]
        first, second, third = [y async for y in service.stream(items, return_exceptions=True)]
        assert (first, third) == (1, 3)
        assert second.is_a(LookupError)


def reusing_one_buffer(folder):
    """Arrays that are one and the same, while the stage is held; then its gate opens."""
    yield ("hold", str(folder), -1)
    buffer = np.zeros(1000)
    for i in range(8):
        buffer[:] = i
        yield buffer
    (folder / "open").touch()


async def test_a_source_may_reuse_its_buffer_while_items_wait(tmp_path):
    async with ps.Service(stages.Act) as service:
        first, *arrays = [y async for y in service.stream(reusing_one_buffer(tmp_path))]
    assert first == -1
    assert [set(array) for array in arrays] == [{i} for i in range(8)]


def test_the_source_of_a_blocking_stream_may_reuse_its_buffer_too(tmp_path):
    with ps.Service(stages.Act).blocking() as service:
        first, *arrays = service.stream(reusing_one_buffer(tmp_path))
    assert first == -1
    assert [set(array) for array in arrays] == [{i} for i in range(8)]


async def test_the_timeout_of_a_stream_is_for_each_item():
    async with ps.Service(stages.Act) as service:
        answers = [y async for y in service.stream([("sleep", 0.3), 2], timeout=0.05, return_exceptions=True)]
        assert isinstance(answers[0], ps.DeadlineExceeded)


async def test_a_stream_does_not_shut_single_requests_out():
    async with ps.Service(stages.EchoBatch, max_queued=16) as service:

        async def reader() -> int:
            return len([y async for y in service.stream(range(3000))])

        readers = [asyncio.create_task(reader()) for _ in range(4)]
        await until(lambda: service.engine.counters.succeeded > 100)
        for i in range(20):
            assert await service.predict(i, timeout=20) == i
        assert not any(task.done() for task in readers)
        assert await asyncio.gather(*readers) == [3000] * 4


async def test_a_stopped_service_ends_its_streams(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), max_queued=8)
    await service.start()
    stream = service.stream(range(100))
    first = asyncio.create_task(anext(stream))
    await until(lambda: notes(tmp_path / "ran"))
    await service.stop(drain=0)
    with pytest.raises(ps.NotReady):
        await first


async def test_a_stream_of_large_items_holds_no_more_bytes_than_the_service_may():
    async with ps.Service(stages.Echo, max_queued=1000, max_queued_bytes=4_000_000) as service:
        most = 0

        def source():
            nonlocal most
            for _ in range(60):
                most = max(most, service.engine.held_bytes)
                yield bytes(500_000)

        async for answer in service.stream(source()):
            assert len(answer) == 500_000
    assert most <= 4_500_000


@pytest.mark.smoke
def test_a_blocking_stream_is_bounded_ordered_and_can_be_left():
    source = Source(range(2000))
    with ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double, max_queued=40).blocking() as service:
        answers = []
        for answer in service.stream(source):
            answers.append(answer)
            assert source.read - len(answers) <= 20
        assert answers == [(i + 1) * 2 for i in range(2000)]
        for answer in service.stream(range(2000)):
            if answer == 20:
                break
        assert service.predict(1) == 4


def test_a_blocking_stream_leaves_failures_in_their_places():
    with ps.Service(stages.ActBatch).blocking() as service:
        answers = list(service.stream([1, ("raise",), 3], return_exceptions=True))
        assert (answers[0], answers[2]) == (1, 3)
        assert isinstance(answers[1], ps.StageFailed)
        with pytest.raises(ps.StageFailed):
            list(service.stream([1, ("raise",), 3]))


def test_a_failing_source_of_a_blocking_stream_is_seen_after_the_answers_before_it(tmp_path):
    def source():
        yield ("hold", str(tmp_path), 1)
        yield 2
        (tmp_path / "open").touch()
        raise LookupError("no more")

    answers = []
    with ps.Service(stages.Act).blocking() as service, pytest.raises(LookupError, match="no more"):
        read(service.stream(source()), answers)
    assert answers == [1, 2]


def test_a_failure_before_the_end_of_a_blocking_source_is_raised_in_its_place():
    def source():
        yield 1
        yield ("raise", "two")
        raise LookupError("no more")

    with ps.Service(stages.Act).blocking() as service, pytest.raises(ps.StageFailed, match="two"):
        list(service.stream(source()))


def test_items_of_a_blocking_stream_that_cannot_travel_fail_in_their_places():
    items = [1, lambda: None, "stranger", 4]
    with ps.Service(facade_stages.estrange).blocking() as service:
        first, second, third, fourth = service.stream(items, return_exceptions=True)
        assert (first, fourth) == (1, 4)
        assert isinstance(second, ps.InvalidItem)
        assert isinstance(third, ps.StageFailed)
        with pytest.raises(ps.InvalidItem):
            list(service.stream(items))


def test_a_blocking_stream_has_no_more_than_its_share_of_bytes_in_hand(tmp_path):
    answers, ahead = [], []

    def source():
        for i in range(30):
            ahead.append(i - len(answers))
            yield bytes(500_000)

    spec = ps.stage(facade_stages.Held, setup={"folder": str(tmp_path)})
    with ps.Service(spec, max_queued=1000, max_queued_bytes=4_000_000).blocking() as service:
        reader = threading.Thread(target=read, args=(service.stream(source()), answers), daemon=True)
        reader.start()
        until_now(lambda: len(ahead) == 4, "half of 4 MB to be read")
        (tmp_path / "open").touch()
        reader.join(20)
    assert len(answers) == 30
    assert max(ahead) == 3


async def test_a_stream_of_a_service_that_nobody_else_holds_is_answered_to_its_end():
    async def started():
        service = ps.Service(math.sqrt, inline=True)
        await service.start()
        return service

    answers: list = []
    with pytest.warns(ResourceWarning, match="never stopped"):  # when the stream has ended, and not before
        await drain((await started()).stream([4.0] * 50), answers)
    assert answers == [2.0] * 50
