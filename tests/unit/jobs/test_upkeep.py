"""What a consumer does for its queue beside its jobs."""

from __future__ import annotations

import pytest

from fake_work import fake_service
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.upkeep import Speed


async def test_the_queue_is_counted_and_old_jobs_are_forgotten(bench):
    work = await bench(result_ttl=100.0)
    work.submit("a")
    await work.turn()
    work.engine.of("a").settle(b"6")
    await work.turn(10.0)
    assert work.consumer.counters.stats.succeeded == 1
    await work.turn(200.0)
    assert work.consumer.counters.stats.succeeded == 0
    assert work.memory.get(["a"]) == [None]


def test_the_speed_of_a_job_is_that_of_its_stages_together():
    service = fake_service()
    stage = service.engine.stages[0].counters
    speed = Speed()
    targets = [JobTarget(service)]
    assert speed.measure(targets) is None
    stage.run_seconds.add(2.0)
    stage.batch_size.add(4)
    assert speed.measure(targets) == pytest.approx(0.5)
    assert speed.measure(targets) == pytest.approx(0.5)  # nothing ran: it is as it was
    stage.run_seconds.add(4.0)
    stage.batch_size.add(4)
    assert speed.measure(targets) == pytest.approx(1.0)
