"""What a consumer does for its queue beside its jobs."""

from __future__ import annotations

import pytest

from fake_work import fake_service
from penstock.errors import StageFailed, TransferFailed, TransferRefused
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.upkeep import Speed


async def with_an_output(bench, place="file:///out/a"):
    """A consumer that has committed a job with an output, which is not in its place yet."""
    work = await bench()
    work.submit(output=place)
    await work.turn()
    work.engine.of("a").settle(b"6")
    return work


async def test_an_output_that_cannot_be_moved_now_is_moved_later(bench):
    work = await with_an_output(bench)
    work.transfers.finish_errors = [TransferFailed("slow"), TransferFailed("slow")]
    await work.turn(1.0)
    assert work.job().state is JobState.SUCCEEDED
    assert work.transfers.outputs == {}
    for _ in range(4):
        await work.turn(61.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert work.memory.deliveries(limit=9, lease=1) == []


async def test_an_output_of_which_nothing_is_there_is_told_once_and_forgotten(bench, caplog):
    work = await with_an_output(bench)
    work.transfers.finish_errors = [TransferRefused("there is neither")]
    await work.turn(1.0)
    await work.turn(61.0)
    assert [r.message for r in caplog.records if "is lost" in r.message] == [
        "the output of job a is lost: there is neither"
    ]
    assert work.memory.deliveries(limit=9, lease=1) == []


async def test_a_place_that_is_not_allowed_here_is_left_to_another_consumer(bench, caplog):
    work = await with_an_output(bench)
    work.transfers.refused = {"file:///out/a": TransferRefused("not allowed")}
    await work.turn(1.0)
    assert "left to a consumer that may move it" in caplog.text
    work.transfers.refused = {}
    await work.turn(61.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}


async def test_what_dead_attempts_have_left_is_removed(bench):
    work = await bench(backoff=0.0)
    work.submit(output="file:///out/a")
    await work.turn()
    work.engine.of("a").settle(StageFailed("boom", type_name="builtins.ValueError"))
    await work.turn()
    work.engine.of("a").settle(b"6")
    await work.turn(6.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert ("file:///out/a", "a", 1) in work.transfers.discarded


async def test_the_queue_is_counted_and_old_jobs_are_forgotten(bench):
    work = await bench(keep=100.0)
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
    stage.computed.add(2.0)
    stage.batch_size.add(4)
    assert speed.measure(targets) == pytest.approx(0.5)
    assert speed.measure(targets) == pytest.approx(0.5)  # nothing ran: it is as it was
    stage.computed.add(4.0)
    stage.batch_size.add(4)
    assert speed.measure(targets) == pytest.approx(1.0)
