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
        assert stage.counters.batches_closed == {"idle": 2, "full": 1}


@pytest.mark.parametrize(("bound", "held", "at_once"), [(None, 6, 3), (2, 2, 2)])
async def test_no_more_batches_run_at_once_than_the_bound_of_the_stage(tmp_path, bound, held, at_once):
    spec = ps.stage(stages.Marked, workers=3, max_in_flight_batches=bound, setup={"folder": str(tmp_path)})
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


async def test_a_lone_item_is_held_for_company_for_max_wait_and_no_longer():
    held = ps.stage(stages.sizes, batch=ps.Batch(max_size=10, max_wait=0.15))
    async with ps.Service(held) as service:
        before = time.monotonic()
        assert await service.predict(0) == 1
        assert 0.15 <= time.monotonic() - before < tight(1.5)
        assert await asyncio.gather(*(service.predict(i) for i in range(3))) == [3, 3, 3]
        assert service.engine.stages[0].counters.batches_closed == {"timeout": 2}
