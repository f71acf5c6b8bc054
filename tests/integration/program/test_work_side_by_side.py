"""Several services in one consumer, and several hosts that inputs come from: what is slow holds up nothing else."""

from __future__ import annotations

import signal
import socket
import time

import pytest
from served import PENSTOCK, Program
from waiting import until_now

from night import tight
from penstock import jobs

SERVICES = """
import os
import time
from pathlib import Path

import penstock as ps


class Gate(ps.Stage):
    def predict(self, x: int) -> int:
        while not Path("gate").exists():
            time.sleep(0.01)
        return x


class Dies(ps.Stage):
    def setup(self):
        while Path("died").exists() and not Path("gate").exists():
            time.sleep(0.01)

    def predict(self, x: int) -> int:
        Path("died").touch()
        os._exit(1)


class Double(ps.Stage):
    def predict(self, x: int) -> int:
        return 2 * x


gate = ps.Service(Gate, name="gate")
dies = ps.Service(Dies, name="dies")
fast = ps.Service(Double, name="fast")
"""


class Work:
    def __init__(self, folder):
        self.folder = folder
        self.url = f"sqlite:///{folder}/q.db"
        self.programs = []
        (folder / "models.py").write_text(SERVICES)

    def start(self, *words):
        program = Program(self.folder, *PENSTOCK, "consume", *words, "--queue-url", self.url)
        self.programs.append(program)
        program.wait_for("working on")
        return program


@pytest.fixture
def work(tmp_path):
    made = Work(tmp_path)
    yield made
    (tmp_path / "gate").touch()
    for program in made.programs:
        program.destroy()


@pytest.fixture
def silent():
    """The address of a server that accepts everybody and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def soon(seconds, q, *given, **options):
    """The result of a job that is submitted now: by night it is there within `seconds`."""
    began = time.monotonic()
    result = q.result(q.submit(*given, **options), timeout=20)
    assert time.monotonic() - began <= tight(seconds)
    return result


@pytest.mark.parametrize("slow", ["gate", "dies"])
def test_a_service_that_is_slow_or_restarts_holds_up_no_other(work, slow):
    with jobs.connect(work.url) as q:
        program = work.start(f"models:{slow}", "models:fast")
        behind = q.submit_many([{"input": n, "service": slow} for n in range(60)])
        until_now(lambda: q.stats().running, "a job is held")
        if slow == "dies":
            until_now((work.folder / "died").exists, "the worker has died")
        for n in range(3):
            assert soon(0.5, q, n, service="fast") == 2 * n
        assert not any(job.is_finished for job in map(q.get, behind))
        program.signal(signal.SIGTERM)
        (work.folder / "gate").touch()
        assert program.wait() == 0, program.output


def test_transfers_of_one_service_that_hang_hold_up_none_of_another(work, silent):
    (work.folder / "21.json").write_text("21")
    with jobs.connect(work.url) as q:
        program = work.start(
            *("models:gate", "models:fast", "--allow-net", "127.0.0.0/8", "--allow-input", f"file://{work.folder}/"),
            *("--allow-output", f"file://{work.folder}/", "--drain-timeout", "0"),
        )
        behind = q.submit_many([{"input_url": f"{silent}/{n}", "service": "gate"} for n in range(60)])
        until_now(lambda: q.stats().running >= 4, "inputs are fetched")
        output = f"file://{work.folder}/out.json"
        source = f"file://{work.folder}/21.json"
        assert soon(0.5, q, input_url=source, output_url=output, service="fast") == output
        assert not any(job.is_finished for job in map(q.get, behind))
        program.signal(signal.SIGTERM)
        assert program.wait() == 0, program.output


def test_inputs_that_never_come_hold_up_no_job_that_has_its_own_or_has_it_elsewhere(work, silent):
    (work.folder / "21.json").write_text("21")
    with jobs.connect(work.url) as q:
        program = work.start(
            *(
                "models:fast",
                "--allow-net",
                "127.0.0.0/8",
                "--allow-input",
                f"file://{work.folder}/",
                "--drain-timeout",
                "0",
            ),
        )
        behind = q.submit_many([{"input_url": f"{silent}/{n}"} for n in range(60)])
        until_now(lambda: q.stats().running, "inputs are fetched")
        assert soon(1.0, q, 4) == 8
        assert soon(2.0, q, input_url=f"file://{work.folder}/21.json") == 42
        assert not any(job.is_finished for job in map(q.get, behind))
        program.signal(signal.SIGTERM)
        assert program.wait() == 0, program.output


def test_outputs_that_are_never_taken_hold_up_none_for_elsewhere(work, silent):
    with jobs.connect(work.url) as q:
        program = work.start(
            *(
                "models:fast",
                "--allow-net",
                "127.0.0.0/8",
                "--allow-output",
                f"file://{work.folder}/",
                "--drain-timeout",
                "0",
            ),
        )
        behind = q.submit_many([{"input": n, "output_url": f"{silent}/{n}"} for n in range(60)])
        until_now(lambda: q.stats().running == 60, "outputs are stored")
        output = f"file://{work.folder}/out.json"
        assert soon(2.0, q, 4, output_url=output) == output
        assert not any(job.is_finished for job in map(q.get, behind))
        program.signal(signal.SIGTERM)
        assert program.wait() == 0, program.output
