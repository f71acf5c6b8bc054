from __future__ import annotations

import pytest

from onnx_bytes import identity_named
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.served_model import open_model
from penstock.errors import ArtifactInvalid, ConfigError
from saved_artifacts import edit_manifest
from tiny_artifacts import ROWS, write_artifact


def test_the_model_of_an_artifact_answers_its_probes(tmp_path):
    write_artifact(tmp_path / "affairs")
    artifact = open_artifact(tmp_path / "affairs")
    probes = artifact.probes()
    model = open_model(artifact, threads=2)
    assert model.run(probes.inputs)[0] == pytest.approx(probes.outputs["probability"], abs=1e-6)
    assert len(probes.rows) == len(ROWS)
    model.close()


def test_a_graph_that_takes_something_else_than_the_manifest_says_is_refused(tmp_path):
    write_artifact(tmp_path / "affairs", content=identity_named("x", "float32"))
    with pytest.raises(ArtifactInvalid, match=r"the graph has the inputs \['x'\], but its manifest lists"):
        open_model(open_artifact(tmp_path / "affairs"))


def test_the_very_bytes_that_were_checked_are_opened(tmp_path):
    path = tmp_path / "affairs"
    write_artifact(path)
    artifact = open_artifact(path)
    (path / "model.onnx").write_bytes(identity_named("x", "float32"))
    with pytest.raises(ArtifactInvalid, match=r"model\.onnx has"):
        open_model(artifact)


def test_a_format_that_can_run_code_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "affairs"
    write_artifact(path, content=b"code")
    edit_manifest(path, lambda found: found["graphs"][0].update(format="pt2"))
    with pytest.raises(ConfigError, match="'pt2' can run code"):
        open_model(open_artifact(path))
