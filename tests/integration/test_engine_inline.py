"""`inline=True`: the same service in threads of this process, for a debugger."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps

LOOPS = ("uvloop",)


async def test_an_inline_service_answers_as_one_with_processes_does():
    service = ps.Service(ps.stage(stages.AddOneBatch, workers=2), stages.Double, inline=True)
    async with service:
        assert await asyncio.gather(*(service.predict(i) for i in range(1000))) == [(i + 1) * 2 for i in range(1000)]
        assert await service.predict_many(range(100)) == [(i + 1) * 2 for i in range(100)]
        assert [y async for y in service.stream(range(100))] == [(i + 1) * 2 for i in range(100)]
    async with ps.Service(stages.Act, inline=True) as service:
        assert (await service.predict(("facts",)))["pid"] == os.getpid()


async def test_a_breakpoint_in_predict_stops_in_this_process(monkeypatch):
    stopped = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append(threading.current_thread().name))

    def predict(x: int) -> int:
        breakpoint()  # noqa: T100  # what is tested
        return x + 1

    async with ps.Service(ps.stage(predict, name="here"), inline=True) as service:
        assert await service.predict(1) == 2
    assert stopped == ["penstock service here 0"]


async def test_values_that_cannot_travel_are_found_inline_too():
    async with ps.Service(stages.Act, inline=True) as service:
        with pytest.raises(ps.InvalidItem, match="`function` cannot be pickled"):
            await service.predict(lambda: None)
        with pytest.raises(ps.StageFailed, match="cannot be written as PICKLE"):
            await service.predict(("lambda",))
        mutable = [1]
        assert await service.predict(mutable) is not mutable


async def test_a_worker_thread_that_hangs_is_lost_and_another_takes_its_place():
    async with ps.Service(ps.stage(stages.Act, timeout=0.05), inline=True) as service:
        for _ in range(2):
            with pytest.raises(ps.WorkerLost):
                await asyncio.wait_for(service.predict(("sleep", 0.5)), 20)
            await until(lambda: service.engine.stages[0].live_workers == 1)
        assert await service.predict(1) == 1
    await until(lambda: not [t for t in threading.enumerate() if "penstock" in t.name])


async def test_a_stop_does_not_wait_for_a_thread_that_will_not_end(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), inline=True)
    await service.start()
    call = asyncio.create_task(service.predict(1))
    await until(lambda: notes(tmp_path / "ran"))
    await asyncio.wait_for(service.stop(drain_timeout=0.01), 20)
    with pytest.raises(ps.NotReady):
        await call
    (tmp_path / "open").touch()
    await until(lambda: not [t for t in threading.enumerate() if "penstock" in t.name])


async def test_a_stage_is_told_its_gpus_inline_too(caplog, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    spec = ps.stage(stages.WhichGpus, gpus=[[2, 3]])
    with caplog.at_level("WARNING", "penstock"):
        async with ps.Service(spec, inline=True) as service:
            _, _, seen, told = await service.predict(1)
    assert (seen, told) == ("7", (2, 3))
    assert "these options are ignored: gpus" in caplog.text
