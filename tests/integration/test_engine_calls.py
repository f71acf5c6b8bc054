"""Every caller gets its own answer: one item, many, from coroutines and from threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import facade_stages
import numpy as np
import pytest
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps

LOOPS = ("uvloop",)


async def test_ten_thousand_concurrent_callers_each_get_their_own_answer():
    service = ps.Service(
        ps.stage(stages.AddOneBatch, workers=2),
        ps.stage(stages.Double, workers=2),
        max_queued=20_000,
    )
    async with service:
        answers = await asyncio.gather(*(service.predict(i) for i in range(10_000)))
    assert answers == [(i + 1) * 2 for i in range(10_000)]


async def test_more_callers_than_room_all_wait_their_turn_and_are_answered():
    async with ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double, max_queued=10) as service:
        answers = await asyncio.gather(*(service.predict(i) for i in range(1000)))
        assert answers == [(i + 1) * 2 for i in range(1000)]
        assert service.engine.queued == 0
        assert service.engine.held_bytes == 0


async def test_callers_that_wait_for_room_are_not_overtaken_by_those_that_come_again_and_again():
    turns = {}

    async def caller(name: int) -> None:
        for turn in range(20):
            turns[name] = turn
            await service.predict(name)
            # Room is handed out in turn: nobody laps anybody by more than the callers in hand explain.
            assert max(turns.values()) - min(turns.values()) <= 2

    async with ps.Service(stages.EchoBatch, max_queued=8) as service:
        await asyncio.gather(*(caller(i) for i in range(24)))


async def test_predict_many_answers_in_the_order_of_its_items():
    async with ps.Service(ps.stage(stages.AddOneBatch, workers=2), ps.stage(stages.Double, workers=2)) as service:
        assert await service.predict_many(range(3000)) == [(i + 1) * 2 for i in range(3000)]
        assert await service.predict_many(iter([1])) == [4]


async def test_predict_many_of_nothing_is_nothing():
    async with ps.Service(stages.Double) as service:
        assert await service.predict_many([]) == []


async def test_predict_many_waits_for_all_and_then_raises_the_first_failure_in_order():
    async with ps.Service(stages.Act) as service:
        with pytest.raises(ps.StageFailed, match="first"):
            await service.predict_many([1, ("raise", "first"), ("raise", "second"), 4])
        assert service.engine.counters.succeeded == 2
        assert service.engine.counters.failed == 2
        assert service.engine.queued == 0


@pytest.mark.smoke
async def test_predict_many_can_leave_failures_in_their_places():
    async with ps.Service(stages.ActBatch) as service:
        answers = await service.predict_many([1, ("raise", "no"), 3], return_exceptions=True)
        assert answers[0] == 1
        assert answers[2] == 3
        assert isinstance(answers[1], ps.StageFailed)


async def test_calls_of_every_kind_mix(tmp_path):
    async with ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double) as service:

        async def streamed() -> list[int]:
            return [y async for y in service.stream(range(500))]

        singles, many, stream = await asyncio.gather(
            asyncio.gather(*(service.predict(i) for i in range(500))), service.predict_many(range(500)), streamed()
        )
        assert singles == many == stream == [(i + 1) * 2 for i in range(500)]


async def test_a_plain_function_is_a_stage_of_singles_or_of_batches():
    batched = ps.stage(stages.sizes, batch=ps.Batch(max_size=4))
    async with ps.Service(stages.negate, batched) as service:
        assert await service.predict(5) == 1
        assert await service.predict_many(range(4)) != [0, -1, -2, -3]
    async with ps.Service(stages.negate) as service:
        assert await service.predict(5) == -5


async def test_a_service_runs_on_the_loop_that_started_it_and_says_so_elsewhere():
    async with ps.Service(stages.Double) as service:
        with pytest.raises(ps.ConfigError, match=r"another event loop.*blocking\(\)"):
            await asyncio.to_thread(asyncio.run, service.predict(1))


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


def test_blocking_raises_what_the_item_ended_with():
    with ps.Service(stages.Act).blocking() as service:
        with pytest.raises(ps.StageFailed, match="ValueError: no"):
            service.predict(("raise",))
        with pytest.raises(ps.DeadlineExceeded):
            service.predict(("sleep", 0.1), timeout=0.01)
        assert service.predict_many([1, ("raise",)], return_exceptions=True)[0] == 1


def test_blocking_without_with_is_not_ready():
    service = ps.Service(stages.Double).blocking()
    with pytest.raises(ps.NotReady, match="use `with`"):
        service.predict(1)
    with service:
        assert service.predict(2) == 4
        with pytest.raises(ps.ConfigError, match="started already"):
            service.__enter__()
    with pytest.raises(ps.NotReady):
        service.predict(1)
    with service:
        assert service.predict(3) == 6


def test_a_failed_start_of_blocking_leaves_no_thread():
    with pytest.raises(ps.StartFailed, match="ValueError: no"):
        ps.Service(ps.stage(stages.ActsInSetup, setup={"acts": [("raise",)]})).blocking().__enter__()
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


@pytest.mark.smoke
async def test_state_room_and_counters_tell_what_goes_on(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), max_queued=2)
    assert service.state is ps.State.STOPPED
    async with service:
        assert service.state is ps.State.READY
        calls = [asyncio.create_task(service.predict(i)) for i in range(2)]
        await until(lambda: service.engine.queued == 2)
        assert service.state is ps.State.BUSY
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == [0, 1]
        assert service.state is ps.State.READY
        counters = service.engine.counters
        assert (counters.accepted, counters.succeeded) == (2, 2)
    assert service.state is ps.State.STOPPED


async def test_what_a_caller_does_to_its_arrays_after_the_call_began_is_none_of_the_items_business(tmp_path):
    async with ps.Service(stages.Act) as service:
        held = asyncio.create_task(service.predict(("hold", str(tmp_path), 0)))
        await until(lambda: notes(tmp_path / "ran"))
        buffer = np.zeros(1000)
        calls = [asyncio.create_task(service.predict(buffer)) for _ in range(4)]
        many = asyncio.create_task(service.predict_many([buffer] * 4))
        await until(lambda: service.engine.queued == 9)
        buffer[:] = 9
        (tmp_path / "open").touch()
        await held
        for array in [*await asyncio.gather(*calls), *await many]:
            assert not array.any()


async def test_an_input_that_cannot_be_pickled_is_the_callers_fault():
    def local() -> None: ...

    async with ps.Service(stages.Act) as service:
        with pytest.raises(ps.InvalidItem, match=r"`function` cannot be pickled: .*local") as caught:
            await service.predict(local)
        assert caught.value.__cause__ is not None
        assert service.engine.queued == 0


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


async def test_a_result_that_cannot_be_unpickled_here_is_a_failure_of_the_last_stage():
    async with ps.Service(stages.Echo, facade_stages.estrange) as service:
        with pytest.raises(ps.StageFailed) as caught:
            await service.predict("stranger")
        failure = caught.value
        assert failure.message == "the result cannot be unpickled here: never seen here"
        assert (failure.stage, failure.type_name) == ("estrange", "builtins.LookupError")
        assert failure.is_a(LookupError)
        assert "in at_home" in failure.traceback
        assert "pickle_.py" not in failure.traceback
        first, second, third = await service.predict_many([1, "stranger", 3], return_exceptions=True)
        assert (first, third) == (1, 3)
        assert isinstance(second, ps.StageFailed)
        with pytest.raises(ps.StageFailed, match="cannot be unpickled here"):
            await service.predict_many([1, "stranger", 3])
