"""The example as its user runs it, in PyTorch and in Keras: trainers are killed or stopped, and one model is served.

The table of PyTorch lies outside of the graph, and ONNX serves it where no framework can be imported.

What is served is compared with what the model answered in the process that saved, which had trained nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from served import Program, Server
from waiting import until_now
from watched_models import manifest, record

import penstock as ps
from penstock.training.sqlite_tasks import SqliteTasks

EXAMPLE = Path(__file__).parents[2] / "examples" / "identifiers"
EVERY = "8"
PATIENCE_SECONDS = 120.0
STANDS_STILL_SECONDS = 3.0
"""For how long the run's file is locked when it is a stopped process that keeps it so."""
UNSEEN = {"identifiers": [f"nobody_wrote_this_{number}" for number in range(20)]}
TOLD = "in the middle of a task"

EXAMPLE_RUN = f"""
import json, os, runpy, sys, time
from pathlib import Path

import numpy as np

import penstock as ps

example, program, every, *kinds = sys.argv[1:]
work, steps = ps.training.Run.work, 0
if program == "train.py":
    import torch
    from penstock.embeddings.torch_layers import TorchRows as Rows

    name = "step"

    def answer(model, inputs):
        with torch.no_grad():
            return model.eval()(**{{name: torch.from_numpy(array) for name, array in inputs.items()}})["scores"].numpy()
else:
    from penstock.embeddings.keras_layers import KerasRows as Rows

    name = "_apply"  # what the graph calls in each step

    def answer(model, inputs):
        return model.predict(inputs, verbose=0)["scores"]

step = getattr(Rows, name)

def of_these_kinds(run, **functions):
    if "save" in kinds:
        functions["save"] = recording(functions["save"])
    return work(run, **{{kind: functions[kind] for kind in kinds}})

def stepping(rows, *given):
    global steps
    values = step(rows, *given)
    steps += 1
    if "GATE" in os.environ and steps == 3:
        print({TOLD!r}, flush=True)
        while not Path(os.environ["GATE"]).exists():
            time.sleep(0.01)
    return values

def recording(save):
    def remembered():
        saved = save()
        rows, asked = saved["model"], [*saved["reference_rows"], *saved["validation_data"], {UNSEEN!r}]
        rows.refresh()
        if "outside" in saved:
            saved["formats"] = ["onnx", "pt2"]
            inlined = dict(saved)
            del inlined["outside"]
            ps.export.save(inlined.pop("model"), "inlined", **inlined)
        inputs = saved["features"].encode(asked)
        np.save("scores.npy", answer(rows.model, inputs), allow_pickle=False)
        Path("asked.json").write_text(json.dumps(asked))
        (table,) = rows.tables.values()
        found = rows.store.fetch(table.name, inputs["identifiers"][-1, :{len(UNSEEN["identifiers"])}]).found
        print(f"{{steps}} steps, {{found.sum()}} rows found", flush=True)
        return saved
    return remembered

ps.training.Run.work = of_these_kinds
setattr(Rows, name, stepping)
sys.path.insert(0, example)
sys.argv = [program, "run", "models", every]
runpy.run_path(example + "/" + program, run_name="__main__")
"""


class Programs:
    """The programs of one run."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.program = program
        self.file = folder / "run" / "run.db"
        self.started: list[Program] = []

    def start(self, *kinds: str, **env: str) -> Program:
        """Start the example, with the functions of `kinds` alone."""
        command = (sys.executable, "-B", "-c", EXAMPLE_RUN, str(EXAMPLE), self.program, EVERY, *kinds)
        self.started.append(Program(self.folder, *command, env=env))
        return self.started[-1]

    def attempts_lost_by(self, program: Program) -> int:
        with contextlib.closing(SqliteTasks.existing(self.file)) as store:
            return sum(f"process {program.pid} on " in entry.trouble for entry in store.tasks())

    def stop(self, program: Program) -> None:
        """Stop it where it does not keep the file of the run locked, as it does while it renews its lease."""
        locked = True
        while locked:
            os.kill(program.pid, signal.SIGCONT)
            os.kill(program.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, program.pid, os.WSTOPPED)
            with contextlib.closing(sqlite3.connect(self.file, timeout=STANDS_STILL_SECONDS)) as file:
                try:
                    file.execute("BEGIN IMMEDIATE")
                    locked = False
                except sqlite3.OperationalError:
                    continue


@pytest.fixture
def programs(tmp_path, request):
    programs = Programs(tmp_path, request.param)
    yield programs
    for program in programs.started:
        program.destroy()


@pytest.mark.parametrize("programs", ["train.py"], indirect=True)
@pytest.mark.parametrize("seconds", [0, pytest.param(10, marks=pytest.mark.night)])
def test_of_three_trainers_one_is_killed_and_one_stopped_and_the_model_is_served_as_trained(programs, seconds):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    killed, stopped, third = (programs.start("train", "evaluate", GATE=gate) for gate in ("none", "stopped", "third"))
    for program in (killed, stopped, third):
        program.wait_for(TOLD, PATIENCE_SECONDS)
    os.kill(killed.pid, signal.SIGKILL)
    programs.stop(stopped)
    until = time.monotonic() + seconds
    (programs.folder / "third").touch()
    for program in (killed, stopped):
        until_now(lambda program=program: programs.attempts_lost_by(program), "another to take over", PATIENCE_SECONDS)
    until_now(lambda: time.monotonic() >= until, "the end of the stop", PATIENCE_SECONDS)
    (programs.folder / "stopped").touch()
    os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.wait(PATIENCE_SECONDS) == 1
    assert "LeaseLost" in stopped.output
    check_saved_by_another(programs, third)


@pytest.mark.parametrize("programs", ["train_keras.py"], indirect=True)
def test_of_two_trainers_in_keras_one_is_killed_and_the_model_is_served_as_trained(programs):
    pytest.importorskip("keras")
    killed, other = (programs.start("train", "evaluate", GATE=gate) for gate in ("none", "other"))
    for program in (killed, other):
        program.wait_for(TOLD, PATIENCE_SECONDS)
    os.kill(killed.pid, signal.SIGKILL)
    (programs.folder / "other").touch()
    check_saved_by_another(programs, other, "--trust-model-code")
    assert programs.attempts_lost_by(killed)


def check_saved_by_another(programs: Programs, trainer: Program, *options: str) -> None:
    """A process that trains nothing saves what others have trained, and it is served."""
    saver = programs.start("save")
    for program in (saver, trainer):
        assert program.wait(PATIENCE_SECONDS) == 0, program.output
        assert "version 1, accuracy 0." in program.output

    steps, found = map(int, saver.wait_for(r"(\d+) steps, (\d+) rows found").groups())
    assert steps == 0
    assert found < len(UNSEEN["identifiers"])
    check_published(programs.folder, *options)


def check_published(folder: Path, *options: str) -> None:
    """There is one version, which is served as the model answered where it was saved."""
    models = folder / "models"
    assert [(entry["version"], entry["action"]) for entry in record(models)["history"]] == [(1, "publish")]
    rtol, atol = manifest(models, 1)["tolerance"]
    asked, expected = json.loads((folder / "asked.json").read_text()), np.load(folder / "scores.npy")
    right = [scores.argmax() == row.pop("package") for row, scores in zip(asked[:-1], expected[:-1], strict=True)]
    assert len(right) > 30
    assert ps.training.Run(folder / "run").results("evaluate") == [pytest.approx(np.mean(right))], (
        "not what was trained"
    )
    ways: list[tuple[str, tuple[str, ...], dict[str, str]]] = [(str(models), options, {})]
    if manifest(models, 1)["tables"]:
        assert [table["placed"] for table in manifest(models, 1)["tables"]] == ["outside"]
        ways = [
            (str(models), (), without_frameworks(folder)),
            (str(models), ("--model-format", "pt2", "--trust-model-code"), {}),
            ("inlined", (), {}),
        ]
    for path, given, env in ways:
        with served(folder, path, *given, env=env) as server:
            for row, scores in zip(asked, expected, strict=True):
                answer = server.http.post("/predict", json=row)
                assert answer.status_code == 200, answer.text
                np.testing.assert_allclose(answer.json()["scores"], scores, rtol=rtol, atol=atol)


@contextlib.contextmanager
def served(folder: Path, *arguments: str, env: dict[str, str]) -> Iterator[Server]:
    server = Server(folder, *arguments, "--port", "0", env=env)
    try:
        yield server.ready()
        server.stop()
    finally:
        server.hang_up()
        server.destroy()


def without_frameworks(folder: Path) -> dict[str, str]:
    """An environment in which what trains a model cannot be imported."""
    place = folder / "nothing"
    place.mkdir()
    for name in ("torch", "onnx", "onnxscript", "keras", "tensorflow"):
        (place / f"{name}.py").write_text(f"raise ImportError('{name} is not here')")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))}
