"""A backlog of jobs beside requests, over real workers."""

from __future__ import annotations

import asyncio
import math

import stages

import penstock as ps
from penstock.codec.formats import Codec
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Result
from penstock.runtime.caller_formats import pack_item


def job(service, item, *, alone=False):
    """Submit `item` as a job would be; the future has its outcome."""
    told = asyncio.get_running_loop().create_future()
    done = lambda outcomes: told.set_result(outcomes[0])  # noqa: E731
    service.engine.submit((pack_item(item),), Codec.PICKLE, Codec.PICKLE, math.inf, done, lane=Lane.BACK, alone=alone)
    return told


async def test_requests_are_answered_beside_a_backlog_and_the_drain_waits_for_it():
    async with ps.Service(ps.stage(stages.EchoBatch), max_in_flight=8) as service:
        jobs = [job(service, i) for i in range(2000)]
        assert await service.predict_many(range(20)) == list(range(20))
        assert not all(told.done() for told in jobs)
        assert service.state is ps.State.READY
    assert all(isinstance(told.result(), Result) for told in jobs)


async def test_a_job_that_is_to_be_alone_is_so_in_both_stages():
    specs = [ps.stage(stages.EchoBatch, name=name) for name in "ab"]
    async with ps.Service(*specs) as service:
        outcomes = await asyncio.gather(*[job(service, i, alone=i == 10) for i in range(20)])
        assert all(isinstance(outcome, Result) for outcome in outcomes)
        assert [stage.counters.batches_closed.get("isolated") is not None for stage in service.engine.stages] == [
            True,
            True,
        ]


async def test_a_job_that_hangs_alone_says_so():
    async with ps.Service(ps.stage(stages.Act, timeout=0.3)) as service:
        outcome = await job(service, ("sleep", 60), alone=True)
        assert isinstance(outcome, Failure)
        assert (type(outcome.error), outcome.error.hung, outcome.error.alone) == (ps.WorkerLost, True, True)
