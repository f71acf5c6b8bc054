"""Deadlines and cancellation, in every place where an item can be when its time or its caller is gone."""

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


async def test_an_item_that_expires_in_the_queue_is_never_run(tmp_path):
    async with ps.Service(gated(tmp_path, prefetch=0)) as service:
        first = asyncio.create_task(service.predict("first"))
        await until(lambda: ran(tmp_path))
        before = time.monotonic()
        with pytest.raises(ps.DeadlineExceeded) as caught:
            await service.predict("late", timeout=SOON)
        assert SOON <= time.monotonic() - before < 20
        assert caught.value.ran is False
        assert service.engine.stages[0].queued == 0
        (tmp_path / "open").touch()
        assert await first == "first"
        await settled(service)
        assert ran(tmp_path) == ["first"]
        assert service.engine.counters.expired == 1


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


async def test_an_item_that_expires_while_it_waits_for_room_is_never_run(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=1) as service:
        first = asyncio.create_task(service.predict("first"))
        await until(lambda: ran(tmp_path))
        with pytest.raises(ps.DeadlineExceeded) as caught:
            await service.predict("outside", timeout=SOON)
        assert caught.value.ran is False
        (tmp_path / "open").touch()
        assert await first == "first"
        assert await service.predict("next") == "next"
        await settled(service)
        assert ran(tmp_path) == ["first", "next"]


async def test_a_bulk_call_that_expires_settles_all_its_items_wherever_they_are(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=4) as service:
        answers = await service.predict_many(range(20), timeout=LATER, return_exceptions=True)
        assert all(isinstance(a, ps.DeadlineExceeded) for a in answers)
        assert [a.ran for a in answers] == [True] + [False] * 19
        assert service.engine.counters.expired == 20
        (tmp_path / "open").touch()
        await settled(service)
        assert ran(tmp_path) == [0]


async def test_an_item_may_expire_between_two_stages(tmp_path):
    async with ps.Service(stages.Echo, gated(tmp_path, prefetch=0)) as service:
        first = asyncio.create_task(service.predict("first"))
        await until(lambda: ran(tmp_path))
        with pytest.raises(ps.DeadlineExceeded) as caught:
            await service.predict("late", timeout=SOON)
        assert caught.value.ran is False
        (tmp_path / "open").touch()
        assert await first == "first"
        await settled(service)
        assert ran(tmp_path) == ["first"]


async def test_a_batch_is_bisected_without_its_expired_items(tmp_path):
    async with ps.Service(ps.stage(stages.SlowPoison, setup={"folder": str(tmp_path)})) as service:
        hurried = asyncio.create_task(service.predict("hurried", timeout=LATER))
        others = [asyncio.create_task(service.predict(x)) for x in ("good", "bad")]
        with pytest.raises(ps.DeadlineExceeded) as caught:
            await hurried
        assert caught.value.ran is True
        assert await others[0] == "good"
        with pytest.raises(ps.StageFailed):
            await others[1]
        calls = notes(tmp_path / "calls")
        assert calls[0] == ["hurried", "good", "bad"]
        assert "hurried" not in [x for call in calls[1:] for x in call]


async def test_the_services_own_timeout_is_the_longest(tmp_path):
    async with ps.Service(gated(tmp_path), timeout=SOON) as service:
        for timeout in (None, 60):
            before = time.monotonic()
            with pytest.raises(ps.DeadlineExceeded):
                await service.predict(1, timeout=timeout)
            assert time.monotonic() - before < 20
        (tmp_path / "open").touch()


async def test_a_timeout_that_is_over_already_runs_nothing(tmp_path):
    async with ps.Service(gated(tmp_path)) as service:
        (tmp_path / "open").touch()
        for timeout in (0, -1):
            with pytest.raises(ps.DeadlineExceeded) as caught:
                await service.predict("late", timeout=timeout)
            assert not caught.value.ran
        assert await service.predict(1) == 1
        assert ran(tmp_path) == [1]


async def test_no_timeout_is_no_deadline():
    async with ps.Service(stages.Double, timeout=float("inf")) as service:
        assert await service.predict(1) == 2
        assert await service.predict(1, timeout=float("inf")) == 2


async def cancel(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_item_leaves_the_queue_and_is_never_run(tmp_path):
    async with ps.Service(gated(tmp_path, prefetch=0)) as service:
        first = asyncio.create_task(service.predict("first"))
        await until(lambda: ran(tmp_path))
        queued = asyncio.create_task(service.predict("queued"))
        await until(lambda: service.engine.stages[0].queued == 1)
        await cancel(queued)
        assert service.engine.stages[0].queued == 0
        (tmp_path / "open").touch()
        assert await first == "first"
        await settled(service)
        assert ran(tmp_path) == ["first"]
        assert service.engine.counters.cancelled == 1


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


async def test_an_item_cancelled_while_it_waits_for_room_makes_room_for_the_next(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=1) as service:
        first = asyncio.create_task(service.predict("first"))
        await until(lambda: ran(tmp_path))
        outside = asyncio.create_task(service.predict("outside"))
        after = asyncio.create_task(service.predict("after"))
        await until(lambda: service.engine.counters.accepted == 3)
        await cancel(outside)
        (tmp_path / "open").touch()
        assert await asyncio.gather(first, after) == ["first", "after"]
        assert ran(tmp_path) == ["first", "after"]
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
    async with ps.Service(gated(tmp_path), max_queued=8) as service:
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


async def test_cancelling_one_of_a_batch_leaves_its_mates_alone(tmp_path):
    spec = ps.stage(stages.GatedBatch, setup={"folder": str(tmp_path)})
    async with ps.Service(spec) as service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(4)]
        await until(lambda: ran(tmp_path))
        await cancel(calls[1])
        (tmp_path / "open").touch()
        assert await asyncio.gather(calls[0], calls[2], calls[3]) == [0, 2, 3]
