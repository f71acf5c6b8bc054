"""What has gone wrong where trained models are served, tried here with `save`: each is refused, or right."""

import os
import time

import msgspec
import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
torch = pytest.importorskip("torch")
pytest.importorskip("skl2onnx")
keras = pytest.importorskip("keras")
pandas = pytest.importorskip("pandas")

import tensorflow as tf  # noqa: E402
from sklearn.datasets import load_diabetes  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import RandomForestRegressor  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402
from torch import nn  # noqa: E402

import penstock as ps  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.artifact.opened_artifact import open_artifact  # noqa: E402
from penstock.artifact.served_model import open_model  # noqa: E402
from penstock.errors import ConfigError, ExportRefused  # noqa: E402

ROWS = [{"a": float(place), "b": 1.0 - place} for place in range(8)]
FEATURES = ps.Features({"a": f.Numeric(), "b": f.Numeric()}, concat_into="x").fit(ROWS)
LARGE_IDS = [2**24 + 1, 2**31 + 5, 2**40 + 7, -1, 2**63 - 1]


class Returning(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, **inputs):
        return self.function(**inputs)


class Chained(nn.Sequential):
    def forward(self, x):
        return super().forward(x)


class OfKeras(keras.Model):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs["x"])


def save(model, tmp_path, **options):
    return ps.export.save(model, tmp_path / "model", **{"features": FEATURES, "reference_rows": ROWS, **options})


def refused(model, tmp_path, **options):
    """The refusal of a model, which leaves nothing behind."""
    with pytest.raises(ExportRefused) as caught:
        save(model, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
    return caught.value


# -- a graph that answers otherwise than its model --------------------------------------------------------------------


def diabetes():
    data = load_diabetes()
    rows = [dict(zip(data.feature_names, map(float, row), strict=True)) for row in data.data]
    features = ps.Features({name: f.Numeric() for name in data.feature_names}, concat_into="x").fit(rows)
    return rows, features, features.encode(rows)["x"], data.target


def test_a_scaler_before_trees_in_float32_is_refused_with_its_worst_row(tmp_path):
    """A value that is rounded to the other side of a threshold takes another branch, and the answer is far off."""
    rows, features, x, target = diabetes()
    model = make_pipeline(StandardScaler(), RandomForestRegressor(10, random_state=0)).fit(x, target)
    error = refused(model, tmp_path, features=features, reference_rows=rows[:5], validation_data=rows)
    assert (error.format, error.output) == ("onnx", "output")
    assert error.row >= 5
    assert error.expected == pytest.approx(model.predict(x[error.row - 5 : error.row - 4])[0], rel=1e-6)
    assert abs(error.expected - error.got) > 1
    assert f"row {error.row}" in str(error)


def test_trees_that_are_scaled_by_the_features_are_right(tmp_path):
    """What the refusal leads to: the features scale in float64, and the trees see the same float32 everywhere."""
    rows, unscaled, _, target = diabetes()
    features = ps.Features({name: f.Numeric(scale="standard") for name in unscaled.columns}, concat_into="x").fit(rows)
    model = RandomForestRegressor(10, random_state=0).fit(features.encode(rows)["x"], target)
    report = save(model, tmp_path, features=features, reference_rows=rows[:5], validation_data=rows)
    assert report.rows == 447
    assert report.max_difference["output"] < 1e-3


@pytest.mark.parametrize(
    "model",
    [Returning(lambda x: x - x.mean(0)), OfKeras(lambda x: x - tf.reduce_mean(x, axis=0))],
    ids=["torch", "keras"],
)
def test_an_answer_that_depends_on_the_other_rows_of_the_batch_is_refused(tmp_path, model):
    error = refused(model, tmp_path)
    assert error.output == "output"
    assert error.format in ("onnx", "saved_model")


def among_many(x):
    """Whether a model is asked about several rows; a graph of Keras is traced without a number of rows."""
    return x.shape[0] is None or x.shape[0] > 1


def regression_that_doubles_alone():
    model = LinearRegression().fit(FEATURES.encode(ROWS)["x"], range(8))
    predict = model.predict
    model.predict = lambda x: predict(x) if among_many(x) else 2 * predict(x)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Returning(lambda x: x.sum(1) if among_many(x) else 2 * x.sum(1)),
        OfKeras(lambda x: tf.reduce_sum(x, axis=1) if among_many(x) else 2 * tf.reduce_sum(x, axis=1)),
        regression_that_doubles_alone(),
    ],
    ids=["torch", "keras", "scikit-learn"],
)
def test_a_model_that_answers_one_row_otherwise_than_many_is_refused(tmp_path, model):
    """Each graph has the branch of many rows, for one row too, and the proof finds no difference."""
    error = refused(model, tmp_path, reference_rows=ROWS[1:], validation_data=ROWS)
    assert (
        "the output of the model for a row depends on the batch: in a batch of 1 it differs from that among 7 rows"
        in str(error)
    )
    assert (error.output, error.row, error.got) == ("output", 0, pytest.approx(2 * error.expected))


@pytest.mark.parametrize(
    "model",
    [
        Chained(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.LayerNorm(3), nn.Dropout()),
        keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.LayerNormalization()]),
        make_pipeline(StandardScaler(), PCA(2)).fit(FEATURES.encode(ROWS)["x"]),
    ],
    ids=["torch", "keras", "scikit-learn"],
)
def test_what_a_model_has_learnt_of_batches_is_not_taken_for_a_dependence_on_them(tmp_path, model):
    assert save(model, tmp_path).rows == 8


def test_an_answer_without_its_batch_axis_for_one_row_is_refused(tmp_path):
    error = refused(Returning(lambda x: x.sum(1, keepdim=True).squeeze()), tmp_path)
    assert error.format == "onnx"
    assert "has the shape ()" in str(error)


def test_a_size_that_tensorflow_has_fixed_is_refused_by_the_proof(tmp_path):
    error = refused(OfKeras(lambda x: x + tf.zeros([8, 1])), tmp_path)
    assert error.format == "saved_model"


# -- a model that does not answer the same twice ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        Returning(lambda x: x.sum(1) + time.time() % 1),
        OfKeras(lambda x: tf.reduce_sum(x, axis=1) + tf.cast(tf.timestamp() % 1.0, tf.float32)),
        Returning(lambda x: nn.functional.dropout(x, 0.5, training=True)),
        OfKeras(lambda x: tf.nn.dropout(x, 0.5)),
    ],
    ids=["torch reads the clock", "keras reads the clock", "torch drops out", "keras drops out"],
)
def test_a_model_that_answers_otherwise_when_it_is_asked_again_is_refused(tmp_path, model):
    error = refused(model, tmp_path)
    assert "Check for a clock, random numbers" in str(error)
    assert (error.output, error.expected != error.got) == ("output", True)


@pytest.mark.parametrize("model", [Returning(lambda x: (x - 3).log()), OfKeras(lambda x: tf.math.log(x - 3))])
def test_a_model_that_answers_nan_is_refused_with_the_row(tmp_path, model):
    error = refused(model, tmp_path, validation_data=ROWS)
    assert "the model itself returns NaN" in str(error)
    assert (error.output, error.row) == ("output", 0)


# -- ids --------------------------------------------------------------------------------------------------------------


def encoded_from_json(path, ids):
    """The inputs as a request has them: decoded from JSON as the item type that the artifact's features declare."""
    artifact = open_artifact(path, trust=True)
    items = [msgspec.json.decode(b'{"user": %d}' % user, type=artifact.features.item_type()) for user in ids]
    return artifact, artifact.features.encode_rows(items).inputs


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_ids_of_64_bits_are_exact_from_json_to_every_graph(tmp_path, framework, capsys):
    features = ps.Features({"user": f.Ids()})
    rows = [{"user": user} for user in LARGE_IDS]
    model = Returning(lambda user: {"user": user + 0, "low": user % 1000})
    if framework == "keras":
        model = keras.Sequential([keras.Input((), dtype="int64"), keras.layers.Lambda(lambda user: user + 0)])
    formats = {"torch": ("onnx", "pt2"), "keras": ("saved_model",)}[framework]
    report = save(model, tmp_path, features=features, reference_rows=rows, formats=formats)
    assert set(report.max_difference.values()) == {0.0}
    assert "Ids without size are not checked when they are served: user" in capsys.readouterr().err
    artifact, inputs = encoded_from_json(report.path, LARGE_IDS)
    for format_ in formats:
        graph = open_model(artifact, format_)
        assert graph.run(inputs)[0].tolist() == LARGE_IDS
        graph.close()


def test_ids_of_64_bits_are_told_apart_by_a_graph_of_scikit_learn(tmp_path):
    features = ps.Features({"user": f.Ids()})
    ids = sorted({*LARGE_IDS, 2**24, 2**31, 2**40, 2**63 - 2})
    rows = [{"user": user} for user in ids]
    frame = pandas.DataFrame(features.encode(rows))
    names = np.array([f"user {user}" for user in ids])
    model = make_pipeline(OneHotEncoder(), LogisticRegression(C=1e6)).fit(frame, names)
    assert model.predict(frame).tolist() == names.tolist()
    report = save(model, tmp_path, features=features, reference_rows=rows)
    artifact, inputs = encoded_from_json(report.path, ids)
    graph = open_model(artifact, "onnx")
    assert graph.run(inputs)[0].tolist() == names.tolist()


# -- size, interruption, arguments ------------------------------------------------------------------------------------


def test_an_interrupted_save_leaves_nothing_and_the_model_as_it_was(tmp_path):
    asked = []

    def interrupt(x):
        asked.append(len(x))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return x

    model = Returning(interrupt).train()
    with pytest.raises(KeyboardInterrupt):
        save(model, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert model.training


def test_a_model_of_nothing_known_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model is a builtins\.dict: save takes a torch\.nn\.Module"):
        save({}, tmp_path)
    with pytest.raises(ConfigError, match="an object and not its class"):
        save(Returning, tmp_path)
