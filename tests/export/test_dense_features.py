"""`DenseFeatures` in models of each kind: built, trained, written down, and answered by TensorFlow alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf

import penstock as ps
from penstock import embeddings as emb
from penstock import features as f
from penstock.errors import ConfigError
from penstock.features.tensorflow_ops import tf_signature

fc = tf.feature_column

AGE = fc.numeric_column("age")
EDUCATION = fc.categorical_column_with_hash_bucket("education", 4)
USER = fc.categorical_column_with_hash_bucket("user", 10**6)
TAGS = fc.categorical_column_with_hash_bucket("tags", 9)
ROWS = [
    {
        "age": 20.0 + place,
        "education": ["Bachelors", "HS-grad", "Masters", ""][place % 4],
        "user": f"user {place % 5}",
        "tags": ["new", "vip", "old"][: place % 4],
        "id": place % 10,
        "other": 9 - place % 10,
        "y": place % 2,
    }
    for place in range(24)
]


def f_of(size, width, shift=0.0):
    """Rows of an embedding of which each number is another one, so that a wrong row shows."""
    return np.sin(np.arange(size * width) + shift).reshape(size, width).astype(np.float32)


def keras_inputs(features):
    return {one.name: keras.Input(one.shape, dtype=one.dtype, name=one.name) for one in features.inputs}


def summing(width):
    """The answer: each number of what comes in, times its place."""
    return keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(places(width)))


def places(width):
    return np.arange(1.0, width + 1)[:, None]


# -- the layer --------------------------------------------------------------------------------------------------------

COLUMNS = [
    AGE,
    fc.indicator_column(EDUCATION),
    fc.embedding_column(TAGS, 2, combiner="sqrtn", max_norm=0.5, trainable=False),
    fc.embedding_column(fc.bucketized_column(AGE, [25.0, 30.0]), 3),
]
FEATURES = f.from_feature_columns(COLUMNS, max_length={"tags": 3})


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of a variable, in Keras
def test_a_model_with_it_is_written_down_without_its_columns(tmp_path):
    inputs = keras_inputs(FEATURES)
    model = keras.Model(inputs, keras.layers.Dense(2)(emb.DenseFeatures(COLUMNS, name="columns")(inputs)))
    encoded = FEATURES.encode(ROWS)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(encoded, verbose=0), model.predict(encoded, verbose=0))
    layer = model.get_layer("columns")
    config = json.loads(json.dumps(layer.get_config()))
    again = emb.DenseFeatures.from_config(config)
    assert again.get_config() == layer.get_config()
    assert again(encoded).shape == (24, 1 + 3 + 4 + 2)
    assert [weight.shape for weight in again.trainable_weights] == [(3, 3)]
    assert {name: type(layer) for name, layer in again.embeddings.items()} == {
        "age_bucketized_embedding": keras.layers.Embedding,
        "tags_embedding": keras.layers.Embedding,
    }


def test_an_embedding_that_is_swapped_before_the_layer_is_built_is_the_one_that_is_called():
    columns = [fc.embedding_column(EDUCATION, 2)]
    layer = emb.DenseFeatures(columns)
    assert not layer.embeddings["education_embedding"].built
    layer.embeddings["education_embedding"] = keras.layers.Embedding(4, 2, embeddings_initializer="ones")
    assert layer(f.from_feature_columns(columns).encode(ROWS[:1])).numpy().tolist() == [[1, 1]]
    assert len(layer.weights) == 1


def test_without_an_embedding_it_takes_the_tensor_too():
    dense = [AGE, fc.indicator_column(EDUCATION)]
    x = f.from_feature_columns(dense).encode(ROWS)["x"]
    layer = emb.DenseFeatures(dense)
    assert layer(x).numpy().tolist() == layer({"x": x}).numpy().tolist() == x.tolist()


v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, keras.initializers.TruncatedNormal(stddev=0.5)),
        (v1.random_normal_initializer(1.0, 2.0, seed=3), keras.initializers.RandomNormal(1.0, 2.0, seed=3)),
        (v1.random_uniform_initializer(-1.0), keras.initializers.RandomUniform(-1.0, 1.0)),
        (v1.constant_initializer(7.0), keras.initializers.Constant(7.0)),
        (v1.zeros_initializer(), keras.initializers.Zeros()),
        (keras.initializers.Orthogonal(seed=3), keras.initializers.Orthogonal(seed=3)),
    ],
)
def test_an_initializer_is_kept(given, kept):
    layer = emb.DenseFeatures([fc.embedding_column(EDUCATION, 4, initializer=given)])
    found = layer.embeddings["education_embedding"].embeddings_initializer
    assert keras.initializers.serialize(found) == keras.initializers.serialize(kept)


@pytest.mark.parametrize(
    "initializer", [v1.orthogonal_initializer(), v1.constant_initializer(np.ones((4, 4))), lambda *given, **more: None]
)
def test_an_initializer_that_keras_has_not_is_refused_by_name(initializer):
    with pytest.raises(ConfigError, match="column 'education_embedding': Keras has no initializer like this"):
        emb.DenseFeatures([fc.embedding_column(EDUCATION, 4, initializer=initializer)])


def test_inputs_of_other_columns_are_refused():
    encoded = FEATURES.encode(ROWS)
    del encoded["tags_embedding_weight"]
    with pytest.raises(ConfigError, match="was called without the input 'tags_embedding_weight'; it has x, age_buck"):
        emb.DenseFeatures(COLUMNS)(encoded)
    with pytest.raises(ConfigError, match="the input 'x' has 5 values, but the columns of DenseFeatures have 1"):
        emb.DenseFeatures([AGE])(encoded)


# -- models -----------------------------------------------------------------------------------------------------------


def design():
    """The model of ElasticDL's design, with an embedding beside it."""
    columns = [AGE, fc.indicator_column(EDUCATION), fc.embedding_column(USER, 4)]
    features = f.from_feature_columns(columns)
    inputs = keras_inputs(features)
    hidden = keras.layers.Dense(10, activation="relu")(emb.DenseFeatures(columns)(inputs))
    return features, keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


def sequential_over_columns():
    columns = [AGE, fc.indicator_column(EDUCATION), fc.embedding_column(EDUCATION, 2)]
    model = keras.Sequential([emb.DenseFeatures(columns), summing(7)])
    model.layers[0].embeddings["education_embedding"].build()
    model.layers[0].embeddings["education_embedding"].set_weights([f_of(4, 2)])

    def answers(encoded):
        rows = f_of(4, 2)[encoded["education_embedding"]] * encoded["education_embedding_weight"][:, None]
        return np.concatenate([encoded["x"][:, :1], rows, encoded["x"][:, 1:]], axis=1) @ places(7)

    return f.from_feature_columns(columns), model, answers


def functional_with_an_embedding():
    features = ps.Features({"id": f.Ids(10)})
    inputs = keras_inputs(features)
    embedding = keras.layers.Embedding(10, 3)
    model = keras.Model(inputs, summing(3)(embedding(inputs["id"])))
    embedding.set_weights([f_of(10, 3)])
    return features, model, lambda encoded: f_of(10, 3)[encoded["id"]] @ places(3)


class OfTwo(keras.Model):
    """Two embeddings of equal width."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Embedding(10, 3), keras.layers.Embedding(10, 3)
        self.out = summing(6)

    def call(self, inputs):
        return self.out(keras.ops.concatenate([self.first(inputs["id"]), self.second(inputs["other"])], axis=1))


def subclassed_with_two():
    model = OfTwo()
    for shift, layer in enumerate([model.first, model.second]):
        layer.build()
        layer.set_weights([f_of(10, 3, shift)])

    def answers(encoded):
        both = [f_of(10, 3)[encoded["id"]], f_of(10, 3, 1)[encoded["other"]]]
        return np.concatenate(both, axis=1) @ places(6)

    return ps.Features({"id": f.Ids(10), "other": f.Ids(10)}), model, answers


def an_embedding_column():
    columns = [fc.embedding_column(TAGS, 3)]
    features = f.from_feature_columns(columns, max_length={"tags": 3})
    inputs = keras_inputs(features)
    layer = emb.DenseFeatures(columns)
    model = keras.Model(inputs, summing(3)(layer(inputs)))
    layer.embeddings["tags_embedding"].set_weights([f_of(9, 3)])

    def answers(encoded):
        rows = [
            f_of(9, 3)[ids[: len(row["tags"])]].mean(axis=0) if row["tags"] else np.zeros(3)
            for ids, row in zip(encoded["tags_embedding"], ROWS, strict=True)
        ]
        return np.array(rows) @ places(3)

    return features, model, answers


CASES = [sequential_over_columns, functional_with_an_embedding, subclassed_with_two, an_embedding_column]

ALONE = """
import json, sys
sys.modules["penstock"] = sys.modules["keras"] = None
import tensorflow as tf
for path, columns in json.load(sys.stdin):
    model = tf.saved_model.load(path)
    raw = {name: tf.constant(values, dtype) for name, (dtype, values) in columns.items()}
    (answer,) = model.signatures["serving_default"](**raw).values()
    print(json.dumps(answer.numpy().tolist()))
"""


def raw_columns(features):
    """The rows as tensors of the raw signature: dtype and values by name."""
    columns = {}
    for name, spec in tf_signature(features).items():
        if name.endswith("_length"):
            columns[name] = ("int64", [len(row[name.removesuffix("_length")]) for row in ROWS])
        elif spec.shape.rank == 2:
            columns[name] = (spec.dtype.name, [[*row[name], *[""] * (3 - len(row[name]))] for row in ROWS])
        else:
            columns[name] = (spec.dtype.name, [row[name] for row in ROWS])
    return columns


def test_tensorflow_alone_answers_raw_features_as_models_whose_rows_were_outside(tmp_path):
    features, model = design()
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.01))
    ((path, table),) = rows.tables.items()
    assert path.endswith(".embeddings.user_embedding")
    model.compile(keras.optimizers.SGD(0.01), "binary_crossentropy")
    before = rows.store.fetch(table.name, np.arange(10**6)).rows
    model.fit(features.tf_dataset(ROWS, label="y", batch_size=8), epochs=2, shuffle=False, verbose=0)
    changed = (rows.store.fetch(table.name, np.arange(10**6)).rows != before).any(axis=1)
    assert 0 < np.count_nonzero(changed) <= 5  # as many users as there are
    saved = [(features, model.predict(features.encode(ROWS), verbose=0), save(rows, features, tmp_path / "design"))]
    for make in CASES:
        features, model, answers = make()
        rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.01))
        path = save(rows, features, tmp_path / make.__name__)
        saved.append((features, answers(features.encode(ROWS)), path))
    asked = json.dumps([(str(path), raw_columns(features)) for features, _, path in saved])
    done = subprocess.run([sys.executable, "-c", ALONE], input=asked, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    for (_, expected, path), line in zip(saved, done.stdout.splitlines(), strict=True):
        np.testing.assert_allclose(json.loads(line), expected, rtol=1e-5, atol=1e-5, err_msg=str(path))


def save(model, features, folder):
    return (
        ps.export.save(model, folder, features=features, reference_rows=ROWS[:3], validation_data=ROWS[3:]).path
        / "saved_model"
    )
