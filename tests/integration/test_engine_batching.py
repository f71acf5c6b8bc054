"""Batches as real workers see them: who travels together, when, and why."""

from __future__ import annotations

import asyncio
import time
from itertools import accumulate

import pytest
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps
from night import tight


def gated(folder, **options):
    options = {"batch": ps.Batch(max_size=4), **options}
    return ps.stage(stages.GatedBatch, setup={"folder": str(folder)}, **options)


def ran(folder):
    return notes(folder / "ran")


async def test_while_every_worker_is_busy_the_open_batch_grows(tmp_path):
    async with ps.Service(gated(tmp_path)) as service:
        calls = [asyncio.create_task(service.predict(0))]
        await until(lambda: ran(tmp_path))
        for i in range(1, 4):  # each in a turn of its own, none enough for a full batch
            calls.append(asyncio.create_task(service.predict(i)))
            await asyncio.sleep(0)
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == [0, 1, 2, 3]
        assert ran(tmp_path) == [[0], [1, 2, 3]]
        assert service.engine.stages[0].counters.cuts == {"idle": 2}


async def test_a_full_batch_is_sent_ahead_and_a_partial_one_waits(tmp_path):
    async with ps.Service(gated(tmp_path)) as service:
        stage = service.engine.stages[0]
        calls = [asyncio.create_task(service.predict(i)) for i in range(1)]
        await until(lambda: ran(tmp_path))
        calls += [asyncio.create_task(service.predict(i)) for i in range(1, 8)]
        await until(lambda: stage.in_flight == 5)
        assert stage.queued == 3
        assert len(ran(tmp_path)) == 1
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == list(range(8))
        assert ran(tmp_path) == [[0], [1, 2, 3, 4], [5, 6, 7]]
        assert stage.counters.cuts == {"idle": 2, "full": 1}


async def test_an_idle_worker_is_served_before_a_busy_one_is_sent_more(tmp_path):
    async with ps.Service(gated(tmp_path, workers=2)) as service:
        first, second = service.engine.stages[0].workers
        calls = [asyncio.create_task(service.predict_many(range(4)))]
        await until(lambda: len(ran(tmp_path)) == 1)
        calls.append(asyncio.create_task(service.predict_many(range(4, 8))))
        await until(lambda: len(ran(tmp_path)) == 2)
        assert (len(first.frames), len(second.frames)) == (1, 1)
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)


async def test_a_stage_without_a_policy_gets_bare_items_one_ahead(tmp_path):
    spec = ps.stage(stages.Gated, setup={"folder": str(tmp_path)})
    async with ps.Service(spec) as service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(6)]
        await until(lambda: ran(tmp_path))
        assert len(service.engine.stages[0].workers[0].frames) == 2
        assert service.engine.stages[0].queued == 4
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == list(range(6))


async def test_prefetch_raises_and_ends_the_sending_ahead(tmp_path):
    for prefetch in (0, 4):
        folder = tmp_path / str(prefetch)
        folder.mkdir()
        spec = ps.stage(stages.Gated, prefetch=prefetch, setup={"folder": str(folder)})
        async with ps.Service(spec) as service:
            calls = [asyncio.create_task(service.predict(i)) for i in range(6)]
            await until(lambda: ran(folder))  # noqa: B023  # awaited in this turn
            assert len(service.engine.stages[0].workers[0].frames) == 1 + prefetch
            (folder / "open").touch()
            await asyncio.gather(*calls)


@pytest.mark.parametrize(("bound", "held", "at_once"), [(None, 6, 3), (2, 2, 2), (1, 1, 1)])
async def test_no_more_batches_run_at_once_than_the_bound_of_the_stage(tmp_path, bound, held, at_once):
    spec = ps.stage(stages.Marked, workers=3, max_batches=bound, setup={"folder": str(tmp_path)})
    async with ps.Service(spec) as service:
        stage = service.engine.stages[0]
        await until(lambda: stage.live_workers == 3)
        calls = [asyncio.create_task(service.predict(i)) for i in range(60)]
        await until(lambda: len(notes(tmp_path / "marks")) == at_once)
        assert (stage.in_flight, stage.queued) == (held, 60 - held)
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == list(range(60))
    # Each is one line in one file, written where it happened: a count of them is how many ran at that moment.
    running = list(accumulate(notes(tmp_path / "marks")))
    assert (len(running), max(running), running[-1]) == (120, at_once, 0)


async def test_a_policy_of_one_passes_a_list_of_one(tmp_path):
    async with ps.Service(ps.stage(stages.sizes, batch=ps.Batch(max_size=1))) as service:
        assert await service.predict_many("abc") == [1, 1, 1]


async def test_a_lone_item_is_held_for_company_for_max_wait_and_no_longer():
    held = ps.stage(stages.sizes, batch=ps.Batch(max_size=10, max_wait=0.15))
    async with ps.Service(held) as service:
        before = time.monotonic()
        assert await service.predict(0) == 1
        assert 0.15 <= time.monotonic() - before < tight(1.5)
        assert await asyncio.gather(*(service.predict(i) for i in range(3))) == [3, 3, 3]
        assert service.engine.stages[0].counters.cuts == {"waited": 2}


async def test_a_batch_that_is_full_is_not_held():
    held = ps.stage(stages.sizes, batch=ps.Batch(max_size=3, max_wait=60))
    async with ps.Service(held) as service:
        assert await asyncio.wait_for(asyncio.gather(*(service.predict(i) for i in range(3))), 20) == [3, 3, 3]
        assert service.engine.stages[0].counters.cuts == {"full": 1}


async def test_a_gap_between_arrivals_ends_the_wait():
    held = ps.stage(stages.sizes, batch=ps.Batch(max_size=100, max_wait=float("inf"), max_gap=0.05))
    async with ps.Service(held) as service:
        assert await asyncio.wait_for(asyncio.gather(*(service.predict(i) for i in range(3))), 20) == [3, 3, 3]
        assert service.engine.stages[0].counters.cuts == {"gap": 1}


async def test_a_deadline_that_comes_before_the_wait_is_over_cuts_the_batch():
    held = ps.stage(stages.sleep_longest, batch=ps.Batch(max_size=100, max_wait=60))
    async with ps.Service(held) as service:
        # A run of two seconds is learned from a client batch, which is not held.  So the one that waits leaves two
        # seconds before its deadline, runs at once, and is in time on a busy machine too.
        await service.predict_many([2.0, 2.0])
        assert await service.predict(0.0, timeout=3.0) == 0.0
        assert service.engine.stages[0].counters.cuts == {"bulk": 1, "deadline": 1}


async def test_items_that_came_as_one_are_not_held_and_take_waiting_ones_along():
    held = ps.stage(stages.sizes, batch=ps.Batch(max_size=100, max_wait=60))
    async with ps.Service(held) as service:
        lone = asyncio.create_task(service.predict(0))
        await until(lambda: service.engine.stages[0].queued == 1)
        assert await asyncio.wait_for(service.predict_many([1, 2]), 20) == [3, 3]
        assert await lone == 3
        assert service.engine.stages[0].counters.cuts == {"bulk": 1}


async def test_a_client_batch_larger_than_a_batch_and_than_all_room_is_split():
    spec = ps.stage(stages.sizes, batch=ps.Batch(max_size=8))
    async with ps.Service(spec, max_queued=20) as service:
        answers = await service.predict_many(range(1000))
        assert len(answers) == 1000
        assert max(answers) == 8
        assert service.engine.counters.accepted == 1000
        assert service.engine.stages[0].counters.batches < 300


async def test_single_requests_interleave_with_a_large_bulk_call(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=40) as service:
        bulk = asyncio.create_task(service.predict_many([f"b{i}" for i in range(400)]))
        await until(lambda: ran(tmp_path))
        singles = [asyncio.create_task(service.predict(f"s{i}")) for i in range(10)]
        (tmp_path / "open").touch()
        assert await asyncio.gather(*singles) == [f"s{i}" for i in range(10)]
        assert not bulk.done()
        assert await bulk == [f"b{i}" for i in range(400)]
        order = [x for batch in ran(tmp_path) for x in batch]
        last_single = max(i for i, x in enumerate(order) if x[0] == "s")
        assert last_single < 80  # behind what was in hand, then in turns; not behind all of the bulk call


async def test_items_of_many_callers_share_batches_of_the_second_stage():
    async with ps.Service(
        ps.stage(stages.Echo, workers=2), ps.stage(stages.sizes, batch=ps.Batch(max_wait=0.1))
    ) as service:
        assert max(await asyncio.gather(*(service.predict(i) for i in range(10)))) > 1
