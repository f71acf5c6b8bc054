"""Deadlines and cancellation of what a real worker runs, or has been sent ahead."""

from __future__ import annotations

import asyncio
import time

import pytest
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps

SOON = 0.08
"""Seconds: short enough to wait for."""
LATER = 1.0
"""Seconds: long enough to reach an idle worker on a busy machine."""


def gated(folder, **options):
    return ps.stage(stages.Gated, setup={"folder": str(folder)}, **options)


def ran(folder):
    return notes(folder / "ran")


async def settled(service: ps.Service) -> None:
    """Nothing is in hand, nor with a worker."""
    await until(lambda: not any(w.frames for stage in service.engine.stages for w in stage.workers))
    assert service.engine.queued == 0
    assert service.engine.held_bytes == 0


async def test_an_item_that_expires_while_it_runs_is_answered_then_and_skips_the_stages_behind(tmp_path):
    behind = ps.stage(stages.Noting, setup={"folder": str(tmp_path), "name": "behind"})
    async with ps.Service(gated(tmp_path), behind) as service:
        before = time.monotonic()
        with pytest.raises(ps.DeadlineExceeded) as caught:
            await service.predict("slow", timeout=LATER)
        assert time.monotonic() - before < 20
        assert caught.value.ran is True
        assert ran(tmp_path) == ["slow"]
        assert not notes(tmp_path / "done")
        (tmp_path / "open").touch()
        await settled(service)
        assert await service.predict("next") == "next"
        assert notes(tmp_path / "behind") == ["next"]


async def test_an_item_that_expires_in_a_prefetched_frame_is_dropped_by_the_worker(tmp_path):
    async with ps.Service(gated(tmp_path)) as service:
        first = asyncio.create_task(service.predict("first"))
        await until(lambda: ran(tmp_path))
        with pytest.raises(ps.DeadlineExceeded) as caught:
            await service.predict("prefetched", timeout=SOON)
        assert len(service.engine.stages[0].workers[0].frames) == 2
        assert caught.value.ran is False
        (tmp_path / "open").touch()
        assert await first == "first"
        await settled(service)
        assert ran(tmp_path) == ["first"]


async def test_a_bulk_call_that_expires_settles_all_its_items_wherever_they_are(tmp_path):
    async with ps.Service(gated(tmp_path), max_in_flight=4) as service:
        answers = await service.predict_many(range(20), timeout=LATER, return_exceptions=True)
        assert all(isinstance(a, ps.DeadlineExceeded) for a in answers)
        assert [a.ran for a in answers] == [True] + [False] * 19
        assert service.engine.counters.expired == 20
        (tmp_path / "open").touch()
        await settled(service)
        assert ran(tmp_path) == [0]


async def cancel(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_item_cancelled_while_it_runs_is_masked_from_the_next_stage(tmp_path):
    behind = ps.stage(stages.Noting, setup={"folder": str(tmp_path), "name": "behind"})
    async with ps.Service(gated(tmp_path), behind) as service:
        running = asyncio.create_task(service.predict("running"))
        await until(lambda: ran(tmp_path))
        await cancel(running)
        assert service.engine.queued == 0
        (tmp_path / "open").touch()
        await settled(service)
        assert await service.predict("next") == "next"
        assert notes(tmp_path / "behind") == ["next"]
        assert service.engine.counters.cancelled == 1


async def test_an_item_cancelled_in_a_prefetched_frame_may_run_and_is_counted(tmp_path):
    behind = ps.stage(stages.Noting, setup={"folder": str(tmp_path), "name": "behind"})
    async with ps.Service(gated(tmp_path), behind) as service:
        first = asyncio.create_task(service.predict("first"))
        ahead = asyncio.create_task(service.predict("ahead"))
        await until(lambda: len(service.engine.stages[0].workers[0].frames) == 2)
        await cancel(ahead)
        assert service.engine.queued == 1
        (tmp_path / "open").touch()
        assert await first == "first"
        await settled(service)
        assert notes(tmp_path / "behind") == ["first"]
        assert service.engine.counters.cancelled == 1


async def test_cancelling_a_bulk_call_discards_all_that_is_unsettled(tmp_path):
    async with ps.Service(gated(tmp_path), max_in_flight=8) as service:
        bulk = asyncio.create_task(service.predict_many(range(50)))
        await until(lambda: ran(tmp_path))
        await cancel(bulk)
        assert service.engine.queued == 0
        assert service.engine.held_bytes == 0
        assert service.engine.counters.cancelled == 50
        (tmp_path / "open").touch()
        await settled(service)
        assert set(ran(tmp_path)) <= {0, 1}
        assert await service.predict("next") == "next"
