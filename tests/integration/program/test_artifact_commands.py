"""`penstock model`, and what is wrong with the function of `penstock model export`, as their user calls them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from served import PENSTOCK, Program, run

import onnx_bytes
from tiny_artifacts import SLOPE, TABLE, graph, write_artifact

WIDE = {"COLUMNS": "300"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "affairs"
    return folder, write_artifact(folder)


def artifact(folder, *arguments):
    status, output = run(folder, "model", *map(str, arguments), env=WIDE)
    assert "Traceback" not in output
    return status, output


def other_graph(slope):
    return graph().replace(SLOPE.tobytes(), np.asarray(slope, np.float32).tobytes())


@pytest.mark.smoke
def test_inspect_tells_what_is_in_an_artifact(saved, tmp_path):
    folder, digest = saved
    status, output = artifact(tmp_path, "inspect", folder)
    assert status == 0
    for word in (digest, "affairs", "4 rows", "Vocabulary", "probability: float32", "max_size 32"):
        assert word in output, word


def test_inspect_gives_json(saved, tmp_path):
    folder, digest = saved
    status, output = artifact(tmp_path, "inspect", folder, "--json")
    told = json.loads(output)
    assert (status, told["digest"], told["schema"], told["name"]) == (0, digest, 3, "affairs")
    assert told["graphs"][0]["outputs"] == [{"name": "probability", "dtype": "float32", "shape": []}]
    assert "model.onnx" in told["files"]


@pytest.mark.smoke
def test_verify_replays_the_probes(saved, tmp_path):
    status, output = artifact(tmp_path, "verify", saved[0])
    assert status == 0
    assert "every graph answered 4 rows as the model did" in output
    status, output = artifact(tmp_path, "verify", saved[0], "--json")
    told = json.loads(output)
    assert (status, told["rows"]) == (0, 4)
    assert told["max_difference"]["probability"] < 1e-5


def test_verify_says_whom_of_those_who_read_its_folder_the_artifact_is_hidden_from(tmp_path):
    tmp_path.chmod(0o755)
    write_artifact(tmp_path / "affairs")
    (tmp_path / "affairs" / "model.onnx").chmod(0o600)
    status, output = artifact(tmp_path, "verify", tmp_path / "affairs")
    assert status == 0
    assert "affairs: not readable by group and others, although its directory is" in output
    assert json.loads(artifact(tmp_path, "verify", tmp_path / "affairs", "--json")[1])["hidden_from"] == [
        "group",
        "others",
    ]


def test_verify_tells_where_the_graph_answers_otherwise(tmp_path):
    folder = tmp_path / "affairs"
    write_artifact(folder, content=other_graph([0.5, -1.2]))
    status, output = artifact(tmp_path, "verify", folder)
    assert status == 1
    assert "onnx" in output
    assert "probability" in output


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_was_altered_is_refused_by_the_name_of_its_file(tmp_path, command):
    folder = tmp_path / "affairs"
    write_artifact(folder)
    (folder / "features.json").write_text("{}")
    status, output = artifact(tmp_path, command, folder)
    assert status == 1
    assert "features.json" in output


def test_diff_of_an_artifact_with_itself_is_exit_0(saved, tmp_path):
    folder, _ = saved
    status, output = artifact(tmp_path, "diff", folder, folder)
    assert status == 0
    assert "0 of 4" in output
    assert "B answers like A" in output


def test_diff_replays_the_probes_of_a_through_b(saved, tmp_path):
    folder, digest = saved
    second = write_artifact(tmp_path / "second", name="second", content=other_graph([0.9, -1.25]))
    status, output = artifact(tmp_path, "diff", folder, tmp_path / "second")
    assert status == 1
    assert "4 of 4" in output
    assert "became" in output
    status, output = artifact(tmp_path, "diff", folder, tmp_path / "second", "--json")
    told = json.loads(output)
    assert (status, told["before"], told["after"], told["same_answers"]) == (1, digest, second, False)
    (output,) = told["outputs"]
    assert (output["name"], output["rows"], output["differing"]) == ("probability", 4, 4)
    assert output["largest"] == pytest.approx(abs(output["before"] - output["after"]), rel=1e-3)
    assert {"what": "name", "before": "affairs", "after": "second"} in told["descriptions"]


def test_diff_tells_an_output_that_is_not_there(saved, tmp_path):
    wider = onnx_bytes.model(
        [
            onnx_bytes.weights("table", TABLE),
            onnx_bytes.node("Gather", ["table", "occupation"], ["row"]),
            onnx_bytes.node("Mul", ["row", "x"], ["squeezed"]),
        ],
        [("x", "float32", ("n", 2)), ("occupation", "int64", ("n",))],
        [("squeezed", "float32", ("n", 2))],
    )
    write_artifact(tmp_path / "second", content=wider, shape=(2,))
    status, output = artifact(tmp_path, "diff", saved[0], tmp_path / "second")
    assert status == 1
    assert "not in B, or of another shape or kind" in output


def test_diff_tells_that_the_graph_of_b_fails_on_the_probes_of_a(saved, tmp_path):
    fewer = onnx_bytes.model(
        [
            onnx_bytes.weights("table", TABLE[:1]),
            onnx_bytes.node("Gather", ["table", "occupation"], ["row"]),
            onnx_bytes.node("Mul", ["row", "x"], ["squeezed"]),
        ],
        [("x", "float32", ("n", 2)), ("occupation", "int64", ("n",))],
        [("squeezed", "float32", ("n", 2))],
    )
    write_artifact(tmp_path / "second", content=fewer, shape=(2,))
    status, output = artifact(tmp_path, "diff", saved[0], tmp_path / "second")
    assert status == 1
    assert "format 'onnx': the graph fails on a batch of 4, starting with row 0" in output


def test_a_digest_that_matches_is_taken_and_another_refused(saved, tmp_path):
    folder, digest = saved
    assert artifact(tmp_path, "verify", folder, "--model-digest", digest)[0] == 0
    status, output = artifact(tmp_path, "verify", folder, "--model-digest", "0" * 64)
    assert status == 1
    assert "is expected" in output


def test_a_report_that_cannot_be_written_is_a_sentence(saved, tmp_path):
    program = Program(tmp_path, "sh", "-c", 'exec "$@" > /dev/full', "sh", *PENSTOCK, "model", "inspect", str(saved[0]))
    try:
        assert program.wait() == 1
    finally:
        program.destroy()
    assert "cannot write to standard output" in program.output


def test_what_is_not_there_is_a_sentence_whatever_is_said_of_it(tmp_path):
    for options in ((), ("--trust-model-code",), ("--model-digest", "0" * 64)):
        status, output = artifact(tmp_path, "verify", "nothing", *options)
        assert status == 1
        assert "nothing is not an artifact: the directory does not exist" in output


@pytest.mark.parametrize("command", [("verify",), ("diff",)])
def test_a_format_that_was_not_saved_is_a_sentence(saved, tmp_path, command):
    folder = str(saved[0])
    folders = (folder, folder) if command == ("diff",) else (folder,)
    status, output = artifact(tmp_path, *command, *folders, "--model-format", "pt2", "--trust-model-code")
    assert status == 1
    assert "has no graph of the format 'pt2', but 'onnx'" in output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("verify", "default: every graph, which needs the library of each"),
        ("diff", "default: the first in the artifact"),
    ],
)
def test_help_says_which_graph_a_command_takes_without_a_format(tmp_path, command, words):
    status, output = run(tmp_path, "model", command, "--help", env=WIDE)
    assert status == 0
    assert words in output


TRAINERS = """
def train(): return {"features": None}
def nothing(): return None
def with_path(): return {"model": 1, "features": None, "reference_rows": [], "path": "elsewhere"}
def more(): return {"model": 1, "features": None, "reference_rows": [], "batch_size": 3}
def takes(rows): return {}
class Trainer: pass
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("trainers", "'trainers' does not name a function: write trainers:function"),
        ("trainers:takes", "trainers:takes is not a function without arguments"),
        ("trainers:Trainer", "trainers:Trainer is not a function without arguments"),
        ("trainers:nothing", "trainers:nothing() must return a dict with the arguments of penstock.export.save"),
        ("trainers:train", "trainers:train() must return a dict with the arguments of penstock.export.save"),
        ("trainers:with_path", "trainers:with_path() returns a path, but the command names another: out"),
        ("trainers:more", "there is no 'batch_size' here"),
    ],
)
def test_a_function_that_cannot_be_exported_is_a_sentence(tmp_path, function, words):
    (tmp_path / "trainers.py").write_text(TRAINERS)
    status, output = run(tmp_path, "model", "export", function, "out", env=WIDE)
    assert status == 1
    assert words in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()
