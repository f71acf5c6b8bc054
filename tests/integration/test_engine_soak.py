"""A million requests through one service in this process: every answer right, memory flat."""

from __future__ import annotations

import asyncio
import gc

import pytest
import stages
from processes import open_files, private

import penstock as ps

LOOPS = ("uvloop",)

REQUESTS = 1_000_000
CALLERS = 500
WARM_UP = 100_000
GROWTH = 8 * 1024 * 1024
"""Bytes a process may grow over 900 000 requests: nine a request would already be a leak."""


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_million_requests_are_answered_in_flat_memory():
    service = ps.Service(ps.stage(stages.AddOneBatch, workers=1), ps.stage(stages.EchoBatch, workers=1))
    async with service:

        async def caller(first: int, last: int) -> None:
            for i in range(first, last, CALLERS):
                if i % 1000 == 7:  # some leave early, some come with bad input
                    call = asyncio.create_task(service.predict(i))
                    await asyncio.sleep(0)
                    call.cancel()
                    await asyncio.wait((call,))
                elif i % 1000 == 8:
                    with pytest.raises(ps.StageFailed):
                        await service.predict("not a number")
                else:
                    assert await service.predict(i) == i + 1

        async def run(first: int, last: int) -> None:
            await asyncio.gather(*(caller(first + k, last) for k in range(CALLERS)))
            gc.collect()

        processes = ["self", *(stage.workers[0].pid for stage in service.engine.stages)]
        await run(0, WARM_UP)
        before, files = [private(pid) for pid in processes], len(open_files())
        await run(WARM_UP, REQUESTS)
        after = [private(pid) for pid in processes]
        counters = service.engine.counters
        assert counters.accepted == REQUESTS
        assert counters.succeeded + counters.cancelled + counters.failed == REQUESTS
        assert service.engine.queued == 0
        assert service.engine.held_bytes == 0
        assert len(open_files()) == files
        assert [end - start for start, end in zip(before, after, strict=True) if end - start > GROWTH] == []
