"""The process that replays rows: whatever it does, there is a result or a refusal, and nothing keeps running.

A module `onnxruntime` that comes before the real one stands for a library that fails.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from processes import running
from waiting import PATIENCE_SECONDS, until_now

import penstock.artifact.fresh_process
from onnx_bytes import identity_named, model, node
from penstock import features as f
from penstock.artifact.diff import diff
from penstock.artifact.drafting import new_artifact
from penstock.artifact.manifest import GraphEntry
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.proof import prove
from penstock.artifact.recorded import Recorded
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused
from penstock.features.tensors import TensorSpec
from penstock.testing.graphs import IDS, TEXTS
from saved_artifacts import ANSWERED, finish, recorded
from tiny_artifacts import ROWS, features, write_artifact


@pytest.fixture
def artifact(tmp_path):
    path = tmp_path / "affairs"
    write_artifact(path)
    return path


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Write what stands for ONNX Runtime in the process that proves."""

    def write(source):
        folder = tmp_path / "library"
        folder.mkdir()
        (folder / "onnxruntime.py").write_text(textwrap.dedent(source))
        monkeypatch.setenv("PYTHONPATH", os.fspath(folder))

    return write


# -- proved, or refused for what the artifact is ----------------------------------------------------------------------


def test_an_artifact_that_answers_as_its_model_did_is_proved(artifact):
    found = prove(artifact)
    assert found.rows == len(ROWS)
    assert found.worst.keys() == {"probability"}
    assert 0.0 <= found.worst["probability"] < 1e-6


@pytest.mark.night
def test_rows_to_check_are_replayed_too_and_are_not_in_the_artifact(artifact):
    before = open_artifact(artifact).digest
    rows = [{**row, "age": row["age"] + 1} for row in ROWS]
    assert prove(artifact, check=recorded(rows), digest=before, formats=("onnx",), threads=2).rows == 2 * len(ROWS)
    assert open_artifact(artifact).digest == before


@pytest.mark.night
def test_rows_to_check_are_in_no_file_that_a_killed_saver_could_leave(artifact, library, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(scratch))
    library("""
        import os, pathlib

        left = sorted(str(path) for path in pathlib.Path(os.environ["SCRATCH"]).rglob("*"))
        raise SystemExit(f"left: {left}")
        """)
    monkeypatch.setenv("SCRATCH", os.fspath(scratch))
    with pytest.raises(ExportRefused, match=r"left: \[\]"):
        prove(artifact, check=recorded(ROWS))


def test_a_wrong_row_to_check_is_refused_by_its_number_after_the_probes(artifact):
    rows = recorded(ROWS).outputs["probability"].copy()
    rows[2] += 1
    with pytest.raises(ExportRefused, match="format 'onnx', output 'probability', row 6") as caught:
        prove(artifact, check=recorded(ROWS, probability=rows))
    error = caught.value
    assert (error.format, error.output, error.row, error.expected) == ("onnx", "probability", 6, float(rows[2]))
    assert error.got == pytest.approx(rows[2] - 1, abs=1e-6)


@pytest.mark.parametrize(("numerator", "answer"), [("zero", math.nan), ("one", math.inf)])
@pytest.mark.night
def test_what_json_does_not_know_comes_back_as_it_was(tmp_path, numerator, answer):
    parts = [
        node("Sub", ["occupation", "occupation"], ["none"]),
        node("Cast", ["none"], ["zero"], to=1),  # float32
        node("Exp", ["zero"], ["one"]),
        node("Div", [numerator, "zero"], ["p"]),
    ]
    inputs = [("x", "float32", ("n", 2)), ("occupation", "int64", ("n",))]
    write_artifact(tmp_path / "affairs", content=model(parts, inputs, [("p", "float32", ("n",))]))
    with pytest.raises(ExportRefused) as caught:
        prove(tmp_path / "affairs")
    assert repr(caught.value.got) == repr(answer)


@pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [(f.Ids(), "int64", IDS), (f.Text(), "str", TEXTS)],
    ids=["ids", "text"],
)
def test_ids_and_text_come_from_json_to_the_graph_and_back_exactly(tmp_path, kind, dtype, values):
    spec = f.Features({"value": kind})
    rows = [{"value": value} for value in values]
    inputs = spec.encode(rows)
    graph = GraphEntry("onnx", "model.onnx", spec.inputs, (TensorSpec("same", dtype),))
    with new_artifact(tmp_path / "same", name="same") as draft:
        (draft.folder / "model.onnx").write_bytes(identity_named("value", dtype))
        probes = Recorded(rows, inputs, {"same": inputs["value"]})
        finish(draft, features=spec, probes=probes, graphs=[graph])
        assert prove(draft.folder, digest=draft.digest).worst == {"same": 0.0}
        draft.publish()
    assert open_artifact(tmp_path / "same").probes().outputs["same"].tolist() == [*values]


def test_a_changed_file_is_refused_by_its_name(artifact):
    (artifact / "model.onnx").write_bytes(b"other")
    with pytest.raises(ArtifactInvalid, match=r"model\.onnx has 5 bytes") as caught:
        prove(artifact)
    assert caught.value.file == "model.onnx"


def test_what_can_run_code_is_not_opened_without_trust(tmp_path):
    """Neither is a graph before it that needs none; here the file is not even a graph."""
    path = tmp_path / "affairs"
    spec = features()
    with new_artifact(path, name="affairs") as draft:
        for name in ("model.onnx", "model.pt2"):
            (draft.folder / name).write_bytes(b"no graph")
        graphs = [GraphEntry(name, f"model.{name}", spec.inputs, ANSWERED) for name in ("onnx", "pt2")]
        finish(draft, graphs=graphs)
        draft.publish()
    with pytest.raises(ConfigError, match="'pt2' can run code"):
        prove(path)
    with pytest.raises(ArtifactInvalid, match="onnxruntime cannot open the onnx graph"):
        prove(path, trust=True)
    with pytest.raises(ArtifactInvalid, match="onnxruntime cannot open the onnx graph"):
        prove(path, digest=draft.digest)
    with pytest.raises(ArtifactInvalid, match="onnxruntime cannot open the onnx graph"):
        prove(path, formats=("onnx",))


def test_a_missing_library_is_told_with_what_installs_it(artifact, library):
    library("raise ModuleNotFoundError('none', name='onnxruntime')")
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[onnx\]'"):
        prove(artifact)


@pytest.mark.night
def test_the_process_does_not_find_modules_in_the_folder_it_is_started_in(artifact, tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit('found')")
    monkeypatch.chdir(tmp_path)
    assert prove("affairs").rows == len(ROWS)


# -- the process fails ------------------------------------------------------------------------------------------------


def refusal(artifact) -> str:
    with pytest.raises(ExportRefused) as caught:
        prove(artifact)
    assert caught.value.format == "onnx"
    return str(caught.value)


def test_a_killed_process_is_refused_with_the_signal(artifact, library):
    library("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    ending = "was ended by SIGKILL, as the system does where memory runs out"
    assert refusal(artifact) == f"format 'onnx': the process that replays the rows {ending}"


@pytest.mark.night
def test_a_crash_is_refused_with_the_signal(artifact, library):
    library("import os, sys; print('where it was', file=sys.stderr); os.abort()")
    assert refusal(artifact) == (
        "format 'onnx': the process that replays the rows was ended by SIGABRT; "
        "the last lines of its stderr:\nwhere it was"
    )


def test_a_process_without_memory_is_refused_with_the_end_of_its_stderr(artifact, library):
    library("""
        import resource, sys
        print("x" * 10_000, file=sys.stderr)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(1 << 31)
    """)
    said = refusal(artifact)
    assert "ended with status 1; the last lines of its stderr:\nx" in said
    assert said.endswith("MemoryError")
    assert len(said) < 5000


@pytest.mark.parametrize("status", [pytest.param(0, marks=pytest.mark.night), 3])
def test_a_process_that_leaves_without_an_answer_is_refused(artifact, library, status):
    library(f"import os; os._exit({status})")
    what = f"ended with status {status}" if status else "sent an invalid reply"
    assert refusal(artifact) == f"format 'onnx': the process that replays the rows {what}"


def test_an_exception_that_nobody_expects_is_refused_with_its_traceback(artifact, library):
    library("raise ZeroDivisionError('of the library')")
    assert refusal(artifact).endswith("ZeroDivisionError: of the library")


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\n",
        *(
            pytest.param(answer, marks=pytest.mark.night)
            for answer in (b'{"type": "proved"}\n', b'{"type": "proved", "rows": 4, "worst": {}}')
        ),
    ],
)
def test_an_answer_that_is_none_is_refused(artifact, library, answer):
    library(f"import os, sys; os.write(int(sys.argv[1]), {answer!r}); os._exit(0)")
    with pytest.raises(ExportRefused, match="sent an invalid reply"):
        prove(artifact)


@pytest.mark.night
def test_a_process_that_fails_after_its_answer_is_refused(artifact, library):
    answer = b'{"type": "proved", "rows": 4, "worst": {}}\n'
    library(f"import os, sys; os.write(int(sys.argv[1]), {answer!r}); os._exit(3)")
    with pytest.raises(ExportRefused, match="ended with status 3"):
        prove(artifact)


def test_an_answer_without_end_is_refused_and_not_waited_for(artifact, library, monkeypatch):
    monkeypatch.setattr(penstock.artifact.fresh_process, "LONGEST_ANSWER", 1_000_000)
    library("import os, sys\nwhile True: os.write(int(sys.argv[1]), bytes(1 << 16))")
    with pytest.raises(ExportRefused, match="that replays the rows was ended: its reply had more than 1,000,000 bytes"):
        prove(artifact)


@pytest.mark.parametrize("replay", [prove, lambda artifact: diff(artifact, artifact)], ids=["prove", "diff"])
@pytest.mark.night
def test_an_answer_that_is_long_is_read_to_its_end(artifact, library, replay):
    library("""
        class SessionOptions:
            def __init__(self):
                raise ValueError("long" * 1_000_000 + "end")
    """)
    with pytest.raises(ArtifactInvalid) as caught:
        replay(artifact)
    assert str(caught.value).endswith("longend")
    assert len(str(caught.value)) > 4_000_000


@pytest.mark.night
def test_what_a_library_prints_is_no_answer(artifact, library, tmp_path):
    real = os.fspath(Path(np.__file__).parents[1])
    library(f"""
        import os, sys
        print('{{"type": "proved", "rows": 0, "worst": {{}}}}', flush=True)
        os.write(2, b"noise\\n")
        sys.path.remove({os.fspath(tmp_path / "library")!r})
        del sys.modules["onnxruntime"]
        assert {real!r} in sys.path
        import onnxruntime
    """)
    assert prove(artifact).rows == len(ROWS)


# -- two artifacts ----------------------------------------------------------------------------------------------------


@pytest.mark.night
def test_what_differs_comes_back_as_it_was_found(tmp_path):
    """Among it the numbers of probes, which JSON has as text, and infinity, which it does not know."""

    def saved(name, size, operator):
        spec = f.Features({"id": f.Ids(size)})
        rows = [{"id": value} for value in range(size)]
        parts = [
            node("Cast", ["id"], ["number"], to=1),  # float32
            node("Sub", ["number", "number"], ["zero"]),
            node(operator, ["number", "zero"], ["p"]),
        ]
        content = model(parts, [("id", "int64", ("n",))], [("p", "float32", ("n",))])
        with new_artifact(tmp_path / name, name="ids") as draft:
            (draft.folder / "model.onnx").write_bytes(content)
            probes = Recorded(rows, spec.encode(rows), {"p": np.arange(size, dtype=np.float32)})
            finish(draft, features=spec, probes=probes, graphs=[GraphEntry("onnx", "model.onnx", spec.inputs, TELLS)])
            draft.publish()
        return tmp_path / name

    changes = diff(saved("a", 3, "Add"), saved("b", 2, "Div"))
    assert dict(changes.refused) == {2: "2 is not an id of 0 to 1 at `$.id`"}
    assert [change.what for change in changes.descriptions] == ["reference rows", "feature id"]
    (output,) = changes.outputs
    assert (output.rows, output.differing, output.largest, output.before) == (2, 2, None, output.row)
    assert not math.isfinite(output.after)
    assert not changes.same_answers


TELLS = (TensorSpec("p", "float32"),)


def test_a_graph_that_ends_the_process_is_told_and_does_not_end_who_compares(artifact, library):
    library("import os; os.abort()")
    with pytest.raises(ExportRefused) as caught:
        diff(artifact, artifact)
    assert str(caught.value) == "format 'onnx': the process that replays the rows was ended by SIGABRT"
    assert caught.value.format == "onnx"


@pytest.mark.night
def test_the_second_is_not_opened_without_trust_and_the_first_needs_none(artifact, tmp_path):
    spec = features()
    with new_artifact(tmp_path / "torch", name="affairs") as draft:
        (draft.folder / "model.pt2").write_bytes(b"no graph")
        finish(draft, graphs=[GraphEntry("pt2", "model.pt2", spec.inputs, ANSWERED)])
        draft.publish()
    with pytest.raises(ConfigError, match="'pt2' can run code"):
        diff(artifact, tmp_path / "torch")
    assert diff(tmp_path / "torch", artifact).same_answers


# -- the one that started it fails ------------------------------------------------------------------------------------

HANGS = """
    import itertools, os, pathlib
    pathlib.Path(os.environ["TOLD"]).write_text(str(os.getpid()))
    sum(itertools.repeat(0))  # holds the interpreter, which looks at no signal until it returns
"""
PROVES = ("-c", "import sys; from penstock.artifact.proof import prove; prove(sys.argv[1])")
VERIFIES = ("-m", "penstock", "model", "verify")
COMPARES = ("-m", "penstock", "model", "diff")


def started(command, artifact, tmp_path, monkeypatch) -> tuple[subprocess.Popen[bytes], int]:
    """A process that replays rows, and the pid of the one that it started for it, which hangs."""
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", os.fspath(told))
    package = Path(sys.modules["penstock"].__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{package}:{os.environ['PYTHONPATH']}"}
    folders = [os.fspath(artifact)] * (2 if command is COMPARES else 1)
    parent = subprocess.Popen([sys.executable, *command, *folders], env=environment, stderr=-3)
    until_now(lambda: told.exists() and told.read_text(), "the pid of the process that replays rows")
    return parent, int(told.read_text())


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGKILL, -signal.SIGKILL, id="SIGKILL"),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, id="SIGTERM", marks=pytest.mark.night),
        pytest.param(signal.SIGINT, 130, id="SIGINT", marks=pytest.mark.night),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(PROVES, id="prove"),
        pytest.param(VERIFIES, id="verify", marks=pytest.mark.night),
        pytest.param(COMPARES, id="diff", marks=pytest.mark.night),
    ],
)
def test_the_process_ends_when_the_one_that_started_it_does(
    artifact, library, tmp_path, monkeypatch, command, number, status
):
    library(HANGS)
    parent, child = started(command, artifact, tmp_path, monkeypatch)
    parent.send_signal(number)
    try:
        ended = parent.wait(PATIENCE_SECONDS)
    finally:
        parent.kill()
        parent.wait()
    assert command is PROVES or ended == status
    until_now(lambda: not running(child), "the end of the process that replays rows")
