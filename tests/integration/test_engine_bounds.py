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
    async with ps.Service(gated(tmp_path), max_in_flight=3) as service:
        calls = await fill(service, 3)
        assert service.state is ps.State.BUSY
        with pytest.raises(ps.Overloaded, match=r"full; try again in \d+ s") as caught:
            await service.predict(9, wait=False)
        assert 1 <= caught.value.retry_after <= 60
        with pytest.raises(ps.Overloaded):
            await service.predict_many([9, 10], wait=False)
        assert service.engine.counters.rejected == 3
        assert service.engine.queued == 3
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)
        assert await service.predict(9, wait=False) == 9
        assert 9 in notes(tmp_path / "ran")
        assert 10 not in notes(tmp_path / "ran")


async def test_forty_thousand_who_wait_can_all_leave_without_holding_up_the_loop(tmp_path):
    async with ps.Service(gated(tmp_path), max_in_flight=1) as service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(40_000)]
        await until(lambda: service.engine.counters.accepted == 40_000)
        for call in reversed(calls):
            call.cancel()
        await asyncio.wait(calls)
        assert service.engine.counters.cancelled == 40_000
        assert (service.engine.queued, service.engine.held_bytes) == (0, 0)
        (tmp_path / "open").touch()
        assert await service.predict(7) == 7


async def test_two_bulk_calls_that_do_not_fit_together_both_come_to_their_end(tmp_path):
    async with ps.Service(len, max_in_flight=64, max_queued_bytes=1 << 20) as service:
        calls = [service.predict_many([b"x" * 2000] * 400, timeout=20) for _ in range(2)]
        for answers in await asyncio.gather(*calls):
            assert answers == [2000] * 400
        await until(lambda: service.engine.held_bytes == 0)
