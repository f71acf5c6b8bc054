"""Start and stop, in every order and at every moment, and what a service does when it cannot start."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import threading
import warnings

import pytest
import stages
from notes_and_gates import notes
from processes import open_files, running
from waiting import until, until_now

import penstock as ps

LOOPS = ("uvloop",)


def pids(service: ps.Service) -> list[int]:
    return [worker.pid for stage in service.engine.stages for worker in stage.workers]


async def test_start_returns_when_every_worker_is_ready_and_stop_when_none_is_left():
    service = ps.Service(ps.stage(stages.Double, workers=2), ps.stage(stages.AddOneBatch, workers=2))
    await service.start()
    started = pids(service)
    assert len(set(started)) == 4
    assert all(running(pid) for pid in started)
    await service.stop()
    assert not any(running(pid) for pid in started)
    assert service.state is ps.State.STOPPED


async def test_a_program_that_starts_a_service_is_told_what_loads_by_its_log_alone(
    tmp_path, monkeypatch, caplog, capfd
):
    monkeypatch.setattr("penstock.hosting.load_lines.LOG_INTERVAL_SECONDS", 0.01)
    caplog.set_level("INFO", "penstock.loading")
    service = ps.Service(ps.stage(stages.SlowSetup, setup={"folder": str(tmp_path)}), name="mine")
    start = asyncio.create_task(service.start())
    await until(lambda: len(caplog.records) >= 2)
    assert {record.name for record in caplog.records} == {"penstock.loading"}
    assert all(record.getMessage().startswith("service 'mine': SlowSetup is loading, ") for record in caplog.records)
    (tmp_path / "open").touch()
    await start
    await service.stop()
    assert capfd.readouterr() == ("", "")


async def test_a_cancelled_start_leaves_nothing_running(tmp_path):
    service = ps.Service(ps.stage(stages.SlowSetup, workers=2, setup={"folder": str(tmp_path)}))
    start = asyncio.create_task(service.start())
    await until(lambda: len(notes(tmp_path / "setting up")) == 2)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert service.state is ps.State.STOPPED
    assert not any(running(pid) for pid in notes(tmp_path / "setting up"))
    (tmp_path / "open").touch()
    async with service:
        assert await service.predict(1) == 1


async def test_a_start_cancelled_at_once_leaves_nothing_running():
    for turns in range(4):
        service = ps.Service(ps.stage(stages.Double, workers=2))
        start = asyncio.create_task(service.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert service.state is ps.State.STOPPED


@pytest.mark.smoke
async def test_stop_finishes_what_was_accepted(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), stages.Double)
    await service.start()
    calls = [asyncio.create_task(service.predict(i)) for i in range(10)]
    await until(lambda: notes(tmp_path / "ran"))
    stop = asyncio.create_task(service.stop())
    await until(lambda: service.state is ps.State.DRAINING)
    with pytest.raises(ps.NotReady, match="draining"):
        await service.predict(99)
    (tmp_path / "open").touch()
    await stop
    assert await asyncio.gather(*calls) == [i * 2 for i in range(10)]


async def test_what_the_drain_leaves_is_settled_and_the_workers_are_killed(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}))
    await service.start()
    calls = [asyncio.create_task(service.predict(i)) for i in range(5)]
    await until(lambda: notes(tmp_path / "ran"))
    await asyncio.wait_for(service.stop(drain_timeout=0.05), 20)
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, ps.NotReady)
    assert service.engine.counters.aborted == 5
    assert service.engine.queued == 0


async def test_teardown_runs_in_every_worker_on_stop(tmp_path):
    (tmp_path / "open").touch()
    async with ps.Service(ps.stage(stages.Gated, workers=2, setup={"folder": str(tmp_path)})) as service:
        await service.predict(1)
    assert sorted(notes(tmp_path / "torn down")) == [0, 1]


async def test_a_teardown_that_fails_is_logged_by_the_worker_and_stops_nothing(capfd):
    async with ps.Service(stages.BadTeardown) as service:
        await service.predict(1)
    assert "teardown went wrong" in capfd.readouterr().err


async def test_a_teardown_that_hangs_is_cut_off(monkeypatch):
    monkeypatch.setattr("penstock.runtime.engine.TEARDOWN_GRACE_SECONDS", 0.1)
    service = ps.Service(stages.SlowTeardown)
    await service.start()
    (pid,) = pids(service)
    await asyncio.wait_for(service.stop(), 20)
    assert not running(pid)


@pytest.mark.smoke
async def test_a_failing_setup_ends_start_with_the_remote_traceback():
    spec = ps.stage(stages.ActsInSetup, setup={"acts": [("raise", "no model here")]})
    service = ps.Service(stages.Double, spec)
    with pytest.raises(ps.StartFailed) as caught:
        await service.start()
    assert "stage 'ActsInSetup' could not be set up: ValueError: no model here" in str(caught.value)
    assert 'stages.py", line' in caught.value.traceback
    assert "ValueError: no model here" in caught.value.traceback
    assert "penstock/worker" not in caught.value.traceback
    assert service.state is ps.State.STOPPED


@pytest.mark.parametrize("what", [("exit", 7), ("segfault",)])
async def test_a_worker_that_ends_in_setup_makes_the_start_fail_and_says_how(what):
    service = ps.Service(ps.stage(stages.ActsInSetup, setup={"acts": [what]}))
    how = "exit status 7" if what[0] == "exit" else "signal SIGSEGV"
    with pytest.raises(ps.StartFailed, match=f"worker 0 of stage 'ActsInSetup' ended before it was ready: {how}"):
        await service.start()
    assert service.engine.stages[0].health.failed_starts == [5]


async def test_a_program_that_cannot_be_started_fails_the_start(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.executable", str(tmp_path / "no python here"))
    with pytest.raises(ps.StartFailed, match=r"failed to start the process: .*no python here"):
        await ps.Service(stages.Double).start()


async def test_a_program_that_ends_before_it_says_a_word_fails_the_start(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    service = ps.Service(ps.stage(stages.Double, workers=8))
    with pytest.raises(ps.StartFailed, match="ended before it was ready: exit status 1"):
        await asyncio.wait_for(service.start(), 20)
    assert service.state is ps.State.STOPPED


def drop_a_started_service() -> list[int]:
    """Start a service, forget it; the pids of its workers."""

    async def main() -> list[int]:
        service = ps.Service(ps.stage(stages.Double, workers=2), name="forgotten")
        await service.start()
        started = pids(service)
        assert all(running(pid) for pid in started)
        return started

    started = asyncio.run(main())
    gc.collect()
    return started


def test_a_forgotten_service_warns_and_ends_its_workers_though_its_loop_is_closed():
    with pytest.warns(ResourceWarning, match="'forgotten' was started but never stopped"):
        started = drop_a_started_service()
    assert not any(running(pid) for pid in started)


async def test_a_forgotten_service_warns_and_ends_its_workers_while_its_loop_runs_on():
    services = [ps.Service(ps.stage(stages.Double, workers=2), name="forgotten")]
    await services[0].start()
    assert await services[0].predict(1) == 2
    started = pids(services[0])
    with pytest.warns(ResourceWarning, match="never stopped"):
        services.clear()
    assert not any(running(pid) for pid in started)
    async with ps.Service(ps.stage(stages.Double, workers=2)) as other:  # the loop is none the worse
        assert await other.predict_many(range(10)) == [i * 2 for i in range(10)]


async def test_a_forgotten_service_does_not_start_its_dead_workers_again(tmp_path):
    service = ps.Service(ps.stage(stages.CountsStarts, setup={"folder": str(tmp_path)}))
    await service.start()
    (tmp_path / "deadly").touch()
    os.kill(pids(service)[0], 9)
    await until(lambda: len(notes(tmp_path / "starts")) == 3)  # the third waits longer than this test
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del service
        gc.collect()
    before = len(notes(tmp_path / "starts"))
    await asyncio.sleep(0.6)  # the backoff would have been over by now: absence needs a wait
    assert len(notes(tmp_path / "starts")) == before


def threads() -> list[str]:
    return [t.name for t in threading.enumerate()]


async def test_two_hundred_lives_inline_leave_nothing():
    service = ps.Service(ps.stage(stages.EchoBatch, workers=2), stages.Double, inline=True)
    async with service:
        await service.predict(1)
    await until(lambda: not [name for name in threads() if "penstock" in name])
    files = open_files()
    for i in range(200):
        async with service:
            assert await service.predict(i) == i * 2
    await until(lambda: not [name for name in threads() if "penstock" in name])
    assert open_files() <= files


async def test_ten_lives_with_processes_leave_nothing():
    service = ps.Service(stages.EchoBatch, stages.Double)
    async with service:
        await service.predict(1)
    before, files = threads(), open_files()
    for i in range(10):
        async with service:
            assert await service.predict(i) == i * 2
        assert not any(running(pid) for pid in [p for p in pids(service) if p])
    assert threads() == before
    await until(lambda: open_files() <= files, "files to be closed")


# -- stop in the wrong place ------------------------------------------------------------------------------------------


def started_elsewhere(service: ps.Service) -> list[int]:
    """Start `service` on a loop that is closed when this returns; the pids of its workers."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(service.start())
    loop.close()
    return pids(service)


@pytest.mark.parametrize("drain", [math.inf, 1e300, 10**400], ids=["inf", "large", "larger than a float"])
async def test_a_drain_may_take_for_ever(drain, tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), inline=True)
    await service.start()
    call = asyncio.create_task(service.predict(1))
    await until(lambda: notes(tmp_path / "ran"))
    stops = [asyncio.create_task(service.stop(drain)) for _ in range(2)]
    await until(lambda: service.state is ps.State.DRAINING)
    (tmp_path / "open").touch()
    await asyncio.gather(*stops)
    assert await call == 1


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the loop was closed over its transports
def test_a_service_whose_loop_is_closed_is_stopped_at_once_and_starts_again():
    before = os.sched_getaffinity(0)
    service = ps.Service(ps.stage(stages.Double, workers=2), cpus=[min(before)])
    started = started_elsewhere(service)
    assert all(running(pid) for pid in started)
    asyncio.run(service.stop())
    assert service.state is ps.State.STOPPED
    assert not any(running(pid) for pid in started)
    assert os.sched_getaffinity(0) == before
    asyncio.run(service.stop())

    async def once() -> None:
        async with service:
            assert await service.predict(2) == 4

    asyncio.run(once())
    gc.collect()


def test_an_inline_service_whose_loop_is_closed_is_stopped_and_starts_again():
    service = ps.Service(stages.Double, inline=True)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(service.start())
    loop.close()
    asyncio.run(service.stop())
    until_now(lambda: not [name for name in threads() if "penstock" in name])
    with service.blocking() as s:
        assert s.predict(2) == 4


async def test_a_stop_on_another_loop_drains_on_the_services_own(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}))
    await service.start()
    call = asyncio.create_task(service.predict(1))
    await until(lambda: notes(tmp_path / "ran"))
    stop = asyncio.create_task(asyncio.to_thread(asyncio.run, service.stop()))
    await until(lambda: service.state is ps.State.DRAINING)
    (tmp_path / "open").touch()
    await stop
    assert await call == 1
    assert service.state is ps.State.STOPPED
    assert notes(tmp_path / "torn down") == [0]
    async with service:
        assert await service.predict(2) == 2


def test_a_stop_while_the_services_loop_stands_still_leaves_no_caller_waiting(tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}), timeout=math.inf)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(service.start())
    started, call = pids(service), loop.create_task(service.predict(1))
    loop.run_until_complete(until(lambda: notes(tmp_path / "ran")))
    asyncio.run(service.stop())
    assert service.state is ps.State.STOPPED
    assert not any(running(pid) for pid in started)
    with pytest.raises(ps.NotReady, match="has stopped"):
        loop.run_until_complete(asyncio.wait_for(call, 20))
    (tmp_path / "open").touch()
    loop.run_until_complete(service.start())
    assert loop.run_until_complete(service.predict(2)) == 2
    loop.run_until_complete(service.stop())
    loop.close()


def test_a_stop_on_another_loop_outlives_the_services_own(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.service.LOOP_CHECK_SECONDS", 0.01)
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}))
    home = asyncio.new_event_loop()
    home.run_until_complete(service.start())
    call, started = home.create_task(service.predict(1)), pids(service)

    async def elsewhere() -> None:
        stop = asyncio.create_task(service.stop(drain_timeout=math.inf))
        await until(lambda: service.state is ps.State.DRAINING)
        home.call_soon_threadsafe(home.stop)
        await asyncio.wait_for(stop, 20)

    home.call_soon(lambda: None)
    thread = threading.Thread(target=home.run_forever)
    thread.start()
    asyncio.run(elsewhere())
    thread.join()
    assert service.state is ps.State.STOPPED
    assert not any(running(pid) for pid in started)
    with pytest.raises(ps.NotReady):
        home.run_until_complete(asyncio.wait_for(call, 20))
    while left := asyncio.all_tasks(home):
        home.run_until_complete(asyncio.wait_for(asyncio.wait(left), 20))
    home.close()


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
async def test_a_stop_that_is_cut_off_ends_the_workers_and_the_callers_all_the_same(turns, tmp_path):
    service = ps.Service(ps.stage(stages.Gated, setup={"folder": str(tmp_path)}))
    await service.start()
    (pid,) = pids(service)
    call = asyncio.create_task(service.predict(1))
    await until(lambda: notes(tmp_path / "ran"))
    stop = asyncio.create_task(service.stop(drain_timeout=60))
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task(), call}:
        task.cancel()  # as the end of `asyncio.run` does
    with pytest.raises(asyncio.CancelledError):
        await stop
    with pytest.raises(ps.NotReady):
        await asyncio.wait_for(call, 20)
    await until(lambda: service.state is ps.State.STOPPED)
    assert not running(pid)
    (tmp_path / "open").touch()
    async with service:
        assert await service.predict(2) == 2
