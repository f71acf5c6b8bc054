"""The example whole, as its user runs it: trained, exported, served by the command line, every held-out row asked.

What a server answers is compared with what the model answered in the process that trained it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Server

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "affairs"
HELD_OUT = 1274
TOLERANCE = 1e-5
CHUNK = 200
"""Rows of a client batch."""


def run(*command: object, folder: Path = HERE) -> str:
    """Run a program with this interpreter; it must end well.  What it prints."""
    words = [sys.executable, "-B", *map(str, command)]  # -B: nothing is left in the folder of the example
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained(trainer: str, folder: Path) -> tuple[Path, Path]:
    """Train and export; the artifact, and what the model itself answered."""
    artifact, record = folder / "artifact", folder / "record"
    run(HERE / "recorded_training.py", trainer, artifact, record)
    return artifact, record


@contextmanager
def serving(artifact: Path, *flags: str) -> Iterator[Server]:
    """`penstock serve` of an artifact, ready on a free port; ended as an operator ends it."""
    server = Server(artifact.parent, str(artifact), *flags, "--port", "0")
    try:
        yield server.ready()
        server.stop()
    finally:
        server.hang_up()
        server.destroy()


def sent(record: Path) -> list[dict[str, Any]]:
    """The held-out rows as a client may send them: what is missing is null in some, and absent in others."""
    rows = json.loads((record / "rows.json").read_text())
    assert len(rows) == HELD_OUT
    assert sum(None in row.values() for row in rows) > 300
    return [row if n % 2 else {k: v for k, v in row.items() if v is not None} for n, row in enumerate(rows)]


def answered(server: Server, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """What the server answers to the rows, by output."""
    results: list[dict[str, Any]] = []
    for start in range(0, len(rows), CHUNK):
        answer = server.http.post("/batch", json=rows[start : start + CHUNK])
        assert answer.status_code == 200, answer.text
        results += [outcome["result"] for outcome in answer.json()["outcomes"]]
    single = server.http.post("/predict", json=rows[0]).json()
    assert single.keys() == results[0].keys()
    return {name: np.array([result[name] for result in results]) for name in single}


def assert_alike(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert len(got) == HELD_OUT
    assert np.ptp(expected) > 0.1, "a model that answers the same to everybody would show nothing"
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


def assert_served_as_trained(server: Server, record: Path) -> None:
    """Every held-out row has the answer of the model itself, in every output."""
    answers = answered(server, sent(record))
    assert answers.keys() == {path.stem for path in record.glob("*.npy")}
    for name, got in answers.items():
        assert_alike(got, np.load(record / f"{name}.npy"))


def test_a_torch_model_with_an_embedding_answers_as_in_training_and_as_the_readme_says(tmp_path):
    artifact, record = trained("train_torch", tmp_path)
    readme = (EXAMPLE / "README.md").read_text()
    asked = json.loads(re.search(r"-d '(.+)'", readme)[1])
    told = json.loads(re.search(r'`(\{"probability": .+\})`', readme)[1])
    with serving(artifact) as server:
        assert_served_as_trained(server, record)
        answer = server.http.post("/predict", json=asked).json()
    # Training ends a little elsewhere on a machine with other vector instructions.
    assert answer == {"probability": pytest.approx(told["probability"], abs=0.03)}


def test_a_pipeline_of_scikit_learn_answers_as_in_training(tmp_path):
    artifact, record = trained("train_sklearn", tmp_path)
    with serving(artifact) as server:
        assert_served_as_trained(server, record)


def test_the_command_line_exports_what_a_trainer_returns(tmp_path):
    artifact = tmp_path / "artifact"
    command = ("-m", "penstock", "model", "export", "train_sklearn:train", artifact, "--json")
    report = json.loads(run(*command, folder=EXAMPLE))
    assert report["rows"] == HELD_OUT
    assert report["digest"] == (artifact / "DIGEST").read_text().strip()
    verified = json.loads(run("-m", "penstock", "model", "verify", artifact, "--json"))
    assert verified["rows"] == 16


def test_a_keras_model_answers_alike_served_here_and_by_tensorflow_without_penstock(tmp_path):
    artifact, record = trained("train_keras", tmp_path)
    expected = np.load(record / "probability.npy")
    run(HERE / "plain_tensorflow.py", artifact / "saved_model", record)
    assert_alike(np.load(record / "plain.npy"), expected)
    (record / "plain.npy").unlink()
    with serving(artifact, "--trust-model-code") as server:
        assert_served_as_trained(server, record)


def test_of_two_processes_that_train_one_model_one_exports_it(tmp_path):
    artifact, record = tmp_path / "artifact", tmp_path / "record"
    record.mkdir()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run(*launcher, HERE / "two_trainers.py", artifact, record)
    first, second = (np.load(record / f"{rank}.npy") for rank in (0, 1))
    np.testing.assert_array_equal(first, second)
    with serving(artifact) as server:
        answers = answered(server, sent(record))
    for rank in (0, 1):
        assert_alike(answers["probability"], np.load(record / f"answers-{rank}.npy"))


def test_the_survey_is_held_out_and_has_its_gaps_as_told():
    sys.path.insert(0, str(EXAMPLE))
    try:
        from data import survey
    finally:
        sys.path.pop(0)
    rows, held_out = survey()
    assert (len(rows), len(held_out)) == (5092, HELD_OUT)
    assert not set(rows.index) & set(held_out.index)
    for column, every in (("age", 7), ("educ", 11), ("occupation", 13)):
        gaps = rows[column].isna().sum() + held_out[column].isna().sum()
        assert gaps == 6366 // every
    assert held_out[["age", "educ", "occupation"]].isna().any(axis=1).sum() > 300
