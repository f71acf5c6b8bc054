"""A model with tables outside of its graph as a service answers with it."""

from __future__ import annotations

import os

import numpy as np
import pytest

import penstock as ps
from penstock.artifact import listed_files
from penstock.artifact.replay_messages import Invalid, ProofOrder
from penstock.artifact.replay_process import answer_to
from penstock.cli.model_folders import load_folder
from penstock.config import ArtifactOptions
from penstock.embeddings.mapped_rows import MappedRowStore
from penstock.export.artifact_stage import ArtifactStage
from saved_artifacts import edit_manifest
from tiny_artifacts import table_model, write_artifact, write_tables


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "tables"
    write_tables(folder)
    return folder


def answer(user: int, age: float) -> float:
    """What the model answers."""
    return float(table_model(np.array([user]), np.array([age], np.float32))[0])


async def test_an_explained_answer_tells_how_many_of_its_ids_were_not_found(saved):
    rows = [{"user": user, "age": 1.0} for user in (5, 2, 9)]
    async with ps.export.load(saved, explain=True).configured(inline=True) as service:
        assert await service.predict_many(rows[:2]) == [
            {"score": answer(5, 1)},
            {"score": answer(2, 1), "_missing": {"user": 1}},
        ]
        with pytest.raises(ps.InvalidItem, match="table 'item' has the ids from 0 to 3, but id 4 was requested"):
            await service.predict(rows[2])


async def test_an_id_of_which_nobody_knows_the_row_fails_its_item_alone(tmp_path):
    write_tables(tmp_path / "tables")
    edit_manifest(tmp_path / "tables", lambda found: found["tables"][1]["lookups"][0].update(by_row=False))
    users = [5, 9, 2, 3, 14, 0]
    async with ps.export.load(tmp_path / "tables", explain=True).configured(inline=True) as service:
        rows = [{"user": user, "age": 1.0} for user in users]
        found = await service.predict_many(rows, return_exceptions=True)
    for user, outcome in zip(users, found, strict=True):
        if user % 5 == 4:
            assert isinstance(outcome, ps.InvalidItem)
            assert str(outcome) == "table 'item' has the ids from 0 to 3, but id 4 was requested"
        else:
            assert outcome["score"] == answer(user, 1)


@pytest.fixture
def altered(tmp_path):
    """An artifact with a wrong byte in its rows, and the path of their file below it."""
    write_tables(tmp_path / "altered")
    file = "tables/user/shard-00003-of-00008.safetensors"
    with (tmp_path / "altered" / file).open("r+b") as shard:
        shard.seek(-1, os.SEEK_END)
        shard.write(b"\x40")
    return tmp_path / "altered", file


async def test_altered_rows_are_served_unless_somebody_asks_for_them_to_be_checked(altered):
    artifact, file = altered
    async with ps.export.load(artifact).configured(inline=True) as service:
        assert await service.predict({"user": 5, "age": 0.0}) == {"score": answer(5, 0)}
    with pytest.raises(ps.ArtifactInvalid, match="was changed after it was saved: its sha256 is") as caught:
        load_folder(str(artifact), ArtifactOptions(verify_rows=True))
    assert caught.value.file == file


def test_a_proof_finds_altered_rows(altered):
    artifact, file = altered
    order = ProofOrder(str(artifact), check=None, formats=None, trust=False, digest=None, threads=1)
    told = answer_to(order, tell=len)
    assert isinstance(told, Invalid)
    assert told.file == file


def test_a_worker_checks_rows_that_may_be_others_than_its_service_has_checked(altered):
    """Of young files no stamp tells that they are as they were."""
    artifact, file = altered
    (spec,) = ps.export.load(artifact).stages
    with pytest.raises(ps.ArtifactInvalid, match="was changed after it was saved: its sha256 is") as caught:
        ArtifactStage().setup(**{**spec.setup, "verify_rows": True})
    assert caught.value.file == file


def test_a_worker_reads_no_rows_that_its_service_has_checked(saved, monkeypatch):
    for path in saved.rglob("*"):
        os.utime(path, (1e9, 1e9))
    (spec,) = ps.export.load(saved, verify_rows=True).stages
    assert spec.setup["verify_rows"]
    monkeypatch.setattr(listed_files, "sha256", None)
    monkeypatch.setattr(MappedRowStore, "check_contents", None)
    worker = ArtifactStage()
    worker.setup(**spec.setup)
    assert worker.predict([{"user": 5, "age": 0.0}]) == [{"score": answer(5, 0)}]
    worker.teardown()


def fields(service: ps.Service) -> tuple[str, ...]:
    """The fields of an answer, as the OpenAPI document has them."""
    (spec,) = service.stages
    return ArtifactStage.declare(**spec.setup).result.__struct_encode_fields__


def test_the_field_is_described_where_there_is_something_to_tell(saved, tmp_path):
    write_artifact(tmp_path / "affairs")
    assert fields(ps.export.load(saved, explain=True)) == ("score", "_missing")
    assert fields(ps.export.load(saved)) == ("score",)
    assert fields(ps.export.load(tmp_path / "affairs", explain=True)) == ("probability",)


def test_an_output_of_that_name_cannot_be_explained(tmp_path):
    write_artifact(tmp_path / "affairs")
    edit_manifest(tmp_path / "affairs", lambda found: found["graphs"][0]["outputs"][0].update(name="_missing"))
    assert ps.export.load(tmp_path / "affairs").name == "affairs"
    with pytest.raises(ps.ConfigError, match="has an output '_missing', which is the name that explain needs"):
        ps.export.load(tmp_path / "affairs", explain=True)
