"""A service of three stages, the first and the last served from outside, while their workers come, go and die.

Workers in Python and in Node attach, leave and are killed at random, and once a whole stage is away for two seconds:
each of some thousand requests has its right answer, and no worker ran an item more than twice.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from served import PENSTOCK, Program, Server, serving, write_module

SERVICE = """
import penstock as ps

class Next(ps.Stage):
    def predict(self, x: int) -> int:
        return x + 1

service = ps.Service(
    ps.remote("before", batch=ps.Batch(max_size=8), item=int, result=int),
    ps.stage(Next, batch=None),
    ps.remote("after", batch=ps.Batch(max_size=8), item=int, result=int),
    name="chain", remote_worker_socket="workers", max_in_flight=256,
    reattach_timeout=60.0,  # whoever has to start on a busy machine may take longer than the default
)
"""
WORKER = """
import os
import penstock as ps

class Square(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[int]) -> list[int]:
        with open(f"ran.{self.worker.stage}.{os.getpid()}", "a") as file:
            file.write("".join(f"{x}\\n" for x in xs))
        return [x * x for x in xs]
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "node_worker" / "worker.mjs"
NODE = shutil.which("node")
LANGUAGES = ("python", "node") if NODE else ("python",)
RECORD = "require('node:fs').appendFileSync(`ran.${stageName}.${process.pid}`, values.map((x) => `${x}\\n`).join(''));"
REQUESTS = 4000
CALLERS = 32
AWAY = 6
"""Which disturbance has every worker of a stage be away."""


def right(x: int) -> int:
    return (x * x + 1) ** 2


class Workers:
    """The workers of both stages, as somebody else starts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.living: dict[str, list[subprocess.Popen]] = {"before": [], "after": []}
        self.all: list[subprocess.Popen] = []

    def start(self, stage: str, language: str) -> subprocess.Popen:
        command = [*PENSTOCK, "worker", "run", "worker:Square", "--connect", "workers", "--stage", stage]
        if language == "node":
            command = [NODE, "worker.mjs", "workers", stage]
        with (self.folder / "workers.log").open("ab") as log:
            worker = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        self.living[stage].append(worker)
        self.all.append(worker)
        return worker

    def end(self, worker: subprocess.Popen, number: int) -> None:
        worker.send_signal(number)
        for stage in self.living.values():
            if worker in stage:
                stage.remove(worker)

    def close(self) -> None:
        for worker in self.all:
            worker.kill()
        for worker in self.all:
            worker.wait(20)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    source = EXAMPLE.read_text()
    head, found, rest = source.partition("  predict(values) {\n")
    assert found, "the example has another shape now"
    imported = 'import { createRequire } from "node:module";\nconst require = createRequire(import.meta.url);\n'
    (tmp_path / "worker.mjs").write_text(imported + head + found + RECORD + "\n" + rest)
    return tmp_path


@pytest.fixture
def workers(folder):
    made = Workers(folder)
    yield made
    made.close()


@pytest.fixture
def server(folder, workers):
    with serving(folder, source=SERVICE) as server:
        yield server


ONE_STAGE = """
import penstock as ps

service = ps.Service(ps.remote("square", item=int, result=int), name="square", remote_worker_socket="workers")
"""
SLOW = """
from pathlib import Path
import time
import penstock as ps

class Square(ps.Stage):
    def setup(self):
        with open("setups", "a") as file:
            file.write("once\\n")

    def predict(self, x: int) -> int:
        Path(f"begun.{x}").touch()
        while x == 15 and not Path("open").exists():
            time.sleep(0.01)
        return x * x
"""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="stopped before it has drained", marks=pytest.mark.night),
    ],
)
def test_a_worker_that_is_at_work_outlives_its_server_and_serves_the_next(tmp_path, number):
    (tmp_path / "squares.py").write_text(SLOW)
    write_module(tmp_path, ONE_STAGE)
    worker = Program(tmp_path, *PENSTOCK, "worker", "run", "squares.py:Square", "--connect", "workers")
    first = Server(tmp_path, "model:service", "--port", "0", "--drain-timeout", "0.2")
    try:
        first.ready()
        first.until(lambda: first.http.get("/readyz").status_code == 200, "the worker")
        first.wire().post("/predict", 15, content_type="application/json")
        first.until((tmp_path / "begun.15").exists, "a batch is at work")
        first.signal(number)
        assert first.wait() == (-number if number == signal.SIGKILL else 0)
        (tmp_path / "open").touch()
        with serving(tmp_path, source=ONE_STAGE) as second:
            second.until(lambda: second.http.get("/readyz").status_code == 200, "the worker has come back")
            assert second.http.post("/predict", json=3).json() == 9
            assert second.workers() == [worker.pid]
        assert (tmp_path / "setups").read_text() == "once\n"
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        first.hang_up()
        first.destroy()
        worker.destroy()


def ask(server: Server, first: int, enough: threading.Event, in_hand: set[int], answers: dict[int, object]) -> None:
    """Ask one after the other, JSON and MessagePack in turn: `REQUESTS` in all, and more until it is `enough`."""
    client = server.client()
    for x in itertools.count(first, CALLERS):
        if x >= REQUESTS and enough.is_set():
            return
        in_hand.add(x)
        codec, read = ("json", json.loads) if x % 2 else ("msgpack", msgspec.msgpack.decode)
        body = json.dumps(x).encode() if x % 2 else msgspec.msgpack.encode(x)
        answer = client.post("/predict", content=body, headers={"content-type": f"application/{codec}"})
        answers[x] = read(answer.content) if answer.status_code == 200 else (answer.status_code, answer.text)
        in_hand.remove(x)


@pytest.mark.night
def test_every_answer_is_right_while_workers_attach_leave_and_die(server, workers, folder):
    for stage in ("before", "after"):
        for language in (*LANGUAGES, "python"):
            workers.start(stage, language)
    server.until(lambda: server.http.get("/readyz").status_code == 200, "a worker of each stage")
    chance = random.Random(7)
    in_hand: set[int] = set()
    answers: dict[int, object] = {}
    over, enough = threading.Event(), threading.Event()

    def settle() -> None:
        """Wait for what is in hand: an item is lost, by the rules, if the worker dies too that tries it again."""
        held = in_hand.copy()
        server.until(partial(held.isdisjoint, in_hand), "what was in hand is answered")

    def one_ends(stage: str) -> None:
        """Kill a worker, or ask it to leave, unless it is the last one there; another one takes its place."""
        worker = chance.choice(workers.living[stage])
        if attached(server, workers, stage) - {worker}:
            workers.end(worker, chance.choice((signal.SIGKILL, signal.SIGTERM)))
            workers.start(stage, chance.choice(LANGUAGES))

    def all_die(stage: str) -> None:
        """Kill every worker; for two seconds there is none."""
        while workers.living[stage]:
            settle()
            workers.end(workers.living[stage][0], signal.SIGKILL)
        over.wait(2.0)
        for language in (*LANGUAGES, "python"):
            workers.start(stage, language)
        server.until(lambda: attached(server, workers, stage), "the stage is back")

    def disturb() -> int:
        """Do such things until it is over; how many."""
        n = 0
        try:
            while not over.wait(0.25):
                n += 1
                if n == AWAY:
                    all_die("after")
                else:
                    one_ends(chance.choice(("before", "after")))
                settle()
                if n > AWAY:
                    enough.set()
        finally:
            enough.set()
        return n

    with ThreadPoolExecutor(CALLERS + 1) as pool:
        disturbing = pool.submit(disturb)
        asking = [pool.submit(ask, server, i, enough, in_hand, answers) for i in range(CALLERS)]
        try:
            for asked in asking:
                asked.result()
        finally:
            over.set()
        assert disturbing.result() > AWAY
    assert set(range(REQUESTS)) <= set(answers)
    assert {x: answer for x, answer in answers.items() if answer != right(x)} == {}
    for stage, inputs in (("before", answers), ("after", [x * x + 1 for x in answers])):
        ran = Counter(int(line) for file in folder.glob(f"ran.{stage}.*") for line in file.read_text().split())
        assert set(ran) == set(inputs)
        assert max(ran.values()) <= 2
    # Some may still be on their way, in or out.
    server.until(lambda: counted(server, "after") == len(rows(server, "after")), "the metric counts those of /health")
    if NODE is None:
        pytest.skip("all of it was done with workers in Python: there is no `node` here for those of the example")


def rows(server: Server, stage: str) -> list[dict]:
    """What `/health` says of each worker."""
    return server.health()["services"]["chain"]["stages"][stage]["workers"]


def counted(server: Server, stage: str) -> float:
    return server.metric("penstock_stage_workers", stage=stage)


def attached(server: Server, workers: Workers, stage: str) -> set[subprocess.Popen]:
    """The workers that are ready, and were not told to end."""
    ready = {row["pid"] for row in rows(server, stage) if row["state"] in ("idle", "busy")}
    return {worker for worker in workers.living[stage] if worker.pid in ready}
