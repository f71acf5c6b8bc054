"""`stream`: any length, in order, in bounded memory, and nothing left behind however it ends."""

from __future__ import annotations

import asyncio
import threading

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


def read(stream, answers: list) -> None:
    """Read `stream` to its end."""
    for answer in stream:
        answers.append(answer)


@pytest.mark.smoke
async def test_a_stream_answers_in_order_and_reads_its_source_no_further_than_its_bound():
    source, ahead = Source(range(5000)), 0
    async with ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double, max_in_flight=100) as service:
        answers = []
        async for answer in service.stream(source):
            answers.append(answer)
            ahead = max(ahead, source.read - len(answers))
            assert service.engine.queued <= 50
    assert answers == [(i + 1) * 2 for i in range(5000)]
    assert ahead <= 50


async def test_leaving_a_stream_early_cancels_what_it_had_in_hand(tmp_path):
    async with ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), max_in_flight=20) as service:
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


async def test_a_stopped_service_ends_its_streams(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), max_in_flight=8)
    await service.start()
    stream = service.stream(range(100))
    first = asyncio.create_task(anext(stream))
    await until(lambda: notes(tmp_path / "ran"))
    await service.stop(drain=0)
    with pytest.raises(ps.NotReady):
        await first


async def test_a_stream_of_large_items_holds_no_more_bytes_than_the_service_may():
    async with ps.Service(stages.Echo, max_in_flight=1000, max_queued_bytes=4_000_000) as service:
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
    with ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double, max_in_flight=40).blocking() as service:
        answers = []
        for answer in service.stream(source):
            answers.append(answer)
            assert source.read - len(answers) <= 20
        assert answers == [(i + 1) * 2 for i in range(2000)]
        for answer in service.stream(range(2000)):
            if answer == 20:
                break
        assert service.predict(1) == 4


def test_a_blocking_stream_has_no_more_than_its_share_of_bytes_in_hand(tmp_path):
    answers, ahead = [], []

    def source():
        for i in range(30):
            ahead.append(i - len(answers))
            yield bytes(500_000)

    spec = ps.stage(stages.Held, setup={"folder": str(tmp_path)})
    with ps.Service(spec, max_in_flight=1000, max_queued_bytes=4_000_000).blocking() as service:
        reader = threading.Thread(target=read, args=(service.stream(source()), answers), daemon=True)
        reader.start()
        until_now(lambda: len(ahead) == 4, "half of 4 MB to be read")
        (tmp_path / "open").touch()
        reader.join(20)
    assert len(answers) == 30
    assert max(ahead) == 3
