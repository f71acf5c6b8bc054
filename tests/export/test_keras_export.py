import os
import subprocess
import sys

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import penstock as ps  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.errors import ConfigError, ExportRefused  # noqa: E402
from penstock.export.exporter import GraphSignature  # noqa: E402
from penstock.export.keras_model import keras_exporter  # noqa: E402
from penstock.export.naming import describe_outputs, name_outputs  # noqa: E402
from penstock.graphs.tensorflow_graph import TensorflowGraph  # noqa: E402

ROWS = [
    {"age": 20.0 + place, "rate": place % 4 / 2, "occupation": "abc"[place % 3], "user": 2**40 + place, "note": "A b"}
    for place in range(8)
]
AGE, RATE = f.Numeric(scale="standard"), f.Numeric()
MATRIX = ps.Features({"age": AGE, "rate": RATE}, concat_into="x").fit(ROWS)
MIXED = ps.Features({"age": AGE, "rate": RATE, "occupation": f.Vocabulary(max_size=9)}, concat_into="x").fit(ROWS)
IDS = ps.Features({"user": f.Ids()})
TEXT = ps.Features({"note": f.Text()})


def dense(inputs):
    return keras.layers.Dense(1, activation="sigmoid")(inputs)


def functional_inputs(**dtypes):
    x = keras.Input((2,), name="x", dtype=dtypes.get("x", "float32"))
    occupation = keras.Input((), name="occupation", dtype=dtypes.get("occupation", "int64"))
    return x, occupation


def functional(arrange):
    """A functional model whose inputs are arranged by a function."""
    x, occupation = functional_inputs()
    embedded = keras.layers.Embedding(4, 3)(occupation)
    both = keras.layers.Dropout(0.5)(keras.layers.Concatenate()([x, embedded]))
    return keras.Model(arrange(x, occupation), {"probability": dense(both)})


class OfDict(keras.Model):
    """Subclassed: takes a dict, has a layer in a list, and branches on a value."""

    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(4, 3)
        self.parts = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(2)]

    def call(self, inputs, training=False):
        out = keras.ops.concatenate([inputs["x"], self.embed(inputs["occupation"])], axis=1)
        for layer in self.parts:
            out = layer(out, training=training) if not isinstance(layer, keras.layers.Dense) else layer(out)
        return out, inputs["occupation"]


class OfTensor(keras.Model):
    """Subclassed: takes its one input as it is, and knows of no training."""

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        return self.out(inputs)


class OfTensorInTraining(keras.Model):
    """Subclassed: has to be told whether it trains, and has a model inside that is built where it is first called."""

    def __init__(self):
        super().__init__()
        self.tower = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)])

    def call(self, inputs, training):
        return self.tower(inputs, training=training)


class Branching(OfTensor):
    """Looks at values in Python, which Keras does only while it is called eagerly."""

    def call(self, inputs):
        return self.out(inputs if tf.reduce_sum(inputs) > 0 else -inputs)


class Nested(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = functional(lambda x, occupation: {"x": x, "occupation": occupation})
        self.tower = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])

    def call(self, inputs):
        return {"both": self.inner(inputs)["probability"] + self.tower(inputs["x"])}


class OfLists(keras.Model):
    """Has its layers in a list of lists, and is built by its first call."""

    def __init__(self, *layers):
        super().__init__()
        self.blocks = [[layer] for layer in layers]

    def call(self, inputs):
        for (layer,) in self.blocks:
            inputs = layer(inputs)
        return inputs


class Joining(keras.layers.Layer):
    """Takes a dict."""

    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(4, 3)

    def call(self, inputs):
        return keras.ops.concatenate([inputs["x"], self.embed(inputs["occupation"])], axis=1)


def sequential_of_dict():
    model = keras.Sequential([Joining(), keras.layers.Dense(1)])
    model(MIXED.encode(ROWS))
    return model


def single_functional():
    x = keras.Input((2,), name="anything")
    return keras.Model(x, dense(x))


def with_text():
    words = keras.layers.TextVectorization(output_sequence_length=3, vocabulary=["a", "b", "c"])
    return keras.Sequential([keras.Input((), dtype="string"), words, keras.layers.Embedding(9, 2)])


MODELS = {
    "sequential": (MATRIX, lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), ("output",)),
    "unbuilt sequential": (MATRIX, lambda: keras.Sequential([keras.layers.Dense(1)]), ("output",)),
    "sequential that was called on a dict": (MIXED, sequential_of_dict, ("output",)),
    "functional of one": (MATRIX, single_functional, ("output",)),
    "functional of a dict": (MIXED, lambda: functional(lambda x, o: {"x": x, "occupation": o}), ("probability",)),
    "functional of a list": (MIXED, lambda: functional(lambda x, o: [o, x]), ("probability",)),
    "functional of a tuple": (MIXED, lambda: functional(lambda x, o: (x, o)), ("probability",)),
    "subclassed, of a dict": (MIXED, OfDict, ("output_0", "output_1")),
    "subclassed, of a tensor": (MATRIX, OfTensor, ("output",)),
    "subclassed, with training": (MATRIX, OfTensorInTraining, ("output",)),
    "nested": (MIXED, Nested, ("both",)),
    "layers in lists of lists": (MATRIX, lambda: OfLists(keras.layers.Dense(3), keras.layers.Dense(1)), ("output",)),
    "text": (TEXT, with_text, ("output",)),
}


def exported(exporter, features, rows, folder):
    """What the model answered by name, and the graph of it that was written."""
    exporter.check_inputs(features.inputs)
    inputs = features.encode(rows)
    answer = exporter.answer(inputs)
    names = name_outputs(answer, None)
    described = describe_outputs(names, answer.arrays, len(rows))
    written = exporter.write("saved_model", folder, GraphSignature(features.inputs, described, inputs))
    graph = TensorflowGraph(folder / written, inputs=features.inputs, outputs=described, threads=1)
    return dict(zip(names, answer.arrays, strict=True)), graph


@pytest.mark.parametrize("kind", MODELS)
def test_both_signatures_answer_as_the_model_for_any_batch(tmp_path, kind, capfd):
    features, make, names = MODELS[kind]
    answered, graph = exported(keras_exporter(make(), features), features, ROWS, tmp_path)
    assert tuple(answered) == names
    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    for rows in (1, 3, 8):
        raw = {name: tf.constant(np.array([row[name] for row in ROWS[:rows]])) for name in features.columns}
        of_raw = loaded.signatures["serving_default"](**raw)
        of_encoded = graph.run(features.encode(ROWS[:rows]))
        for (name, expected), array in zip(answered.items(), of_encoded, strict=True):
            np.testing.assert_allclose(array, expected[:rows], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(of_raw[name], expected[:rows], rtol=1e-5, atol=1e-6)
    graph.close()
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")


def test_a_table_that_tensorflow_does_not_find_is_refused_with_what_to_do(tmp_path):
    model = OfLists(keras.layers.StringLookup(vocabulary=["a", "b"]), keras.layers.Embedding(3, 2))
    with pytest.raises(ExportRefused, match="such as one in a list inside of a list: assign it, or the layer"):
        exported(keras_exporter(model, TEXT), TEXT, ROWS, tmp_path)


def test_a_model_that_branches_on_values_is_refused(tmp_path):
    with pytest.raises(ExportRefused, match="TensorFlow cannot trace the model"):
        exported(keras_exporter(Branching(), MATRIX), MATRIX, ROWS, tmp_path)


class Embedding(keras.Model):
    """Takes ids, is built by a call, and has no signature of its own."""

    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(), dtype="int64", initializer="ones", trainable=False)

    def call(self, inputs):
        return {"id": inputs["user"] * self.scale, "low": inputs["user"] % 1000}


def test_ids_beyond_float32_and_int32_are_exact_in_both_signatures(tmp_path):
    ids = [2**24 + 1, 2**31 + 5, 2**40 + 7, -1, 2**63 - 1]
    rows = [{"user": user} for user in ids]
    model = Embedding()
    model({"user": tf.constant([1], tf.int64)})
    answered, graph = exported(keras_exporter(model, IDS), IDS, rows, tmp_path)
    assert answered["id"].tolist() == ids
    assert graph.run(IDS.encode(rows))[0].tolist() == ids
    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    of_raw = loaded.signatures["serving_default"](user=tf.constant(ids, tf.int64))
    assert of_raw["id"].numpy().tolist() == ids
    assert of_raw["low"].numpy().tolist() == [user % 1000 for user in ids]


def test_a_model_is_saved_proved_and_served_by_tensorflow_alone(tmp_path):
    model = functional(lambda x, occupation: {"x": x, "occupation": occupation})
    model.compile("adam", "binary_crossentropy")
    model.fit(MIXED.encode(ROWS), {"probability": np.ones((8, 1))}, verbose=0)
    report = ps.export.save(
        model, tmp_path / "affairs", features=MIXED, reference_rows=ROWS[:3], validation_data=ROWS[3:]
    )
    assert report.rows == 8
    assert report.max_difference["probability"] <= 1e-5
    expected = model.predict(MIXED.encode(ROWS), verbose=0)["probability"].ravel().tolist()
    program = f"""
import sys, numpy as np
sys.modules["penstock"] = sys.modules["keras"] = None
import tensorflow as tf
loaded = tf.saved_model.load({str(report.path / "saved_model")!r})
rows = {ROWS!r}
raw = {{name: tf.constant([row[name] for row in rows]) for name in ("age", "rate", "occupation")}}
raw["age"], raw["rate"] = tf.cast(raw["age"], tf.float64), tf.cast(raw["rate"], tf.float64)
found = loaded.signatures["serving_default"](**raw)["probability"]
np.testing.assert_allclose(np.ravel(found), {expected!r}, rtol=1e-5, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=250)


def with_python(function):
    x = keras.Input((2,), name="x")

    class Calling(keras.layers.Layer):
        def call(self, inputs):
            return function(inputs)

        def compute_output_shape(self, shape):
            return shape

    return keras.Model(x, dense(Calling()(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.ensure_shape(tf.py_function(lambda part: part + 1, [x], tf.float32), [None, 2]),
        lambda x: tf.ensure_shape(tf.numpy_function(lambda part: part + 1, [x], tf.float32), [None, 2]),
    ],
    ids=["py_function", "numpy_function"],
)
def test_a_graph_that_calls_python_is_refused_by_the_name_of_the_operation(tmp_path, function):
    with pytest.raises(ExportRefused, match=r"operation '\S+' is a (Eager)?PyFunc") as caught:
        exported(keras_exporter(with_python(function), MATRIX), MATRIX, ROWS, tmp_path)
    assert caught.value.format == "saved_model"
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_calls_python_inside_of_a_branch_is_refused_too(tmp_path):
    def function(x):
        called = tf.function(lambda part: tf.numpy_function(lambda there: there + 1, [part], tf.float32))
        return tf.ensure_shape(called(x), [None, 2])

    with pytest.raises(ExportRefused, match="PyFunc"):
        exported(keras_exporter(with_python(function), MATRIX), MATRIX, ROWS, tmp_path)


@pytest.mark.parametrize(("name", "dtype"), [("occupation", "int32"), ("occupation", "float32"), ("x", "float16")])
def test_an_input_narrower_than_the_feature_is_refused_by_name(name, dtype):
    x, occupation = functional_inputs(**{name: dtype})
    embedded = keras.layers.Embedding(4, 3)(occupation)
    model = keras.Model([x, occupation], dense(keras.layers.Concatenate()([x, embedded])))
    wanted = "int64" if name == "occupation" else "float32"
    with pytest.raises(ConfigError, match=rf"input '{name}': the model takes {dtype}, but the feature is '{wanted}'"):
        keras_exporter(model, MIXED).check_inputs(MIXED.inputs)


def test_the_float32_that_keras_takes_for_an_id_by_default_is_refused():
    user = keras.Input((1,), name="user")
    for model in (keras.Model(user, dense(user)), keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])):
        with pytest.raises(ConfigError, match="input 'user': the model takes float32, but the feature is 'int64'"):
            keras_exporter(model, IDS).check_inputs(IDS.inputs)


def test_a_feature_space_that_hashes_int32_is_refused():
    """Keras hashes another number when a dataset hands the space an int64 than when a served model does."""
    space = keras.utils.FeatureSpace({"user": keras.utils.FeatureSpace.integer_hashed(num_bins=1000)})
    space.adapt(tf.data.Dataset.from_tensor_slices({"user": np.arange(9)}).batch(3))
    encoded = space.get_encoded_features()
    model = keras.Model(space.get_inputs(), dense(encoded))
    with pytest.raises(ConfigError, match="input 'user': the model takes int32, but the feature is 'int64'"):
        keras_exporter(model, IDS).check_inputs(IDS.inputs)


def test_inputs_that_do_not_fit_the_model_are_told():
    x, occupation = functional_inputs()
    model = keras.Model([x, occupation], dense(x))
    with pytest.raises(ConfigError, match="the model has the inputs occupation, x, but the features have x"):
        keras_exporter(model, MATRIX).check_inputs(MATRIX.inputs)
    with pytest.raises(ConfigError, match=r"a Sequential model has one input, .* x, occupation"):
        keras_exporter(keras.Sequential([keras.layers.Dense(1)]), MIXED).check_inputs(MIXED.inputs)


@pytest.mark.parametrize("name", ["marital status", "größe", "_id"])
def test_names_that_a_saved_model_cannot_have_are_refused(name):
    features = ps.Features({"x": f.Numeric(column=name)})
    with pytest.raises(ConfigError, match=f"'{name}' cannot be the name of an input or a column of a SavedModel"):
        keras_exporter(OfTensor(), features).check_inputs(features.inputs)


def test_a_model_that_cannot_be_called_says_what_it_was_called_with():
    with pytest.raises(ConfigError, match=r"neither a dict of its one input nor the tensor itself"):
        keras_exporter(OfDict(), MATRIX).answer(MATRIX.encode(ROWS))
    with pytest.raises(ConfigError, match=r"\{'x': float32\[8, 2\], 'occupation': int64\[8\]\}"):
        keras_exporter(OfTensor(), MIXED).answer(MIXED.encode(ROWS))


def test_another_backend_is_refused_by_name():
    """With PyTorch behind it, a model of Keras is a module of PyTorch too."""
    program = """
import keras, penstock as ps
from penstock import features as f
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
try:
    ps.export.save(model, "/nowhere", features=ps.Features({"x": f.Numeric()}), reference_rows=[{"x": 1.0}])
except ps.ConfigError as error:
    print(error)
"""
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=250
    )
    assert "Keras runs on the backend 'torch', but save supports only 'tensorflow'" in done.stdout
