"""Every queue is bounded, in items and in bytes, and who cannot come in waits or is told when to come again."""

from __future__ import annotations

import asyncio

import pytest
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps


def gated(folder, **options):
    return ps.stage(stages.Gated, setup={"folder": str(folder)}, **options)


async def fill(service: ps.Service, n: int) -> list[asyncio.Task]:
    """Have `n` items in hand."""
    calls = [asyncio.create_task(service.predict(i)) for i in range(n)]
    await until(lambda: service.engine.queued == n)
    return calls


async def test_a_full_service_refuses_who_will_not_wait_and_says_when_to_come_again(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=3) as service:
        calls = await fill(service, 3)
        assert service.state is ps.State.BUSY
        with pytest.raises(ps.Overloaded, match=r"full; try again in \d+ s") as caught:
            await service.predict(9, wait=False)
        assert 1 <= caught.value.retry_after <= 60
        with pytest.raises(ps.Overloaded):
            await service.predict_many([9, 10], wait=False)
        assert service.engine.counters.refused == 3
        assert service.engine.queued == 3
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)
        assert await service.predict(9, wait=False) == 9
        assert 9 in notes(tmp_path / "ran")
        assert 10 not in notes(tmp_path / "ran")


async def test_who_waits_for_room_gets_it_in_turn(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=2) as service:
        calls = await fill(service, 2)
        calls += [asyncio.create_task(service.predict(i)) for i in range(2, 8)]
        await until(lambda: service.engine.counters.accepted == 8)
        assert service.engine.queued == 2
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == list(range(8))
        assert notes(tmp_path / "ran") == list(range(8))


async def test_a_client_batch_comes_in_if_there_is_room_for_its_first_item(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=4) as service:
        calls = await fill(service, 3)
        bulk = asyncio.create_task(service.predict_many(range(100, 130), wait=False))
        await until(lambda: service.engine.queued == 4)
        (tmp_path / "open").touch()
        assert await bulk == list(range(100, 130))
        await asyncio.gather(*calls)


async def test_one_stage_may_be_bounded_more_tightly_than_the_service(tmp_path):
    async with ps.Service(gated(tmp_path, max_queued=2, prefetch=0), max_queued=100) as service:
        calls = [asyncio.create_task(service.predict(0))]
        await until(lambda: notes(tmp_path / "ran"))
        calls += [asyncio.create_task(service.predict(i)) for i in (1, 2)]
        await until(lambda: service.engine.stages[0].queued == 2)
        with pytest.raises(ps.Overloaded):
            await service.predict(3, wait=False)
        calls += [asyncio.create_task(service.predict(i)) for i in range(3, 6)]
        await until(lambda: service.engine.counters.accepted == 6)
        assert service.engine.stages[0].queued == 2
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == list(range(6))


async def test_a_slow_second_stage_holds_the_first_back_at_its_bound(tmp_path):
    first = ps.stage(stages.EchoBatch, workers=2)
    async with ps.Service(first, gated(tmp_path, max_queued=5)) as service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(100)]
        await until(lambda: service.engine.stages[1].queued == 5)
        second = service.engine.stages[1]
        most = 0
        (tmp_path / "open").touch()

        def watch() -> bool:
            nonlocal most
            most = max(most, second.queued)
            return all(call.done() for call in calls)

        await until(watch)
        assert most <= 5
        assert [call.result() for call in calls] == list(range(100))


async def test_a_stage_is_not_fed_while_the_queue_behind_holds_more_than_its_share_of_bytes(tmp_path):
    service = ps.Service(stages.Swell, gated(tmp_path, prefetch=0), max_queued=100, max_queued_bytes=1_000_000)
    async with service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(40)]
        second = service.engine.stages[1]
        await until(lambda: second.queue.nbytes > 500_000)
        # Each result is 100 kB: what was under way when the share was reached still arrives, and then no more.
        await until(lambda: service.engine.stages[0].in_flight == 0)
        assert second.queue.nbytes <= 800_000
        (tmp_path / "open").touch()
        answers = await asyncio.gather(*calls)
        assert [len(a) for a in answers] == [100_000] * 40
        assert service.engine.held_bytes == 0


async def test_bytes_are_a_bound_too(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued_bytes=10_000) as service:
        first = asyncio.create_task(service.predict("x" * 9_000))
        await until(lambda: service.engine.queued == 1)
        with pytest.raises(ps.Overloaded):
            await service.predict("y" * 9_000, wait=False)
        small = asyncio.create_task(service.predict("z", wait=False))
        (tmp_path / "open").touch()
        assert len(await first) == 9_000
        assert await small == "z"
        assert len(await service.predict("y" * 9_000, wait=False)) == 9_000
        assert service.engine.held_bytes == 0


async def test_bytes_are_given_back_however_an_item_ends(tmp_path):
    async with ps.Service(stages.ActBatch, stages.Echo) as service:
        items = [("raise", "x" * 5000), ("raise a", "invalid", "x" * 5000), "x" * 5000]
        await service.predict_many(items, return_exceptions=True)
        with pytest.raises(ps.DeadlineExceeded):
            await service.predict(("hold", str(tmp_path), "x" * 5000), timeout=0.05)
        (tmp_path / "open").touch()
        await until(lambda: service.engine.queued == 0)
        assert service.engine.held_bytes == 0


async def test_who_brings_many_bytes_waits_for_room_for_them(tmp_path):
    spec = ps.stage(stages.GatedLength, setup={"folder": str(tmp_path)})
    async with ps.Service(spec, max_queued_bytes=1_000_000) as service:
        calls = [asyncio.create_task(service.predict(b"x" * 400_000)) for _ in range(10)]
        await until(lambda: service.engine.counters.accepted == 10)
        assert service.engine.queued == 2
        assert service.engine.held_bytes <= 1_000_000
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == [400_000] * 10
        await until(lambda: service.engine.held_bytes == 0)


async def test_forty_thousand_who_wait_can_all_leave_without_holding_up_the_loop(tmp_path):
    async with ps.Service(gated(tmp_path), max_queued=1) as service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(40_000)]
        await until(lambda: service.engine.counters.accepted == 40_000)
        for call in reversed(calls):
            call.cancel()
        await asyncio.wait(calls)
        assert service.engine.counters.cancelled == 40_000
        assert (service.engine.queued, service.engine.held_bytes) == (0, 0)
        (tmp_path / "open").touch()
        assert await service.predict(7) == 7


@pytest.mark.parametrize("timeout", [float("-inf"), 1e307])
async def test_a_deadline_beyond_all_time_leaves_nothing_held(tmp_path, timeout):
    async with ps.Service(gated(tmp_path), timeout=float("inf")) as service:
        call = asyncio.create_task(service.predict(1, timeout=timeout))
        if timeout < 0:
            with pytest.raises(ps.DeadlineExceeded):
                await call
        (tmp_path / "open").touch()
        if timeout > 0:
            assert await call == 1
        assert (service.engine.queued, service.engine.held_bytes) == (0, 0)


async def test_two_bulk_calls_that_do_not_fit_together_both_come_to_their_end(tmp_path):
    async with ps.Service(len, max_queued=64, max_queued_bytes=1 << 20) as service:
        calls = [service.predict_many([b"x" * 2000] * 400, timeout=20) for _ in range(2)]
        for answers in await asyncio.gather(*calls):
            assert answers == [2000] * 400
        await until(lambda: service.engine.held_bytes == 0)
