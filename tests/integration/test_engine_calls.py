"""Every caller gets its own answer: one item, many, from coroutines and from threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import stages

import penstock as ps

LOOPS = ("uvloop",)


async def test_ten_thousand_concurrent_callers_each_get_their_own_answer():
    service = ps.Service(
        ps.stage(stages.AddOneBatch, workers=2),
        ps.stage(stages.Double, workers=2),
        max_in_flight=20_000,
    )
    async with service:
        answers = await asyncio.gather(*(service.predict(i) for i in range(10_000)))
    assert answers == [(i + 1) * 2 for i in range(10_000)]


@pytest.mark.smoke
async def test_predict_many_can_leave_failures_in_their_places():
    async with ps.Service(stages.ActBatch) as service:
        answers = await service.predict_many([1, ("raise", "no"), 3], return_exceptions=True)
        assert answers[0] == 1
        assert answers[2] == 3
        assert isinstance(answers[1], ps.StageFailed)


@pytest.mark.smoke
def test_many_threads_share_one_blocking_service():
    with ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double).blocking() as service:

        def caller(start: int) -> list[int]:
            return [service.predict(i) for i in range(start, start + 30)] + service.predict_many(
                range(start, start + 30)
            )

        with ThreadPoolExecutor(16) as threads:
            for start, answers in zip(range(0, 1600, 100), threads.map(caller, range(0, 1600, 100)), strict=True):
                assert answers == [(i + 1) * 2 for i in range(start, start + 30)] * 2
    assert not [t for t in threading.enumerate() if "penstock" in t.name]


def test_threads_that_call_while_blocking_ends_are_all_answered_or_refused(tmp_path):
    ended = []

    def caller(service) -> None:
        try:
            while True:
                service.predict(1)
        except ps.NotReady as error:
            ended.append(error)

    for _ in range(3):
        ended.clear()
        with ps.Service(stages.Echo).blocking() as service:
            threads = [threading.Thread(target=caller, args=(service,), daemon=True) for _ in range(8)]
            for thread in threads:
                thread.start()
            service.predict(1)
        for thread in threads:
            thread.join(20)
        assert len(ended) == 8


async def test_an_input_that_cannot_be_pickled_spoils_no_other():
    items = [1, lambda: None, 3, threading.Lock(), ("raise", "five")]
    async with ps.Service(stages.Act) as service:
        first, second, third, fourth, fifth = await service.predict_many(items, return_exceptions=True)
        assert (first, third) == (1, 3)
        assert isinstance(second, ps.InvalidItem)
        assert isinstance(fourth, ps.InvalidItem)
        assert isinstance(fifth, ps.StageFailed)
        with pytest.raises(ps.InvalidItem, match="`function` cannot be pickled"):
            await service.predict_many(items)
        assert service.engine.counters.succeeded == 4  # all are waited for
        with pytest.raises(ps.StageFailed, match="five"):
            await service.predict_many(items[::-1])
        only = await service.predict_many([lambda: None], return_exceptions=True)
        assert isinstance(only[0], ps.InvalidItem)
    with pytest.raises(ps.NotReady):
        await service.predict_many([lambda: None], return_exceptions=True)
