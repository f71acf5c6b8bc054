"""Stages that start processes of their own: whatever ends the worker leaves none of them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import stages
from notes_and_gates import notes
from processes import in_group, running, with_variable
from waiting import until

import penstock as ps
from penstock.runtime import process
from penstock.runtime.group_reaper import GroupReaper


async def family(service: ps.Service) -> tuple[int, list[int]]:
    """Have a worker start a program and fork twice; its pid, and theirs."""
    spawned = await service.predict(("spawn",))
    forked = await service.predict(("fork",))
    pid = service.engine.stages[0].workers[0].pid
    assert running(spawned)
    assert running(forked)
    assert {pid, spawned, forked} <= set(in_group(pid))
    return pid, [spawned, forked]


def reapers(mark: Path) -> list[int]:
    return [pid for pid, line in with_variable("TEST_MARK", str(mark)).items() if "penstock-reaper" in line]


async def none_left(pid: int, relatives: list[int]) -> None:
    await until(lambda: not in_group(pid), "the worker's group to be gone")
    assert not any(running(relative) for relative in relatives)


async def test_a_stop_at_once_ends_what_the_worker_started():
    service = ps.Service(stages.Act)
    await service.start()
    pid, relatives = await family(service)
    await asyncio.wait_for(service.stop(drain_timeout=0), 20)
    await none_left(pid, relatives)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_death_is_seen_and_ends_what_the_worker_started(how):
    async with ps.Service(ps.stage(stages.Act, retry=False)) as service:
        pid, relatives = await family(service)
        call = asyncio.create_task(service.predict(("sleep", 60)))
        await until(lambda: service.engine.stages[0].in_flight)
        os.kill(pid, how)
        with pytest.raises(ps.WorkerLost) as caught:
            await asyncio.wait_for(call, 20)  # though a fork of it could hold the channel open
        assert caught.value.hung is False
        await none_left(pid, relatives)
        assert await service.predict(1) == 1


async def test_a_hung_worker_takes_its_children_with_it():
    async with ps.Service(ps.stage(stages.Act, timeout=0.5, retry=False)) as service:
        pid, relatives = await family(service)
        with pytest.raises(ps.WorkerLost):
            await service.predict(("spin",))
        await none_left(pid, relatives)


async def test_what_a_worker_started_is_ended_also_where_a_module_has_the_system_keep_no_status():
    async with ps.Service(ps.stage(stages.Act, retry=False)) as service:
        pid, relatives = await family(service)
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            os.kill(pid, signal.SIGKILL)
            await none_left(pid, relatives)
        finally:
            signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("end", ["crash", "time limit", "stop"])
async def test_what_only_a_tracker_gives_back_is_gone_after_its_worker_and_so_is_what_ignores_a_gentle_end(end):
    service = ps.Service(ps.stage(stages.Shares, timeout=0.5, retry=False))
    await service.start()
    memory, *children = await service.predict("told")
    pid = service.engine.stages[0].workers[0].pid
    assert Path(memory).exists()
    if end != "stop":
        with pytest.raises(ps.WorkerLost):
            await service.predict(("exit", 3) if end == "crash" else ("spin",))
        # The new worker does not wait for what the old one has left.
        assert (await service.predict("told"))[0] != memory
        assert running(children[0])
    await service.stop(drain_timeout=0)
    await none_left(pid, children)
    await until(lambda: not Path(memory).exists(), "the tracker to have given the memory back")


async def test_a_reaper_that_was_killed_is_replaced_and_meanwhile_a_group_ends_with_its_worker(monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_MARK", str(tmp_path))
    monkeypatch.setattr(process, "reaper", made := GroupReaper())
    async with ps.Service(ps.stage(stages.Act, retry=False)) as service:
        (reaper,) = reapers(tmp_path)
        os.kill(reaper, signal.SIGKILL)
        await until(lambda: not reapers(tmp_path), "the reaper to be gone")
        for _ in range(2):
            pid, relatives = await family(service)
            os.kill(pid, signal.SIGKILL)
            await none_left(pid, relatives)
            await until(lambda: service.engine.stages[0].live_workers, "the next worker")
        await until(lambda: len(reapers(tmp_path)) == 1, "one reaper, which has no group to end")
    (pipe,) = made.own_descriptors()
    os.close(pipe)
    await until(lambda: not reapers(tmp_path), "the reaper to end with the process that it is of")


async def test_a_group_is_ended_gently_also_where_path_has_no_folder_of_the_system(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(process, "reaper", made := GroupReaper())
    async with ps.Service(ps.stage(stages.Shares, retry=False)) as service:
        memory, *children = await service.predict("told")
        pid = service.engine.stages[0].workers[0].pid
        with pytest.raises(ps.WorkerLost):
            await service.predict(("exit", 3))
        assert (await service.predict("told"))[0] != memory
        assert running(children[0])
        await none_left(pid, children)
        assert not Path(memory).exists()
    (pipe,) = made.own_descriptors()
    os.close(pipe)


async def test_a_failing_start_ends_what_setup_started(tmp_path):
    spec = ps.stage(stages.SpawnsThenFails, setup={"folder": str(tmp_path)})
    with pytest.raises(ps.StartFailed, match="after spawning"):
        await ps.Service(spec).start()
    (pid,) = notes(tmp_path / "spawned")
    await until(lambda: not running(pid))


async def test_a_cancelled_start_ends_what_setup_started(tmp_path):
    spec = ps.stage(stages.SpawnsThenWaits, setup={"folder": str(tmp_path)})
    start = asyncio.create_task(ps.Service(spec).start())
    await until(lambda: notes(tmp_path / "spawned"))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    (pid,) = notes(tmp_path / "spawned")
    await until(lambda: not running(pid))


async def test_a_stage_may_use_a_pool_of_processes(tmp_path):
    async with ps.Service(stages.Pool) as service:
        assert await service.predict(range(10)) == [x * x for x in range(10)]
        pid = service.engine.stages[0].workers[0].pid
        assert len(in_group(pid)) >= 3
    await none_left(pid, [])


async def test_a_stage_that_closes_descriptors_it_does_not_own_is_seen_as_a_death_and_not_a_hang():
    async with ps.Service(stages.Act) as service:
        with pytest.raises(ps.WorkerLost) as caught:
            await service.predict(("close",))
        assert caught.value.hung is False
        assert await service.predict(1) == 1
