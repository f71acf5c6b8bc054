"""A stage that has work and gives nothing back: the state of its service, what the log says, and what still goes on."""

from __future__ import annotations

import logging
import math

import pytest

from penstock.config import Batch
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest


@pytest.fixture
async def rig(make_rig):
    """One worker that runs one item at a time, and a minute until the stage has stalled."""
    return await make_rig(stage(math.sqrt, name="root", prefetch=0), progress_deadline=60.0).start()


def ages(rig):
    return [each.progress_age for each in rig.engine.stages]


async def test_a_service_is_stalled_when_nothing_has_come_back_for_so_long(rig):
    await rig.call()
    await rig.clock.advance(59.9)
    assert rig.engine.state is State.READY
    await rig.clock.advance(0.1)
    assert rig.engine.state is State.STALLED
    await rig.clock.advance(1.4)
    assert rig.engine.reason == "stage 'root' has work but has completed nothing for 61 s"
    assert ages(rig) == pytest.approx([61.4])


async def test_a_stalled_service_takes_requests_and_jobs_and_an_answer_ends_it(rig):
    first = await rig.call()
    await rig.clock.advance(70.0)
    assert rig.engine.refusal() is None
    second, job = await rig.call(), await rig.call(lane=Lane.BACK)
    rig.workers[0].answer()
    await rest()
    assert rig.engine.state is State.READY
    assert first.ends == [b"1"]
    assert ages(rig) == [0.0]
    rig.workers[0].answer()
    await rest()
    rig.workers[0].answer()
    await rest()
    assert second.done
    assert job.done
    assert rig.engine.reason == ""


async def test_a_start_of_a_pool_and_the_ends_of_workers_leave_a_stalled_service_open(make_rig):
    rig = await make_rig(stage(math.sqrt, workers=2, prefetch=0), progress_deadline=60.0).start()
    await rig.call()
    await rig.clock.advance(60.0)
    rig.workers[1].die()
    await rest()
    assert rig.engine.state is State.STALLED
    await rig.call()


async def test_the_last_of_the_time_is_not_too_short_for_the_clock(make_rig):
    rig = await make_rig(stage(math.sqrt, name="root", prefetch=0), progress_deadline=2.0).start()
    await rig.clock.advance(23.1)  # at 1023.1 on the clock, and two seconds more are a little less than two
    await rig.call()
    await rig.clock.advance(2.1)
    assert rig.engine.state is State.STALLED


async def test_an_idle_night_does_not_count(rig):
    await rig.call()
    rig.workers[0].answer()
    await rig.clock.advance(40_000.0)
    assert ages(rig) == [0.0]
    await rig.call()
    await rig.clock.advance(59.0)
    assert rig.engine.state is State.READY
    assert ages(rig) == [59.0]


async def test_callers_that_leave_and_others_that_come_do_not_begin_it_anew(rig):
    for _ in range(7):
        await rig.call(within=10.0)
        await rig.clock.advance(9.0)
        await rig.call(within=10.0)
        await rig.clock.advance(1.0)
    assert rig.engine.state is State.STALLED


async def test_work_that_waits_while_the_worker_is_started_anew_counts(rig):
    await rig.call()
    rig.workers[0].die()
    await rig.clock.advance(30.0)
    assert ages(rig) == [30.0], "a worker that dies has given nothing back"
    await rig.clock.advance(30.0)
    assert rig.engine.state is State.STALLED
    rig.workers[-1].become_ready()
    await rest()
    rig.workers[-1].answer()
    await rest()
    assert rig.engine.state is State.READY


async def test_it_ends_where_the_last_of_the_work_has_gone(rig, caplog):
    rig.workers[0].die()
    call = await rig.call(within=80.0)
    await rig.clock.advance(70.0)
    assert rig.engine.state is State.STALLED
    with caplog.at_level(logging.INFO, "penstock"):
        await rig.clock.advance(10.0)
    assert call.done
    assert rig.engine.state is State.READY
    assert "stage 'root' is no longer stalled: no work is left after 80.0 s" in caplog.text


async def test_items_that_wait_for_company_are_no_work(make_rig):
    policy = Batch(max_size=4, max_wait=600.0)
    rig = await make_rig(stage(math.sqrt, batch=policy), progress_deadline=60.0, timeout=math.inf).start()
    await rig.call()
    await rig.clock.advance(599.0)
    assert (rig.engine.state, ages(rig)) == (State.READY, [0.0])
    await rig.clock.advance(1.0)
    assert rig.workers[0].batches == [[b"1"]]
    await rig.clock.advance(59.0)
    assert (rig.engine.state, ages(rig)) == (State.READY, [59.0])
    await rig.clock.advance(1.0)
    assert rig.engine.state is State.STALLED


async def test_a_stage_that_waits_for_room_behind_it_is_not_the_one_that_has_stalled(make_rig):
    first, second = stage(math.sqrt, name="first"), stage(math.sqrt, name="second", max_queued=1, prefetch=0)
    rig = await make_rig(first, second, progress_deadline=60.0).start()
    calls = [await rig.call() for _ in range(4)]
    for _ in range(4):
        if rig.workers[0].frames:
            rig.workers[0].answer()
        await rest()
    await rig.clock.advance(60.0)
    assert ages(rig) == [0.0, 60.0]
    assert "'second'" in rig.engine.reason
    assert not any(call.done for call in calls)


# -- the log ----------------------------------------------------------------------------------------------------------


async def test_the_log_says_once_that_a_stage_has_stalled_and_once_that_it_is_back(rig, caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        await rig.call()
        await rig.clock.advance(200.0)
        rig.workers[0].answer()
        await rig.call()
        await rig.clock.advance(50.0)
        rig.workers[0].answer()
        await rig.clock.advance(50.0)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("ERROR", "stage 'root' has stalled: it has work but has completed nothing for 60.0 s"),
        ("INFO", "stage 'root' is no longer stalled: a batch completed after 200.0 s"),
    ]


async def test_a_second_stall_is_told_again(rig, caplog):
    await rig.call()
    await rig.call()
    await rig.clock.advance(60.0)
    rig.workers[0].answer()
    await rig.clock.advance(60.0)
    assert caplog.text.count("has stalled: ") == 2


async def test_one_timer_is_enough_however_much_is_answered(rig):
    for _ in range(50):
        await rig.call()
        rig.workers[0].answer()
        await rest()
    assert rig.clock.waiting == [60.0]
    await rig.clock.advance(60.0)
    assert rig.clock.waiting == [], "no work is in hand"
    await rig.call()
    await rig.clock.advance(30.0)
    rig.workers[0].answer()
    await rig.call()
    await rig.clock.advance(30.0)
    assert rig.clock.waiting == [30.0], "it looks again when the time may be up"


async def test_an_engine_that_was_abandoned_says_nothing(rig, caplog):
    await rig.call()
    rig.engine.abandon()
    await rig.clock.advance(60.0)
    assert "stalled" not in caplog.text
