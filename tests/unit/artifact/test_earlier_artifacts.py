"""Artifacts and model directories that an earlier Penstock has written: each earlier schema of the manifest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.artifact.diff import diff
from penstock.artifact.model_directory import find_artifact
from penstock.artifact.opened_artifact import Artifact, open_artifact
from penstock.artifact.proof import prove
from penstock.artifact.publishing import publish_artifact, roll_back
from penstock.artifact.served_model import open_model
from tiny_artifacts import ROWS, TABLE_ROWS, model, table_model, write_artifact, write_tables

EARLIER = Path(__file__).parents[2] / "data" / "earlier"


@pytest.fixture(params=[1, 2], ids=["schema 1", "schema 2"])
def schema(request):
    return request.param


@pytest.fixture
def models(schema, tmp_path):
    """The model directory of one version."""
    return shutil.copytree(EARLIER / f"models-{schema}", tmp_path / "models")


def write_today(schema: int, path: Path) -> str:
    """The same artifact as this Penstock writes it; its digest."""
    return write_tables(path, shard_bytes=2**20) if schema == 2 else write_artifact(path)


def written(artifact: Path) -> dict:
    return json.loads((artifact / "manifest.json").read_bytes())


def answers(artifact: Artifact) -> list[float]:
    served = open_model(artifact)
    found = served.predict_rows(artifact.probe_rows())
    served.close()
    (values,) = found.values.values()
    return values.tolist()


def test_it_is_opened_with_its_own_reference_rows_and_answers(models, schema):
    artifact = open_artifact(models / "versions" / "1", verify_rows=True)
    assert written(artifact.path)["schema"] == artifact.manifest.schema == schema
    assert artifact.manifest.reference_rows.path == "probes"
    rows, expected = (TABLE_ROWS, table_model) if schema == 2 else (ROWS, model)
    assert artifact.probe_rows() == artifact.probes().rows == rows
    assert answers(artifact) == pytest.approx(expected(**artifact.features.encode(rows)).tolist(), abs=1e-6)


def test_it_is_verified(models):
    proof = prove(models / "versions" / "1")
    assert proof.rows >= len(ROWS)
    assert max(proof.worst.values()) < 1e-6


def test_today_the_newest_schema_is_written(schema, tmp_path):
    write_today(schema, tmp_path / "artifact")
    found = written(tmp_path / "artifact")
    assert found["schema"] == 3
    assert found["reference_rows"]["path"] == "reference_rows"
    assert "max_idle_gap" in found["batch"]
    assert open_artifact(tmp_path / "artifact").manifest.schema == 3


def test_it_differs_in_nothing_from_the_same_one_of_today(models, schema, tmp_path):
    write_today(schema, tmp_path / "today")
    for one, other in ((models, tmp_path / "today"), (tmp_path / "today", models)):
        changes = diff(*(find_artifact(path).path for path in (one, other)))
        assert changes.same_answers
        assert {change.what for change in changes.descriptions} <= {"library numpy"}
        assert [output.differing for output in changes.outputs] == [0]


def test_its_directory_is_published_into_and_rolled_back(models, schema, tmp_path):
    first = (models / "versions" / "1" / "DIGEST").read_text().strip()
    digest = write_today(schema, tmp_path / "today")
    assert publish_artifact(tmp_path / "today", models).version == 2
    assert find_artifact(models).digest == digest
    roll_back(models)
    assert find_artifact(models).digest == first
    assert open_artifact(find_artifact(models).path, digest=first).digest == first
    roll_back(models, to=2)
    assert find_artifact(models).digest == digest


def test_it_is_published_byte_by_byte(models, tmp_path):
    old = models / "versions" / "1"
    publication = publish_artifact(old, tmp_path / "other")
    copy = tmp_path / "other" / "versions" / str(publication.version)
    files = {path.relative_to(old): path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()} == files
    assert find_artifact(tmp_path / "other").digest == (old / "DIGEST").read_text().strip()
