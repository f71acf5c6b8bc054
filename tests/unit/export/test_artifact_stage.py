"""The stage of a trained model, in this process: rows in, answers or refusals out."""

from __future__ import annotations

import os
import sys

import msgspec
import numpy as np
import pytest

import penstock as ps
from penstock.artifact import listed_files
from penstock.artifact.publishing import publish_artifact, roll_back
from penstock.export import artifact_service
from penstock.export.artifact_stage import ArtifactStage, threads_given
from saved_artifacts import edit_manifest
from tiny_artifacts import ROWS, features, model, write_artifact


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "affairs"
    digest = write_artifact(folder, max_size=7)
    return {"path": str(folder), "digest": digest, "format": "onnx", "trust": False}


@pytest.fixture(scope="module")
def stage(saved):
    made = ArtifactStage()
    made.setup(**saved)
    yield made
    made.teardown()


def expected():
    return [{"probability": pytest.approx(float(answer), abs=1e-6)} for answer in model(**features().encode(ROWS))]


def test_a_batch_is_answered_row_by_row_with_plain_values(stage):
    found = stage.predict(ROWS)
    assert found == expected()
    assert {type(answer["probability"]) for answer in found} == {float}


def test_rows_that_were_decoded_are_answered_as_dicts_are(stage, saved):
    item = ArtifactStage.declare(**saved).item
    rows = [msgspec.json.decode(msgspec.json.encode(row), type=item) for row in ROWS]
    assert stage.predict(rows) == expected()


def test_a_row_that_is_refused_stands_alone_in_its_place(stage):
    rows = [{**ROWS[0], "age": "old"}, *ROWS[:2], {"age": 1, "occupation": 2, "more": 3}, *ROWS[2:]]
    found = stage.predict(rows)
    assert [answer for answer in found if not isinstance(answer, ps.InvalidItem)] == expected()
    assert isinstance(found[0], ps.InvalidItem)
    assert found[0].path == "$.age"
    assert isinstance(found[3], ps.InvalidItem)
    assert "more" in str(found[3])


def test_a_batch_of_refused_rows_runs_no_graph(stage):
    found = stage.predict([{}, {"age": None, "occupation": 1}])
    assert [type(answer) for answer in found] == [ps.InvalidItem] * 2


class RaisingGraph:
    """A graph that raises at an age or an occupation that it does not know, and where both are 3."""

    def __init__(self, graph, error=ValueError):
        self.graph, self.error, self.runs = graph, error, 0

    def run(self, inputs):
        self.runs += 1
        known = features().encode(ROWS)
        for name, array in inputs.items():
            if not np.isin(array, known[name]).all():
                raise self.error(f"no such {name}")
        return self.graph.run(inputs)


@pytest.fixture
def raising(stage, monkeypatch):
    """``raising(error)``: the stage, whose graph raises such errors at what it does not know."""

    def make(error=ValueError):
        monkeypatch.setattr(stage._model, "_graph", RaisingGraph(stage._model._graph, error))
        return stage

    return make


@pytest.mark.parametrize(
    ("change", "column", "shown"),
    [
        ({"age": 77.0}, "age", "77.0"),
        ({"occupation": "3"}, "occupation", "'3'"),
        ({"age": 77.0, "occupation": "3"}, "age", "77.0"),
    ],
)
def test_a_value_at_which_the_graph_raises_is_the_callers(raising, change, column, shown):
    (refused,) = raising().predict([{**ROWS[0], **change}])
    assert isinstance(refused, ps.InvalidItem)
    assert str(refused) == f"{shown} is not a value that the model accepts at `$.{column}`"


def test_a_batch_at_which_the_graph_raises_is_run_again_in_halves_first(raising):
    stage = raising()
    with pytest.raises(ValueError, match="no such x"):
        stage.predict([*ROWS, {**ROWS[0], "age": 77.0}])
    assert stage._model._graph.runs == 1


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_no_value_has_done_is_raised_as_it_is(raising, error):
    stage = raising(error)
    with pytest.raises(error):
        stage.predict([{**ROWS[0], "age": 77.0}])
    assert stage._model._graph.runs == 1


def test_it_declares_what_the_artifact_says(saved):
    declared = ArtifactStage.declare(**saved)
    assert declared.batch == ps.Batch(max_size=7, max_wait=0)
    assert list(declared.examples) == features().to_rows(ROWS)[:3]
    assert declared.result.__struct_encode_fields__ == ("probability",)
    assert msgspec.json.decode(b'{"probability": 1}', type=declared.result).output0 == 1.0


@pytest.mark.parametrize(
    ("given", "threads"), [("3", 3), ("9" * 20, 1024), ("0", None), ("", None), ("four", None), ("2,1", None)]
)
def test_the_graph_gets_the_threads_that_the_worker_was_given(monkeypatch, given, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert threads_given() == (threads or len(os.sched_getaffinity(0)))


def test_the_graph_is_opened_with_these_threads(monkeypatch, saved):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    made = ArtifactStage()
    made.setup(**saved)
    assert made._model._graph._session.get_session_options().intra_op_num_threads == 3
    made.teardown()


def test_a_service_is_loaded_with_the_digest_as_its_version(saved):
    service = ps.export.load(saved["path"], batch=ps.Batch(max_size=3), workers=2)
    assert (service.name, service.version) == ("affairs", saved["digest"])
    assert service.stages[0].batch == ps.Batch(max_size=3)
    assert service.stages[0].workers == 2
    assert ps.export.load(saved["path"], name="mine").name == "mine"


def test_a_worker_hashes_nothing_that_its_service_has_hashed(tmp_path, monkeypatch):
    write_artifact(tmp_path / "affairs")
    for path in (tmp_path / "affairs").rglob("*"):
        os.utime(path, (1e9, 1e9))
    (spec,) = ps.export.load(tmp_path / "affairs").stages
    monkeypatch.setattr(listed_files, "sha256", None)
    worker = ArtifactStage()
    worker.setup(**spec.setup)
    assert worker.predict(ROWS) == expected()
    worker.teardown()


def test_cores_and_environment_are_those_of_the_stage(saved):
    service = ps.export.load(saved["path"], workers=2, cpus=[0, None], env={"SOME": "value"})
    assert service.stages[0].cpus == ps.stage(len, workers=2, cpus=[0, None]).cpus
    assert service.stages[0].env == ({"SOME": "value"},) * 2


@pytest.mark.parametrize("published", [False, True])
def test_what_can_run_code_is_loaded_with_trust_or_its_digest_alone(tmp_path, monkeypatch, published):
    """The digest in `CURRENT` is no trust."""
    path = tmp_path / "affairs"
    write_artifact(path, content=b"code")
    digest = edit_manifest(path, lambda found: found["graphs"][0].update(format="pt2"))
    if published:
        publish_artifact(path, tmp_path / "models")
        path = tmp_path / "models"
    monkeypatch.setattr(artifact_service, "check_library", lambda _: None)  # as where PyTorch is installed
    with pytest.raises(ps.ConfigError, match="'pt2' can run code"):
        ps.export.load(path)
    for known in ({"trust_model_code": True}, {"model_digest": digest}):
        assert ps.export.load(path, **known).version == digest


def test_a_model_directory_is_loaded_as_the_version_that_is_current(saved, tmp_path):
    write_artifact(tmp_path / "other", name="other")
    for artifact in (saved["path"], tmp_path / "other"):
        publish_artifact(artifact, tmp_path / "models")
    service = ps.export.load(tmp_path / "models")
    assert (service.name, service.model_version) == ("other", 2)
    roll_back(tmp_path / "models")
    service = ps.export.load(tmp_path / "models", model_digest=saved["digest"])
    assert (service.name, service.model_version, service.version) == ("affairs", 1, saved["digest"])
    assert ps.export.load(saved["path"]).model_version is None


def test_a_worker_opens_the_version_and_does_not_look_at_current(saved, tmp_path):
    write_artifact(tmp_path / "other", name="other")
    publish_artifact(saved["path"], tmp_path / "models")
    service = ps.export.load(tmp_path / "models")
    publish_artifact(tmp_path / "other", tmp_path / "models")
    given = service.stages[0].setup
    assert given["path"] == str((tmp_path / "models" / "versions" / "1").resolve())
    assert given["digest"] == saved["digest"]


def test_a_folder_with_versions_and_without_current_is_told_as_that(saved, tmp_path):
    publish_artifact(saved["path"], tmp_path / "models")
    (tmp_path / "models" / "CURRENT").unlink()
    with pytest.raises(ps.ArtifactInvalid, match="models is not a model directory: it has no file CURRENT"):
        ps.export.load(tmp_path / "models")


def test_a_missing_library_is_told_before_a_worker_is_started(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not there, where it is
    with pytest.raises(ps.ConfigError, match=r"pip install 'penstock\[onnx\]'"):
        ps.export.load(saved["path"])


async def test_a_service_that_was_loaded_answers_in_process_by_the_same_rules(saved):
    async with ps.export.load(saved["path"]).configured(inline=True) as service:
        assert await service.predict_many(ROWS) == expected()
        with pytest.raises(ps.InvalidItem, match=r"at `\$.age`"):
            await service.predict({**ROWS[0], "age": True})
        with pytest.raises(ps.InvalidItem, match="years"):
            await service.predict({**ROWS[0], "years": 1})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"model_format": "pt2"}, ps.ConfigError, "has no graph of the format 'pt2'"),
        (
            {"model_format": "pickle"},
            ps.ConfigError,
            "model_format must be one of onnx, pt2, saved_model, got 'pickle'",
        ),
        ({"model_digest": "0" * 64}, ps.ArtifactInvalid, "is expected"),
        ({"model_digest": "abc"}, ps.ConfigError, "model_digest must be 64 lowercase hex digits"),
        ({"trust_model_code": "yes"}, ps.ConfigError, "trust_model_code must be true or false"),
        ({"workers": 0}, ps.ConfigError, "workers must be a whole number of at least 1"),
    ],
)
def test_arguments_that_cannot_be_are_refused(saved, arguments, error, words):
    with pytest.raises(error, match=words):
        ps.export.load(saved["path"], **arguments)
