"""Services around stages with workers from outside, called in process: real workers, each way to call, each format."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import numpy as np
import pytest
from served import PENSTOCK
from stages import AddOneBatch, Echo
from waiting import until, until_now

import penstock as ps
from penstock.core.state import State

MODEL = """
import asyncio
from pathlib import Path
import numpy as np
import penstock as ps

class Square(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[int]) -> list[int | Exception]:
        return [ps.InvalidItem("unlucky") if x == 13 else x * x for x in xs]

class Turn(ps.Stage):
    def predict(self, x: bytes) -> bytes:
        return bytes(reversed(x))

class Double(ps.Stage):
    def predict(self, x: np.ndarray) -> np.ndarray:
        return x * 2

class Waits(ps.Stage):
    async def setup(self):
        self.turn = asyncio.Lock()

    async def preprocess(self, x: int) -> int:
        async with self.turn:
            await asyncio.sleep(0)
            if x == 13:
                raise ps.InvalidItem("unlucky")
            return x

    def predict(self, x: int) -> int:
        return x * x

    async def teardown(self):
        async with self.turn:
            Path("torn down").touch()
"""


class Outside:
    """Workers that are started by the test, and end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = str(folder / "workers")
        self.processes: list[subprocess.Popen] = []
        (folder / "model.py").write_text(MODEL)

    def start(self, stage: str, model: str = "Square") -> subprocess.Popen:
        command = [*PENSTOCK, "worker", f"model:{model}", "--connect", self.socket, "--stage", stage]
        with (self.folder / "log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log))
        return self.processes[-1]

    async def ready(self, service: ps.Service) -> None:
        await until(lambda: service.state is State.READY, f"workers of {service}")


@pytest.fixture
def outside(tmp_path):
    made = Outside(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
    for process in made.processes:
        process.wait(20)


def square(name, **how):
    return ps.remote(name, batch=ps.Batch(max_size=8), item=int, result=int, **how)


@pytest.mark.parametrize(
    ("stages", "right"),
    [
        ("e", lambda x: x * x),
        ("oe", lambda x: (x + 1) ** 2),
        ("eo", lambda x: x * x + 1),
        ("eoe", lambda x: (x * x + 1) ** 2),
        ("ee", lambda x: x**4),
    ],
)
async def test_stages_of_both_kinds_stand_in_any_order(outside, stages, right):
    made = [square(f"s{i}") if kind == "e" else ps.stage(AddOneBatch, name=f"s{i}") for i, kind in enumerate(stages)]
    service = ps.Service(*made, remote_worker_socket=outside.socket)
    for i, kind in enumerate(stages):
        if kind == "e":
            outside.start(f"s{i}")
    async with service:
        await outside.ready(service)
        assert await service.predict(3) == right(3)
        assert await service.predict_many(range(10)) == [right(x) for x in range(10)]
        assert [y async for y in service.stream(range(20, 30))] == [right(x) for x in range(20, 30)]
        if stages[0] == "e":
            with pytest.raises(ps.InvalidItem, match="unlucky"):
                await service.predict(13)
            with pytest.raises(ps.InvalidItem):
                await service.predict(object())
    assert list(outside.folder.glob("workers*")) == []


@pytest.mark.smoke
async def test_bytes_and_arrays_cross_in_their_formats(outside):
    service = ps.Service(
        ps.remote("turn", accepts=("raw",), item=bytes, result=bytes), remote_worker_socket=outside.socket
    )
    outside.start("turn", "Turn")
    async with service:
        await outside.ready(service)
        assert await service.predict(b"abc") == b"cba"
    arrays = ps.Service(
        ps.remote("double", accepts=("npy",), item=np.ndarray, result=np.ndarray),
        ps.stage(Echo, name="echo"),
        remote_worker_socket=outside.socket,
    )
    outside.start("double", "Double")
    async with arrays:
        await outside.ready(arrays)
        assert (await arrays.predict(np.arange(4)) == np.arange(4) * 2).all()


@pytest.mark.smoke
async def test_a_worker_outlives_the_service_and_serves_the_next_one(outside):
    worker = outside.start("s0")
    for _ in range(2):
        service = ps.Service(square("s0"), remote_worker_socket=outside.socket)
        async with service:
            await outside.ready(service)
            assert await service.predict(3) == 9
    assert worker.poll() is None


async def test_a_waiting_stage_is_served_from_outside_until_it_is_told_to_end(outside):
    worker = outside.start("waits", "Waits")
    for _ in range(2):
        service = ps.Service(ps.remote("waits", item=int, result=int), remote_worker_socket=outside.socket)
        async with service:
            await outside.ready(service)
            assert await service.predict_many(range(10)) == [x * x for x in range(10)]
            with pytest.raises(ps.InvalidItem, match="unlucky"):
                await service.predict(13)
            assert await service.predict(14) == 196
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, 20) == 0
    assert (outside.folder / "torn down").exists()


def test_a_blocking_service_has_workers_from_outside(outside):
    service = ps.Service(square("s0"), remote_worker_socket=outside.socket)
    outside.start("s0")
    with service.blocking() as blocking:
        until_now(lambda: service.state is State.READY, "a worker")
        assert blocking.predict(3) == 9


async def test_a_service_without_a_worker_starts_and_says_what_it_waits_for(outside):
    service = ps.Service(square("s0"), remote_worker_socket=outside.socket)
    async with service:
        assert service.state is State.STARTING
        with pytest.raises(ps.NotReady, match="s0 waits for an external worker, 0 s"):
            await service.predict(3)
