"""A saver that is killed leaves its draft, and the next one for the same path removes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.artifact.drafting import new_artifact
from tiny_artifacts import write_artifact

SAVER = """
import sys
from penstock.artifact.drafting import new_artifact

with new_artifact(sys.argv[1], name="affairs") as draft:
    (draft.folder / "model.onnx").write_bytes(b"half of a graph")
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_draft_stays_while_it_lives_and_is_removed_by_the_next(tmp_path, number):
    path = tmp_path / "affairs"
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(penstock.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", SAVER, path], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as saver:
        assert saver.stdout.readline() == b"writing\n"
        (left,) = tmp_path.iterdir()
        with new_artifact(path, name="affairs"):
            assert (left / "model.onnx").exists()
        saver.send_signal(number)
        assert saver.wait() == -number
    assert (left / "model.onnx").exists()
    write_artifact(path)
    assert list(tmp_path.iterdir()) == [path]
