"""The runs of the example as their user starts them: a process is killed in the middle, and one version comes.

What is served is compared with what the model answered in the process that saved.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import with_variable
from programs import MARK
from served import Program
from test_affairs import HELD_OUT, assert_alike
from waiting import until_now
from watched_models import manifest, record

import penstock as ps
from penstock.artifact.proof import prove

HERE = Path(__file__).parent
PATIENCE_SECONDS = 120.0
"""Seconds; a program imports its framework, and torchrun starts it twice."""
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # the threads of two processes on few cores wait for each other
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # as the example says
}


class Programs:
    """The programs of one run."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder, self.script = folder, script
        self.record = folder / "record"
        self.record.mkdir()
        self.started: list[Program] = []

    @property
    def checkpoints(self) -> list[Path]:
        return list((self.folder / "run" / "checkpoints").glob("[0-9]*"))

    def start(self, *launcher: str, **env: str) -> Program:
        arguments = (str(HERE / "recorded_run.py"), self.script, str(self.record), "run", "models")
        program = Program(
            self.folder,
            sys.executable,
            "-B",
            *launcher,
            *arguments,
            env={**ENVIRONMENT, **env},
        )
        self.started.append(program)
        return program

    def check_published(self) -> None:
        """There is one version, and it answers as the model did where it was saved."""
        models = self.folder / "models"
        entries = record(models)["history"]
        assert [(entry["version"], entry["action"]) for entry in entries] == [(1, "publish")]
        assert [path.name for path in (models / "versions").iterdir()] == ["1"]
        prove(models / "versions" / "1", digest=entries[0]["digest"])
        assert manifest(models, 1)["run"] == entries[0]["run"]
        self._check_served(models)

    def _check_served(self, models: Path) -> None:
        rows = json.loads((self.record / "rows.json").read_text())
        assert len(rows) == HELD_OUT
        with ps.export.load(models).blocking() as service:
            results = service.predict_many(rows)
        (expected,) = (path for path in self.record.iterdir() if path.is_dir())  # one has saved
        for path in expected.iterdir():
            assert_alike(np.array([result[path.stem] for result in results]), np.load(path))


@pytest.fixture
def programs(tmp_path, request):
    programs = Programs(tmp_path, request.param)
    yield programs
    for program in programs.started:
        program.destroy()


@pytest.mark.parametrize("programs", ["run_sklearn.py"], indirect=True)
def test_of_three_processes_over_leased_shards_one_is_killed_and_one_model_is_published(programs):
    pytest.importorskip("skl2onnx")
    killed = programs.start(DIES="in its third task")
    others = [programs.start() for _ in range(2)]
    killed.process.wait(PATIENCE_SECONDS)
    assert killed.process.returncode == -signal.SIGKILL, killed.output
    for other in others:
        assert other.wait(PATIENCE_SECONDS) == 0, other.output
        assert "version 1\n" in other.output
    programs.check_published()


@pytest.mark.parametrize("programs", ["run_torch.py"], indirect=True)
def test_of_two_processes_that_step_together_one_is_killed_and_one_model_is_published(programs):
    pytest.importorskip("torch")
    launcher = programs.start(*LAUNCHER)
    until_now(lambda: programs.checkpoints, "a checkpoint", PATIENCE_SECONDS, lambda: launcher.output)
    os.kill(rank_of(launcher, 1), signal.SIGKILL)
    assert launcher.wait(PATIENCE_SECONDS) == 0, launcher.output
    assert launcher.output.count("version 1\n") == 2
    programs.check_published()


def rank_of(launcher: Program, rank: int) -> int:
    """The process of a rank."""
    ours = with_variable(MARK, launcher.mark)
    (pid,) = ours.keys() & with_variable("RANK", str(rank)).keys()
    return pid
