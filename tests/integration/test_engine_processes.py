"""Where workers run: their cores, environment, command line, signals and outputs."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from pathlib import Path

import pytest
import stages
from notes_and_gates import notes
from processes import running
from waiting import until

import penstock as ps
from penstock.hosting.service_metrics import ServiceCollector
from penstock.runtime.process import THREAD_VARIABLES

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes to cores")


async def test_workers_are_direct_children_that_lead_process_groups_of_their_own():
    async with ps.Service(stages.Act) as service:
        facts = await service.predict(("facts",))
    assert facts["parent"] == os.getpid()
    assert facts["group"] == facts["pid"] != os.getpgid(0)
    assert facts["stdin"] == "/dev/null"


async def test_the_process_list_names_service_stage_and_index():
    async with ps.Service(ps.stage(stages.Act, name="my.stage", workers=2), name="my-service") as service:
        lines = [
            Path(f"/proc/{worker.pid}/cmdline").read_bytes().split(b"\0")[:-1]
            for worker in service.engine.stages[0].workers
        ]
    assert [line[3] for line in lines] == [b"penstock.worker"] * 2
    assert [line[-4:] for line in lines] == [[b"--", b"my-service", b"my.stage", index] for index in (b"0", b"1")]


@pytest.mark.parametrize("name", ["--", "--fd"])
async def test_names_may_look_like_options(name):
    async with ps.Service(ps.stage(stages.Act, name=name), name=name) as service:
        assert await service.predict(1) == 1


async def test_a_worker_knows_its_stage_its_index_and_how_many_they_are():
    async with ps.Service(ps.stage(stages.WhoAmI, name="me", workers=2)) as service:
        seen = await service.predict_many(range(200))
    assert {tuple(x) for x in seen} <= {("me", 0, 2), ("me", 1, 2)}


async def test_each_worker_gets_its_own_environment_on_top_of_ours(monkeypatch):
    monkeypatch.setenv("FROM_OUTSIDE", "1")
    one = ps.stage(stages.Act, name="one", env={"ROLE": "first"})
    two = ps.stage(stages.Act, name="two", workers=2, prefetch=0, env=[{"GPU": "0"}, {"GPU": "1", "FROM_OUTSIDE": "2"}])
    async with ps.Service(one) as service:
        env = (await service.predict(("facts",)))["env"]
        assert (env["ROLE"], env["FROM_OUTSIDE"]) == ("first", "1")
        assert "GPU" not in env
    async with ps.Service(two) as service:
        found = {f["env"]["GPU"]: f["env"] for f in await service.predict_many([("facts",)] * 50)}
    assert found["0"]["FROM_OUTSIDE"] == "1"
    assert "1" not in found or found["1"]["FROM_OUTSIDE"] == "2"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to keep")
async def test_copies_of_large_bodies_cost_a_worker_no_page_faults_unless_the_user_says_so(monkeypatch):
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    body = bytes(600_000)
    ours = ps.stage(stages.faults_of_copies, name="ours")
    theirs = ps.stage(stages.faults_of_copies, name="theirs", env={"MALLOC_TRIM_THRESHOLD_": "131072"})
    async with ps.Service(ours) as kept, ps.Service(theirs) as given_back:
        assert await kept.predict(body) < 500
        assert await given_back.predict(body) > 5000


async def test_each_worker_sees_its_gpus_before_it_imports_anything(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,9")
    spec = ps.stage(stages.WhichGpus, gpus=[[2, 0], "GPU-1"], prefetch=0)
    expected = {0: ("9,5", "9,5", (2, 0)), 1: ("GPU-1", "GPU-1", ("GPU-1",))}
    async with ps.Service(spec) as service:
        assert len(service.engine.stages[0].workers) == 2
        seen = {}
        while len(seen) < 2:  # until each of the two had one
            for index, *found in await service.predict_many(range(20)):
                seen[index] = tuple(found)
    assert seen == expected
    async with ps.Service(stages.WhichGpus) as service:
        assert await service.predict(1) == (0, "5,7,9", "5,7,9", ())


async def test_nobody_handles_the_error_of_a_failed_start_any_more(tmp_path):
    with pytest.raises(ps.StartFailed):
        await ps.Service(ps.stage(stages.SpawnsThenFails, setup={"folder": str(tmp_path)})).start()
    assert sys.exception() is None


async def test_pythonpath_reaches_what_a_worker_starts_as_the_user_left_it(monkeypatch):
    monkeypatch.delenv("PENSTOCK_SHM_BYTES", raising=False)  # of `make night-sources`
    for value in (None, "/some/where"):
        if value is None:
            monkeypatch.delenv("PYTHONPATH", raising=False)
        else:
            monkeypatch.setenv("PYTHONPATH", value)
        async with ps.Service(stages.Act) as service:
            assert (await service.predict(("facts",)))["env"].get("PYTHONPATH") == value
        async with ps.Service(ps.stage(stages.Act, env={"PYTHONPATH": "/else/where"})) as service:
            env = (await service.predict(("facts",)))["env"]
        assert env["PYTHONPATH"] == "/else/where"
        assert not [name for name in env if name.startswith("PENSTOCK_")]


@linux
async def test_workers_are_pinned_to_their_cores_and_threads_follow(monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    allowed = sorted(os.sched_getaffinity(0))
    spec = ps.stage(stages.Act, cpus=[allowed[0], [allowed[-1]]])
    async with ps.Service(spec) as service:
        workers = service.engine.stages[0].workers
        assert len(workers) == 2
        assert [os.sched_getaffinity(w.pid) for w in workers] == [{allowed[0]}, {allowed[-1]}]
        facts = await service.predict(("facts",))
    assert facts["cores"] in ([allowed[0]], [allowed[-1]])
    assert {facts["env"][name] for name in THREAD_VARIABLES} == {"1"}


@linux
async def test_thread_counts_are_the_cores_divided_by_the_workers_unless_the_user_chose(monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BLIS_NUM_THREADS", "7")
    cores = len(os.sched_getaffinity(0))
    for workers in (1, 2):
        async with ps.Service(ps.stage(stages.Act, workers=workers, env={"MKL_NUM_THREADS": "9"})) as service:
            env = (await service.predict(("facts",)))["env"]
        assert env["OPENBLAS_NUM_THREADS"] == str(max(1, cores // workers))
        assert (env["BLIS_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("7", "9")


@linux
async def test_a_pinned_coordinator_gets_its_cores_back_and_unpinned_workers_never_lost_them():
    before = os.sched_getaffinity(0)
    core = min(before)
    service = ps.Service(
        ps.stage(stages.Act, name="free"), ps.stage(stages.Act, name="mixed", cpus=[core, None]), cpus=[core]
    )
    await service.start()
    assert os.sched_getaffinity(0) == {core}
    free, (pinned, unpinned) = service.engine.stages[0].workers, service.engine.stages[1].workers
    assert os.sched_getaffinity(free[0].pid) == before
    assert os.sched_getaffinity(pinned.pid) == {core}
    assert os.sched_getaffinity(unpinned.pid) == before
    os.kill(free[0].pid, signal.SIGKILL)
    await until(lambda: free[0].ready and free[0].restarts == 1)
    assert os.sched_getaffinity(free[0].pid) == before
    await service.stop()
    assert os.sched_getaffinity(0) == before


@linux
async def test_a_pinned_coordinator_gets_its_cores_back_when_the_start_fails():
    before = os.sched_getaffinity(0)
    spec = ps.stage(stages.ActsInSetup, setup={"acts": [("raise",)]})
    with pytest.raises(ps.StartFailed):
        await ps.Service(spec, cpus=[min(before)]).start()
    assert os.sched_getaffinity(0) == before


EVERYBODYS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]


async def test_workers_ignore_the_signals_that_everybody_gets(tmp_path):
    spec = ps.stage(stages.Gated, setup={"folder": str(tmp_path)})
    async with ps.Service(spec) as service:
        call = asyncio.create_task(service.predict(1))
        await until(lambda: notes(tmp_path / "ran"))
        pid = service.engine.stages[0].workers[0].pid
        for number in EVERYBODYS:
            os.kill(pid, number)
            os.killpg(pid, number)
        (tmp_path / "open").touch()
        assert await call == 1
        assert await service.predict(2) == 2
        assert service.engine.stages[0].workers[0].pid == pid
        assert running(pid)


async def test_a_signal_before_the_worker_has_its_handlers_does_not_end_it(tmp_path):
    service = ps.Service(ps.stage(stages.SlowSetup, setup={"folder": str(tmp_path)}))
    start = asyncio.create_task(service.start())
    await until(lambda: service.engine is not None and service.engine.stages[0].workers[0].pid)
    pid = service.engine.stages[0].workers[0].pid
    while not notes(tmp_path / "setting up"):
        for number in EVERYBODYS:
            os.kill(pid, number)
        await asyncio.sleep(0.001)
    (tmp_path / "open").touch()
    await start
    assert service.engine.stages[0].workers[0].restarts == 0
    await service.stop()


async def test_a_signal_the_stage_sends_itself_is_ignored_and_programs_it_starts_get_the_defaults():
    async with ps.Service(stages.Act) as service:
        for number in EVERYBODYS:
            assert await service.predict(("signal", int(number))) == "alive"
        assert await service.predict(("child signals",)) == ["True", "True"]


async def test_a_fork_of_a_worker_has_the_defaults_and_keeps_the_dump_that_a_stage_put_on_usr1(tmp_path):
    async with ps.Service(stages.Act) as service:
        for number in (signal.SIGTERM, signal.SIGHUP):
            assert await service.predict(("end fork", int(number))) == -number
        assert "end_fork" in await service.predict(("dump in fork", str(tmp_path / "dump")))


async def test_what_a_stage_prints_cannot_reach_the_wire(capfd):
    async with ps.Service(stages.Act) as service:
        await service.predict_many([("shout",)] * 3)
        assert await service.predict(4) == 4
    out, err = capfd.readouterr()
    assert out.count("said by print") == out.count("said by write") == 3
    assert err.count("said on stderr") == err.count("said by write on 2") == 3


async def test_workers_whose_stage_has_initialised_cuda_tell_of_their_device_memory():
    uses = ps.stage(stages.ImportsTorch, name="uses", setup={"initialised": True}, workers=2)
    imports = ps.stage(stages.ImportsTorch, name="imports", setup={"initialised": False})
    async with ps.Service(uses, imports) as service:
        assert await service.predict(1) == 1
        (found,) = [f for f in ServiceCollector([service]).collect() if f.name == "penstock_worker_device_memory_bytes"]
        assert [(sample.labels, sample.value) for sample in found.samples] == [
            ({"service": "service", "stage": "uses", "worker": index}, 2 << 30) for index in ("0", "1")
        ]
