"""Artifacts with the graphs that can run code, through the process that proves."""

from __future__ import annotations

import io
import os

import keras
import pytest
import tensorflow as tf
import torch

import penstock as ps
from penstock import features as f
from penstock.artifact.drafting import new_artifact
from penstock.artifact.manifest import GraphEntry
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.proof import prove
from penstock.artifact.served_model import open_model
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused
from penstock.export.artifact_stage import ArtifactStage
from saved_artifacts import ANSWERED, finish
from tiny_artifacts import ROWS, SLOPE, TABLE, features, graph, model

FORMATS = ("onnx", "pt2", "saved_model")
PATHS = ("model.onnx", "model.pt2", "saved_model")


class TorchModel(torch.nn.Module):
    def __init__(self, shift=0.0):
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(TABLE))
        self.register_buffer("slope", torch.tensor(SLOPE))
        self.shift = shift

    def forward(self, x, occupation):
        return torch.sigmoid((self.table[occupation] * x) @ self.slope) + self.shift


class KerasLike(tf.Module):
    def __init__(self):
        super().__init__()
        self.table, self.slope = tf.Variable(TABLE), tf.Variable(SLOPE)

    @tf.function(
        input_signature=[tf.TensorSpec((None, 2), tf.float32, "x"), tf.TensorSpec((None,), tf.int64, "occupation")]
    )
    def model(self, x, occupation):
        return {"probability": tf.sigmoid(tf.linalg.matvec(tf.gather(self.table, occupation) * x, self.slope))}


def torch_bytes(module) -> bytes:
    rows = torch.export.Dim("rows")
    inputs = {"x": torch.zeros(4, 2), "occupation": torch.zeros(4, dtype=torch.int64)}
    program = torch.export.export(module, (), kwargs=inputs, dynamic_shapes={name: {0: rows} for name in inputs})
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def save(path, *, shift=0.0) -> str:
    inputs = features().inputs
    with new_artifact(path, name="affairs") as draft:
        (draft.folder / "model.onnx").write_bytes(graph())
        (draft.folder / "model.pt2").write_bytes(torch_bytes(TorchModel(shift)))
        module = KerasLike()
        tf.saved_model.save(module, os.fspath(draft.folder / "saved_model"), signatures={"model": module.model})
        finish(draft, graphs=[GraphEntry(name, at, inputs, ANSWERED) for name, at in zip(FORMATS, PATHS, strict=True)])
        draft.publish()
    return draft.digest


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("artifacts") / "affairs"
    save(path)
    return path


def test_three_graphs_of_one_model_are_proved_together(artifact):
    found = prove(artifact, digest=open_artifact(artifact).digest)
    assert found.rows == len(ROWS)
    assert 0.0 <= found.worst["probability"] < 1e-6


@pytest.mark.parametrize("kind", ["pt2", "saved_model"])
def test_a_graph_that_can_run_code_is_opened_with_trust_and_proved_with_the_right_digest(artifact, kind):
    found = open_artifact(artifact)
    with pytest.raises(ConfigError, match="can run code"):
        open_model(found, kind)
    with pytest.raises(ArtifactInvalid, match="is expected"):
        open_artifact(artifact, digest="0" * 64)
    inputs = found.probes().inputs
    opened = open_model(open_artifact(artifact, trust=True), kind)
    assert opened.run(inputs)[0] == pytest.approx(found.probes().outputs["probability"], abs=1e-6)
    opened.close()
    assert prove(artifact, digest=found.digest, formats=(kind,)).rows == len(ROWS)


@pytest.mark.parametrize("kind", FORMATS)
async def test_each_format_is_served(artifact, kind):
    async with ps.export.load(artifact, model_format=kind, trust_model_code=True).configured(inline=True) as service:
        answers = await service.predict_many(ROWS)
    expected = model(**features().encode(ROWS))
    assert [answer["probability"] for answer in answers] == pytest.approx(expected.tolist(), abs=1e-6)


def test_the_graph_that_answers_otherwise_is_named_by_its_format(tmp_path):
    save(tmp_path / "affairs", shift=0.5)
    with pytest.raises(ExportRefused, match="format 'pt2', output 'probability'") as caught:
        prove(tmp_path / "affairs", trust=True)
    assert caught.value.format == "pt2"
    assert caught.value.got - caught.value.expected == pytest.approx(0.5, abs=1e-6)
    assert prove(tmp_path / "affairs", formats=("saved_model",), trust=True).rows == len(ROWS)


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(3, 1)

    def forward(self, shop, size):
        return self.table(shop)[:, 0] + size


def looked_up():
    """A Keras model that raises at a town that it does not know."""
    town, size = keras.Input((1,), dtype="string", name="town"), keras.Input((1,), name="size")
    number = keras.layers.StringLookup(vocabulary=["Bonn", "Rome"], num_oov_indices=0)(town)
    return keras.Model({"town": town, "size": size}, keras.ops.cast(number, "float32") + size)


@pytest.mark.parametrize(
    ("make", "kind", "values", "unknown", "format_"),
    [
        (Embedded, f.Ids(), [0, 1, 2], 7, "onnx"),
        (Embedded, f.Ids(), [0, 1, 2], 7, "pt2"),
        (looked_up, f.Text(), ["Bonn", "Rome"], "Oslo", "saved_model"),
    ],
)
def test_a_value_at_which_the_graph_raises_is_the_callers(tmp_path, make, kind, values, unknown, format_):
    name = "town" if kind == f.Text() else "shop"
    rows = [{name: value, "size": float(place)} for place, value in enumerate(values)]
    spec = f.Features({name: kind, "size": f.Numeric()}).fit(rows)
    ps.export.save(make(), tmp_path / "a", features=spec, reference_rows=rows, formats=[format_])
    stage = ArtifactStage()
    stage.setup(path=str(tmp_path / "a"), digest=open_artifact(tmp_path / "a").digest, format=format_, trust=True)
    (refused,) = stage.predict([{name: unknown, "size": 1.0}])
    assert isinstance(refused, ps.InvalidItem)
    assert str(refused) == f"{unknown!r} is not a value that the model accepts at `$.{name}`"
    assert [type(answer) for answer in stage.predict(rows)] == [dict] * len(rows)
    stage.teardown()
