"""Kill -9 at every moment: what the worker held is tried again once, alone, and nobody waits for a timeout."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest
import rough_stages
import stages
from notes_and_gates import notes
from processes import running
from waiting import until

import penstock as ps

LOOPS = ("uvloop",)


def noted(folder, **options):
    return ps.stage(stages.NotedActs, setup={"folder": str(folder)}, **options)


def batches(folder):
    return notes(folder / "batches")


def pid_of(service: ps.Service, worker: int = 0, stage: int = 0) -> int:
    return service.engine.stages[stage].workers[worker].pid


@pytest.mark.smoke
async def test_what_ran_in_a_killed_worker_is_run_once_more_alone_and_answered(tmp_path):
    async with ps.Service(noted(tmp_path)) as service:
        calls = [asyncio.create_task(service.predict(("hold", str(tmp_path), i))) for i in range(4)]
        await until(lambda: notes(tmp_path / "ran"))
        os.kill(pid_of(service), signal.SIGKILL)
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == [0, 1, 2, 3]
        assert batches(tmp_path) == [["hold"] * 4, ["hold"], ["hold"], ["hold"], ["hold"]]
        counters = service.engine.stages[0].counters
        assert (counters.retried, counters.restarts) == (4, 1)
        assert counters.batches_closed["retry"] == 4
        assert service.engine.counters.succeeded == 4


@pytest.mark.smoke
async def test_an_item_that_kills_its_worker_is_lost_and_its_batch_mates_are_answered(tmp_path):
    async with ps.Service(noted(tmp_path, workers=2)) as service:
        items = [1, 2, ("die",), 4, 5]
        answers = await service.predict_many(items, return_exceptions=True)
        assert isinstance(answers[2], ps.WorkerLost)
        assert (answers[2].stage, answers[2].hung, answers[2].alone) == ("NotedActs", False, True)
        assert answers[:2] + answers[3:] == [1, 2, 4, 5]
        assert service.engine.counters.worker_lost == 1
        assert batches(tmp_path).count(["die"]) == 1
        assert await service.predict_many(range(20)) == list(range(20))


class RaisingHandler(logging.Handler):
    """A log handler of a program that cannot write, and says so where it should not."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(f"cannot tell of {record.getMessage()}")


async def test_a_worker_is_replaced_though_the_log_cannot_be_told_of_its_end(request, capsys):
    logger, handler = logging.getLogger("penstock"), RaisingHandler()
    async with ps.Service(stages.Double) as service:
        request.addfinalizer(lambda: logger.removeHandler(handler))
        logger.addHandler(handler)
        os.kill(pid_of(service), signal.SIGKILL)
        assert await service.predict(2) == 4
    assert "OSError: cannot tell of worker 0 of stage 'Double' ended: signal SIGKILL" in capsys.readouterr().err


@pytest.mark.smoke
async def test_a_death_between_requests_costs_nobody_anything():
    async with ps.Service(stages.Act) as service:
        for _ in range(3):
            worker = service.engine.stages[0].workers[0]
            before, pid = worker.restarts, worker.pid
            os.kill(pid, signal.SIGKILL)
            assert (await service.predict(("facts",)))["pid"] != pid
            assert worker.restarts == before + 1
        assert service.engine.counters.worker_lost == 0


async def test_many_callers_survive_a_killing_spree(tmp_path):
    service = ps.Service(ps.stage(stages.AddOneBatch, workers=2), ps.stage(stages.Double, workers=2), max_in_flight=200)
    async with service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(4000)]
        for round_ in range(8):
            await until(lambda: service.engine.counters.succeeded > 300 * round_ or all(c.done() for c in calls))  # noqa: B023
            stage = service.engine.stages[round_ % 2]
            alive = [w.pid for w in stage.workers if w.ready]
            if alive:
                os.kill(alive[round_ // 2 % len(alive)], signal.SIGKILL)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        wrong = [a for i, a in enumerate(answers) if a != (i + 1) * 2 and not isinstance(a, ps.WorkerLost)]
        assert not wrong
        lost = sum(isinstance(a, ps.WorkerLost) for a in answers)
        assert lost <= 32  # only what was killed twice by the spree itself
        counters = service.engine.counters
        assert counters.accepted == 4000 == counters.succeeded + counters.worker_lost
        assert service.engine.queued == 0
        assert service.engine.held_bytes == 0


async def test_a_batch_that_runs_too_long_kills_its_worker_and_counts_as_a_death(tmp_path):
    spec = ps.stage(stages.ActBatch, timeout=1.0)
    async with ps.Service(spec) as service:
        pid = pid_of(service)
        answers = await service.predict_many([1, ("sleep", 60), 3], return_exceptions=True)
        assert isinstance(answers[1], ps.WorkerLost)
        assert (answers[1].hung, answers[1].alone) == (True, True)
        assert (answers[0], answers[2]) == (1, 3)
        assert pid_of(service) != pid
        assert service.engine.stages[0].counters.restarts >= 2


async def test_a_stop_in_the_middle_of_a_restart_ends(tmp_path):
    service = ps.Service(ps.stage(stages.SlowRestart, setup={"folder": str(tmp_path)}))
    await service.start()
    os.kill(pid_of(service), signal.SIGKILL)
    await until(lambda: service.engine.stages[0].live_workers == 0)
    call = asyncio.create_task(service.predict(1))
    await asyncio.wait_for(service.stop(drain_timeout=0.05), 20)
    with pytest.raises(ps.NotReady):
        await call
    assert service.state is ps.State.STOPPED


async def test_a_worker_killed_while_it_writes_a_large_answer_is_lost_in_the_middle_of_a_frame():
    async with ps.Service(ps.stage(stages.DiesWriting, retry=False)) as service:
        with pytest.raises(ps.WorkerLost):
            await service.predict(50_000_000)
        assert len(await service.predict(1000)) == 1000


async def test_a_worker_that_breaks_the_wire_is_killed_and_counts_as_dead():
    async with ps.Service(ps.stage(stages.Act, retry=False)) as service:
        pid = pid_of(service)
        with pytest.raises(ps.WorkerLost) as caught:
            await asyncio.wait_for(service.predict(("garble",)), 20)
        assert caught.value.hung is False
        assert (await service.predict(("facts",)))["pid"] != pid


async def test_a_worker_that_is_stopped_in_its_tracks_holds_up_neither_deadlines_nor_the_end(monkeypatch):
    monkeypatch.setattr("penstock.runtime.engine.TEARDOWN_GRACE_SECONDS", 0.2)
    service = ps.Service(stages.Act)
    await service.start()
    os.kill(pid_of(service), signal.SIGSTOP)
    with pytest.raises(ps.DeadlineExceeded):
        await service.predict(1, timeout=0.1)
    await asyncio.wait_for(service.stop(), 20)


async def test_a_worker_that_cannot_go_on_ends_at_once_though_the_stage_left_a_thread(capfd):
    async with ps.Service(ps.stage(rough_stages.LeavesAThread, retry=False)) as service:
        pid = pid_of(service)
        assert await service.predict(1) == 1
        with pytest.raises(ps.WorkerLost):
            await asyncio.wait_for(service.predict(2), 20)
        await until(lambda: pid_of(service) != pid)
    assert "RuntimeError: the worker cannot answer" in capfd.readouterr().err


async def test_a_worker_that_left_its_group_is_killed_all_the_same():
    async with ps.Service(ps.stage(rough_stages.LeavesItsGroup, timeout=0.5, retry=False)) as service:
        pid = pid_of(service)
        with pytest.raises(ps.WorkerLost):
            await asyncio.wait_for(service.predict("spin"), 20)
        assert not running(pid)
