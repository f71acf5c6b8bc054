"""A stage with a `health`: its idle workers are asked, and those that are not well are replaced."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

import penstock as ps
from penstock.core.state import State, WorkerState
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import Kind


class Well(ps.Stage):
    """What the fakes are workers of."""

    def predict(self, x):
        return x

    def health(self):
        """Never called: the workers are fakes."""


@pytest.fixture
async def rig(make_rig):
    """Two workers of a stage with a `health`."""
    return await make_rig(stage(Well, workers=2)).start()


def reasons(rig):
    return [worker.reason for worker in rig.engine.stages[0].workers]


async def test_an_idle_worker_is_asked_after_ten_seconds_and_every_ten_from_then(rig):
    await rig.clock.advance(9.9)
    assert [worker.checked for worker in rig.workers.started] == [False, False]
    await rig.clock.advance(0.1)
    for worker in rig.workers.started:
        assert worker.checked
        worker.finish_check()
        await rig.clock.advance(0.0)
    assert {worker.state for worker in rig.engine.stages[0].workers} == {WorkerState.IDLE}
    await rig.clock.advance(9.9)
    assert not any(worker.checked for worker in rig.workers.started)
    await rig.clock.advance(0.1)
    assert [worker.checked for worker in rig.workers.started] == [True, False]
    assert reasons(rig) == ["", ""]


async def test_a_worker_that_is_asked_how_it_is_takes_no_room_of_the_bound_on_batches(make_rig):
    rig = await make_rig(stage(Well, workers=2, max_in_flight_batches=1)).start()
    await rig.clock.advance(10.0)
    assert rig.workers[0].checked
    await rig.call(b"a")
    await rig.call(b"b")
    assert [worker.batches for worker in rig.workers.started] == [[], [[b"a"]]]
    rig.workers[0].finish_check()
    await rest()
    assert [worker.batches for worker in rig.workers.started] == [[], [[b"a"]]], "nor did it make any"
    rig.workers[1].answer()
    await rest()
    rig.workers[0].answer()
    await rest()


async def test_a_worker_that_is_asked_how_it_is_counts_as_idle_and_keeps_nobody_out(make_rig):
    rig = await make_rig(stage(Well), admission="deadline").start()
    await rig.call()
    await rig.clock.advance(1.0)
    rig.workers[0].answer(seconds=1.0)
    await rig.clock.advance(11.0)
    assert rig.workers[0].checked
    assert rig.engine.refusal(0, rig.clock.now() + 0.1) is None, "a worker is idle, and nothing waits"
    assert rig.engine.backlog_seconds == 0.0
    await rig.call()  # sent ahead, behind the check
    await rig.clock.advance(0.5)
    assert rig.engine.backlog_seconds == 1.0, "its batch has not begun"
    assert rig.engine.refusal(0, rig.clock.now() + 2.1) is None
    assert rig.engine.refusal(0, rig.clock.now() + 1.9).reason == "deadline"
    rig.workers[0].finish_check()
    await rest()
    await rig.clock.advance(0.5)
    assert rig.engine.backlog_seconds == 0.5
    rig.workers[0].answer(seconds=1.0)


async def test_a_worker_at_work_is_not_asked(rig):
    await rig.clock.advance(9.0)
    await rig.call()
    await rig.clock.advance(5.0)
    assert [worker.checked for worker in rig.workers.started] == [False, True]
    rig.workers[0].answer()
    rig.workers[1].finish_check()
    await rig.clock.advance(9.9)
    assert not rig.workers[0].checked
    await rig.clock.advance(1.1)
    assert rig.workers[0].checked


async def test_one_timer_serves_all_workers(rig):
    assert rig.clock.waiting == [10.0]
    await rig.clock.advance(10.0)
    assert rig.clock.waiting == [5.0]


async def test_a_worker_whose_health_raises_is_replaced_and_health_says_why(rig, caplog):
    await rig.clock.advance(10.0)
    rig.workers[0].finish_check("the lamp is out")
    await rig.clock.advance(0.0)
    assert rig.workers[0].orders == ["kill"]
    assert reasons(rig) == ["RuntimeError: the lamp is out", ""]
    (line,) = [r.getMessage() for r in caplog.records if "health check failed" in r.getMessage()]
    assert line == (
        "worker 0 of stage 'Well' health check failed: RuntimeError: the lamp is out; the worker is restarted\n"
        "Traceback:\nthe lamp is out"
    )
    assert rig.engine.stages[0].counters.unhealthy_restarts == 1
    rig.workers[2].become_ready()
    await rig.clock.advance(0.0)
    rig.workers[1].finish_check()
    await rig.clock.advance(10.0)
    rig.workers[2].finish_check()
    await rest()
    assert reasons(rig) == ["", ""]
    assert rig.engine.state is State.READY


async def test_a_worker_that_does_not_answer_within_five_seconds_is_replaced(rig):
    await rig.clock.advance(14.9)
    assert rig.workers[0].orders == []
    call = await rig.call()
    second = await rig.call()
    await rig.clock.advance(0.1)
    assert rig.workers[0].orders == ["kill"]
    assert reasons(rig) == ["health() ran longer than 5 s", ""]
    await rig.clock.advance(0.0)
    rig.workers[2].become_ready()
    await rest()
    for worker in rig.workers.alive:
        while worker.batches:
            worker.answer()
            await rest()
    assert (call.ends, second.ends) == ([b"1"], [b"1"]), "what waited behind the check is run by another worker"
    assert rig.engine.stages[0].counters.retried == 0


async def test_neither_a_timeout_nor_an_impatient_stage_ends_a_check(make_rig):
    rig = await make_rig(stage(Well, timeout=1.0, orphan_timeout=0.5)).start()
    await rig.clock.advance(14.9)
    assert rig.workers[0].checked
    assert rig.workers[0].orders == []
    rig.workers[0].finish_check()
    await rest()
    assert reasons(rig) == [""]


async def test_it_is_replaced_once_in_its_backoff_and_told_once(make_rig, caplog):
    rig = await make_rig(stage(Well)).start()
    ends = []
    for _ in range(200):
        await rig.clock.advance(1.0)
        worker = rig.workers[-1]
        if worker.launch is None:
            worker.become_ready()
        elif worker.checked:
            worker.finish_check("no lamp")
            await rest()
            if worker.ended:
                ends.append(rig.clock.now())
    gaps = [after - before for before, after in pairwise(ends)]
    assert all(gap >= 10.0 for gap in gaps)
    assert max(gaps) >= 30.0
    assert len(rig.workers) < 15
    assert caplog.text.count("keeps running for now") == 0, "what it said before is not told again"


async def test_a_worker_that_goes_on_is_late_again_and_then_replaced(make_rig):
    rig = await make_rig(stage(Well)).start()
    rig.engine.stages[0].workers[0].health._unwell_from = rig.clock.now() + 20.0
    await rig.clock.advance(15.0)
    assert rig.workers[0].orders == []
    assert reasons(rig) == ["health() ran longer than 5 s"]
    await rig.clock.advance(10.0)
    assert rig.workers[0].orders == ["kill"]


async def test_of_a_stage_that_is_not_well_one_worker_at_a_time_is_replaced(make_rig):
    rig = await make_rig(stage(Well, workers=3)).start()
    driver = rig.engine.stages[0]
    for _ in range(600):
        await rig.clock.advance(0.1)
        assert driver.live_workers >= 2
        for worker in rig.workers.alive:
            if worker.checked:
                worker.finish_check("the lamp is out")
            elif worker.launch is None:
                worker.become_ready()
        await rest()
    assert driver.counters.unhealthy_restarts >= 3


async def test_while_one_that_is_not_well_loads_its_model_the_others_serve(make_rig):
    rig = await make_rig(stage(Well, workers=3)).start()
    await rig.clock.advance(10.0)
    rig.workers[0].finish_check("the lamp is out")
    await rig.clock.advance(600.0)
    assert not any(worker.checked for worker in rig.workers.alive)
    assert rig.engine.stages[0].live_workers == 2
    rig.workers[3].become_ready()
    await rig.clock.advance(0.0)
    assert [worker.checked for worker in rig.workers.started] == [False, True, False, False]


async def test_all_workers_that_are_not_well_do_not_make_a_stage_rest(make_rig):
    rig = await make_rig(stage(Well, workers=4)).start()
    await rig.clock.advance(10.0)
    for n in range(4):
        rig.workers[n].finish_check("the lamp is out")
        await rig.clock.advance(0.0)
        rig.workers[4 + n].become_ready()
        await rig.clock.advance(0.0)
    assert rig.engine.stages[0].counters.unhealthy_restarts == 4
    assert rig.engine.state is State.READY


async def test_a_thread_is_never_ended_only_told_of(make_rig, caplog):
    rig = await make_rig(stage(Well), inline=True).start()
    await rig.clock.advance(10.0)
    rig.workers[0].finish_check("the lamp is out")
    await rig.clock.advance(10.0)
    rig.workers[0].finish_check("the lamp is out")
    await rig.clock.advance(15.0)
    assert rig.workers[0].orders == []
    assert reasons(rig) == ["health() ran longer than 5 s"]
    assert caplog.text.count("the lamp is out; the worker keeps running for now") == 1
    with caplog.at_level(logging.INFO, "penstock"):
        rig.workers[0].finish_check()
        await rest()
    assert reasons(rig) == [""]
    assert "healthy again; the last error was: health() ran longer than 5 s" in caplog.text


@pytest.mark.parametrize("asked", [False, True])
async def test_a_worker_that_was_not_checked_cannot_answer_a_check(make_rig, caplog, asked):
    rig = await make_rig(stage(Well)).start()
    if asked:
        await rig.clock.advance(10.0)
    rig.workers[0].say(Kind.CHECKED)  # its frame has no id
    await rest()
    assert "the worker sent an unexpected CHECKED frame; the worker is killed" in caplog.text


async def test_a_worker_that_dies_while_it_is_checked_is_asked_anew(make_rig):
    rig = await make_rig(stage(Well)).start()
    await rig.clock.advance(10.0)
    rig.workers[0].die()
    await rig.clock.advance(0.0)
    rig.workers[1].become_ready()
    await rig.clock.advance(9.0)
    assert not rig.workers[1].checked
    await rig.clock.advance(2.0)
    assert rig.workers[1].checked
    assert rig.workers[1].orders == []


async def test_a_check_that_ends_while_the_engine_stops_ends_nobody(make_rig):
    rig = await make_rig(stage(Well), obedient=False).start()
    await rig.clock.advance(10.0)
    stopping = await rig.stopping(drain=5.0)
    rig.workers[0].finish_check("too late")
    await rest()
    assert rig.workers[0].orders == ["close"]
    rig.workers[0].die()
    await stopping


async def test_an_engine_that_was_abandoned_asks_nobody(rig):
    rig.engine.abandon()
    await rest()
    assert rig.clock.waiting == []
