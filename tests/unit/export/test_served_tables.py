"""A model with tables outside of its graph as a service answers with it."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
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
        with pytest.raises(ps.InvalidItem, match="table 'item' has the ids from 0 to 3, and 4 is looked up"):
            await service.predict(rows[2])


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
