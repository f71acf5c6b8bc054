"""Workers that cannot start: restarts back off, the stage fails with its reason, and may recover."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal

import pytest
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps
from penstock.core import supervision


def counting(folder, **options):
    return ps.stage(stages.CountsStarts, setup={"folder": str(folder)}, **options)


def starts(folder) -> list[float]:
    return notes(folder / "starts")


def kill(service: ps.Service, worker: int = 0) -> None:
    os.kill(service.engine.stages[0].workers[worker].pid, signal.SIGKILL)


async def test_restarts_back_off_until_the_stage_has_failed_and_everybody_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "LONGEST_DELAY_SECONDS", 3.0)
    async with ps.Service(counting(tmp_path)) as service:
        (tmp_path / "deadly").touch()
        kill(service)
        calls = [asyncio.create_task(service.predict(i)) for i in range(3)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(o) for o in outcomes] == [ps.NotReady] * 3
        assert (
            "stage 'CountsStarts' has failed: worker 0 of stage 'CountsStarts' ended before it was ready: exit status 3"
            in str(outcomes[0])
        )
        assert service.state is ps.State.FAILED
        assert "exit status 3" in service.engine.reason
        with pytest.raises(ps.NotReady, match="failed: worker 0"):
            await service.predict(9)
        times = starts(tmp_path)[1:]
        assert len(times) == 5
        gaps = [b - a for a, b in itertools.pairwise(times)]
        for gap, delay in zip(gaps, (0.1, 0.2, 0.4, 0.8), strict=True):
            assert delay <= gap < delay + 10.0  # a start takes 2.7 s beside seven other processes

        (tmp_path / "deadly").unlink()
        await until(lambda: service.state is ps.State.READY)
        assert await service.predict(9) == 9
        assert service.engine.reason == ""
        assert len(starts(tmp_path)) == 7


async def test_a_setup_that_raises_on_a_restart_is_tried_again(tmp_path):
    mark = tmp_path / "mark"
    spec = ps.stage(stages.ActsInSetup, setup={"acts": [("raise", "not now")], "mark": str(mark)})
    async with ps.Service(spec) as service:
        mark.touch()
        kill(service)
        call = asyncio.create_task(service.predict(1))
        await until(lambda: service.engine.stages[0].health.failed_starts[-1] >= 2)
        assert "not now" in service.engine.stages[0].health.reason
        mark.unlink()
        assert await call == 1


async def test_a_failed_second_stage_settles_what_is_in_the_first(tmp_path):
    gate = ps.stage(stages.Gated, setup={"folder": str(tmp_path)})
    async with ps.Service(gate, counting(tmp_path)) as service:
        calls = [asyncio.create_task(service.predict(i)) for i in range(3)]
        await until(lambda: notes(tmp_path / "ran"))
        (tmp_path / "deadly").touch()
        os.kill(service.engine.stages[1].workers[0].pid, signal.SIGKILL)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(o) for o in outcomes] == [ps.NotReady] * 3
        assert service.engine.queued == 0
        (tmp_path / "open").touch()


async def test_a_worker_whose_every_batch_fails_is_recycled_once_and_counted(tmp_path):
    spec = ps.stage(stages.SickUntilRestarted, setup={"folder": str(tmp_path)}, unhealthy_after=0)
    async with ps.Service(spec) as service:
        counters = service.engine.stages[0].counters
        pid = service.engine.stages[0].workers[0].pid
        for _ in range(4):
            with pytest.raises(ps.StageFailed):
                await service.predict(1)
        for _ in range(10):
            with pytest.raises(ps.InvalidItem):
                await service.predict("invalid")
        assert counters.unhealthy_restarts == 0
        for _ in range(5):
            try:
                await service.predict(1)
            except ps.StageFailed:
                continue
            break
        assert counters.unhealthy_restarts == 1
        assert await service.predict(1) == 1
        assert service.engine.stages[0].workers[0].pid != pid
        assert service.engine.counters.worker_lost == 0
