"""A trained model as its user serves it: `penstock serve DIR`, with nothing installed but `penstock[onnx]`."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
from served import run, serving
from spoken import spoken

import onnx_bytes
from tiny_artifacts import ROWS, features, graph, model, write_artifact, write_ids, write_tables

FORBIDDEN = ("torch", "tensorflow", "keras", "sklearn", "scipy", "onnx", "skl2onnx", "onnxscript", "pandas", "pydantic")
BLOCK = f"""
from importlib.machinery import PathFinder

found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in {FORBIDDEN!r} else found(name, *more)
"""
"""As if these were not installed."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "affairs"
    return folder, write_artifact(folder)


@pytest.fixture(scope="module")
def server(saved, tmp_path_factory):
    """A server of the artifact, started in a folder above it by a path that is not absolute."""
    folder, _ = saved
    here = tmp_path_factory.mktemp("here")
    with serving(here, os.path.relpath(folder, here), services=()) as server:
        yield server


def hidden(folder):
    """The environment of a process in which only what `penstock[onnx]` installs can be imported."""
    (folder / "sitecustomize.py").write_text(BLOCK)
    found = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(found)}


def expected():
    return [{"probability": pytest.approx(float(answer), abs=1e-6)} for answer in model(**features().encode(ROWS))]


def test_every_row_is_answered_as_the_model_answers_where_no_framework_is_installed(saved, tmp_path):
    folder, _ = saved
    with serving(tmp_path, str(folder), services=(), env=hidden(tmp_path)) as server:
        assert [server.http.post("/predict", json=row).json() for row in ROWS] == expected()
        outcomes = server.http.post("/batch", json=ROWS).json()["outcomes"]
    assert [outcome["result"] for outcome in outcomes] == expected()


def test_the_digest_is_the_version_of_the_service(server, saved):
    _, digest = saved
    assert server.health()["services"]["affairs"]["version"] == digest
    assert server.metric("penstock_service_info", service="affairs", version=digest) == 1
    assert server.http.get("/openapi.json").json()["info"]["version"] == digest


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"age": "old"}, "$.age", "expected `int | float`"),
        ({"occupation": 2.5}, "$.occupation", "2.5"),
        ({"years": 3}, "", "unknown field `years`"),
    ],
)
def test_a_row_that_the_features_refuse_is_422_with_its_path(server, change, path, words):
    answer = server.http.post("/predict", json={**ROWS[0], **change})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["path"] == path
    assert words in problem["detail"]


def test_an_id_of_64_bits_is_the_same_from_json_to_the_graph_and_back(tmp_path):
    write_ids(tmp_path / "ids")
    with serving(tmp_path, "ids", services=()) as server:
        for number in (0, -1, 2**24 + 1, 2**31 + 5, 2**40 + 7, 2**53 + 1, 2**63 - 1, -(2**63)):
            for sent in (number, str(number)):
                answer = server.http.post("/predict", content=json.dumps({"x": sent}))
                assert (answer.status_code, json.loads(answer.content)) == (200, {"y": number})
        for refused in (2**63, "2**3", "1.5", 2.0**53 + 2, True, None):
            assert server.http.post("/predict", json={"x": refused}).status_code == 422


def test_a_bad_row_harms_no_other_of_its_batch(server):
    rows = [*ROWS[:2], {**ROWS[2], "occupation": 2.5}, ROWS[3]]
    outcomes = server.http.post("/batch", json=rows).json()["outcomes"]
    assert [outcome.get("result") for outcome in outcomes] == [*expected()[:2], None, expected()[3]]
    assert outcomes[2]["error"]["status"] == 422
    assert outcomes[2]["error"]["path"] == "$.occupation"


def test_the_document_tells_kinds_vocabulary_and_the_first_probes(server):
    doc = server.http.get("/openapi.json").json()
    content = doc["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    schema = doc["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    assert sorted(schema["properties"]) == ["age", "educ", "occupation"]
    assert schema["required"] == ["age", "occupation"]
    assert schema["additionalProperties"] is False
    assert "Numeric" in json.dumps(schema["properties"]["age"])
    assert "Vocabulary" in json.dumps(schema["properties"]["occupation"])
    told = schema["properties"]["occupation"]["x-features"]["occupation"]
    assert told["vocabulary"] == ["1", "2", "3", "4", "5"]
    assert [example["value"]["age"] for example in content["examples"].values()] == [row["age"] for row in ROWS[:3]]


def test_a_worker_that_is_restarted_loads_the_artifact_that_was_named_at_the_start(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    digest = write_artifact(first)
    write_artifact(second, name="other")
    current = tmp_path / "current"
    current.symlink_to(first)
    with serving(tmp_path, str(current), services=()) as server:
        current.unlink()
        current.symlink_to(second)
        before = server.workers()
        os.kill(before[0], signal.SIGKILL)
        server.until(lambda: server.workers() not in ([None], before) and server.http.get("/readyz").is_success)
        assert server.http.post("/predict", json=ROWS[0]).json() == expected()[0]
        assert server.health()["services"]["affairs"]["version"] == digest


def test_a_worker_that_is_restarted_refuses_an_artifact_that_was_changed(tmp_path):
    folder = tmp_path / "affairs"
    write_artifact(folder)
    with serving(tmp_path, str(folder), services=()) as server:
        shutil.rmtree(folder)
        write_artifact(folder, name="other")
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait_for("it was expected|is expected")


def test_a_model_and_a_module_are_served_together(saved, tmp_path):
    folder, _ = saved
    where = (str(folder), "orders:service", "--port", "0")
    with serving(tmp_path, "--trust-model-code", "--workers", "affairs=2", services=(), where=where) as server:
        assert set(server.health()["services"]) == {"affairs", "orders"}
        assert len(server.health()["services"]["affairs"]["stages"]["affairs"]["workers"]) == 2
        assert server.http.post("/affairs/predict", json=ROWS[0]).json() == expected()[0]


def test_metrics_show_the_rows_that_were_looked_up(tmp_path):
    write_tables(tmp_path / "tables")
    with serving(tmp_path, "./tables", "--explain", services=()) as server:
        answers = [server.http.post("/predict", json={"user": user, "age": 1}).json() for user in (5, 2, 5)]
        assert [answer.get("_missing") for answer in answers] == [None, {"user": 1}, None]
        # The warm-up has looked up the ids of three probes, one by one and at once.
        for table, fetched, missing in (("user", 3 + 3 + 3, 1 + 1 + 1), ("item", 3 + 2 + 3, 0)):
            labels = {"service": "tables", "stage": "tables", "table": table}
            server.until(
                lambda: server.metric("penstock_rows_fetched_total", **labels) == fetched,  # noqa: B023
                f"the rows of {table}",
            )
            assert server.metric("penstock_rows_missing_total", **labels) == missing
            assert server.metric("penstock_rows_seconds_total", **labels) > 0


def test_check_runs_the_probes_of_an_artifact(saved, tmp_path):
    status, output = run(tmp_path, "check", str(saved[0]), env={"COLUMNS": "300"})
    assert status == 0, output
    assert "examples[2] as JSON" in output
    assert "0 failed" in output


def altered(folder):
    write_artifact(folder)
    (folder / "model.onnx").write_bytes(graph()[:-1])


@pytest.mark.parametrize("command", ["serve", "check", "consume"])
@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda folder: None, "the directory does not exist"),
        (lambda folder: folder.mkdir(), "manifest.json"),
        (altered, "model.onnx"),
    ],
    ids=["absent", "empty", "altered"],
)
def test_what_is_no_artifact_is_a_sentence_and_exit_1(tmp_path, command, prepare, words):
    prepare(tmp_path / "affairs")
    queue = ("--queue-url", f"sqlite:///{tmp_path}/q.db") if command == "consume" else ()
    found = spoken(tmp_path, command, "./affairs", *queue)
    assert found.status == 1
    assert words in found.refusal


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_graph_that_its_library_cannot_open_is_a_sentence(tmp_path, command):
    write_artifact(tmp_path / "affairs", content=onnx_bytes.model([], [], [], opset=999))
    status, output = run(tmp_path, command, "./affairs", env={"COLUMNS": "3000"})
    assert status == 1
    assert output.count("onnxruntime cannot open the onnx graph: ") == 1
    assert "Traceback" not in output
    assert ".py" not in output


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize("flag", [("--trust-model-code",), ("--model-format", "onnx"), ("--model-digest", "0" * 64)])
def test_options_of_an_artifact_need_one(module, command, flag):
    found = spoken(module(), command, "orders:service", *flag)
    assert found.status == 2
    words = f"{flag[0]}: only for a service that is named by the directory"
    assert words in found.refusal


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (
            ("--model-format", "pickle"),
            2,
            "--model-format (or PENSTOCK_MODEL_FORMAT) must be one of onnx, pt2, saved_model, got",
        ),
        (
            ("--model-digest", "abc"),
            2,
            "--model-digest (or PENSTOCK_MODEL_DIGEST) must be 64 lowercase hex digits, got 'abc'",
        ),
        (("--model-digest", "0" * 64), 1, f"{'0' * 64} is expected"),
        (("--model-format", "pt2", "--trust-model-code"), 1, "has no graph of the format 'pt2', but 'onnx'"),
    ],
)
def test_an_option_that_does_not_fit_the_artifact_is_a_sentence(saved, tmp_path, flags, status, words):
    found = spoken(tmp_path, "serve", str(saved[0]), *flags)
    assert (found.status, words in found.refusal) == (status, True), found


def test_a_digest_is_that_of_one_artifact(saved, tmp_path):
    folder, digest = saved
    found = spoken(tmp_path, "serve", str(folder), str(folder), "--model-digest", digest)
    assert found.status == 2
    assert "--model-digest is for one artifact, but 2 are named" in found.refusal


@pytest.mark.parametrize("missing", ["onnxruntime", "farmhash"])
def test_a_library_that_is_missing_is_a_sentence_with_its_extra(saved, tmp_path, missing):
    (tmp_path / "sitecustomize.py").write_text(BLOCK.replace(repr(FORBIDDEN), repr((missing,))))
    path = os.pathsep.join([str(tmp_path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    status, output = run(tmp_path, "serve", str(saved[0]), env={"PYTHONPATH": path})
    assert status == 1
    assert "pip install 'penstock[onnx]'" in output
    assert "Traceback" not in output
