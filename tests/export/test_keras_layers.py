"""Embedding layers of Keras whose rows lie in a training store: swapped, trained, restored, saved."""

import collections
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
h5py = pytest.importorskip("h5py")  # Keras needs it

import penstock as ps  # noqa: E402
from penstock import embeddings as emb  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.embeddings import offloading  # noqa: E402
from penstock.embeddings.memory_store import MemoryTrainingStore  # noqa: E402
from penstock.embeddings.offloading import Offloaded  # noqa: E402
from penstock.errors import ConfigError, EmbeddingError, ExportRefused, TableMismatch  # noqa: E402
from penstock.export.exporter import GraphSignature  # noqa: E402
from penstock.export.naming import describe_outputs, name_outputs  # noqa: E402
from penstock.export.offloaded_model import offloaded_exporter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # of a variable, where Keras writes it

SIZE, WIDTH, MANY = 50, 4, 3
ROWS = [{"user": place % SIZE, "item": place * 7 % SIZE} for place in range(64)]
LABELS = np.cos(np.arange(64.0, dtype=np.float32))[:, None]
BOTH = ps.Features({"user": f.Ids(size=SIZE), "item": f.Ids(size=SIZE)}).fit(ROWS)
USER = ps.Features({"user": f.Ids(size=SIZE)}).fit(ROWS)
FAR = np.array([2**24 + 1, 2**31 + 5, 2**40 + 7, 2**24, 3], np.int64)


def known(ids, phase=0):
    """Row i of a table is f(i), another for each column and each phase."""
    columns = np.arange(WIDTH)
    return np.sin(np.asarray(ids)[:, None] * (columns + 1) + phase).astype(np.float32)


def table(phase=0, size=SIZE, **options):
    return keras.layers.Embedding(size, WIDTH, **options)


def head():
    return keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.3))


def flat():
    return keras.layers.Flatten()


class TwoTables(keras.Model):
    """Subclassed: a table in a list, one in a dict."""

    def __init__(self):
        super().__init__()
        self.towers = [{"table": table()}, table()]
        self.head = head()

    def call(self, inputs):
        first, second = self.towers
        return self.head(keras.ops.concatenate([first["table"](inputs["user"]), second(inputs["item"])], axis=1))


class OneTable(keras.Model):
    def __init__(self, *, twice=False, **options):
        super().__init__(**options)
        self._user, self.head, self.twice = table(), head(), twice

    def call(self, inputs):
        first = self._user(inputs["user"])
        return self.head(keras.ops.concatenate([first, self._user(inputs["item"])], axis=1) if self.twice else first)


class Around(keras.Model):
    """Subclassed around another model."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.shift = inner, keras.layers.Rescaling(1.0, 0.5)

    def call(self, inputs):
        return self.shift(self.inner(inputs))


class Lookup(keras.layers.Layer):
    """A layer of one's own with tables in a tuple."""

    def __init__(self, count):
        super().__init__()
        self.parts = tuple(table() for _ in range(count))

    def call(self, user, item):
        parts = self.parts if len(self.parts) == 2 else (*self.parts, *self.parts)
        return keras.ops.concatenate([part(ids) for part, ids in zip(parts, (user, item), strict=True)], axis=1)


def inputs_of(*names):
    return {name: keras.Input((), dtype="int64", name=name) for name in names}


def functional(count, *, twice=False):
    given = inputs_of("user", "item") if count == 2 or twice else inputs_of("user")
    layers = [table() for _ in range(count)] * (2 if twice else 1)
    parts = [layer(ids) for layer, ids in zip(layers, given.values(), strict=True)]
    return keras.Model(given, head()(keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]))


def subclassed_in_functional(count):
    given = inputs_of("user", "item")
    return keras.Model(given, head()(Lookup(count)(**given)))


MODELS = {
    "sequential, one, unbuilt": (USER, lambda: keras.Sequential([table(), flat(), head()]), ["layers.0"]),
    "sequential, one, built": (
        USER,
        lambda: keras.Sequential([keras.Input((), dtype="int64"), table(), flat(), head()]),
        ["layers.0"],
    ),
    "functional, one": (USER, lambda: functional(1), ["layers.1"]),
    "functional, two": (BOTH, lambda: functional(2), ["layers.2", "layers.3"]),
    "functional, twice": (BOTH, lambda: functional(1, twice=True), ["layers.2"]),
    "subclassed, one": (USER, OneTable, ["_user"]),
    "subclassed, two": (BOTH, TwoTables, ["towers.0.table", "towers.1"]),
    "subclassed, twice": (BOTH, lambda: OneTable(twice=True), ["_user"]),
    "functional in subclassed, one": (USER, lambda: Around(functional(1)), ["inner.layers.1"]),
    "functional in subclassed, two": (BOTH, lambda: Around(functional(2)), ["inner.layers.2", "inner.layers.3"]),
    "functional in subclassed, twice": (BOTH, lambda: Around(functional(1, twice=True)), ["inner.layers.2"]),
    "sequential in subclassed, one": (
        USER,
        lambda: Around(keras.Sequential([table(), flat(), head()])),
        ["inner.layers.0"],
    ),
    "subclassed in functional, two": (
        BOTH,
        lambda: subclassed_in_functional(2),
        ["layers.2.parts.0", "layers.2.parts.1"],
    ),
    "subclassed in functional, twice": (BOTH, lambda: subclassed_in_functional(1), ["layers.2.parts.0"]),
}
"""Features, what makes the model, and the paths of its tables; a subclassed one is tried built and unbuilt."""


def taken(features, rows=ROWS):
    """What the model takes: a Sequential of one input takes its tensor."""
    return features.encode(rows)


def fed(model, inputs):
    sequential = isinstance(getattr(model, "inner", model), keras.Sequential)
    return next(iter(inputs.values())) if sequential else inputs


def embeddings_in(model):
    return offloading.framework_of(model).embedding_layers(model)


def offloaded_with_known_rows(make, features, paths, *, built, store="memory:", **options):
    model = make()
    if built:
        model(fed(model, {name: array[:1] for name, array in features.encode(ROWS).items()}))
        for phase, (path, layer) in enumerate(embeddings_in(model).items()):
            assert path == paths[phase]
            layer.set_weights([known(range(SIZE), phase)])
    rows = emb.offload(model, store, optimizer=emb.SGD(lr=0.5), **options)
    assert list(rows.tables) == paths
    if not built:
        for phase, path in enumerate(paths):
            rows.store.load(path, np.arange(SIZE), known(range(SIZE), phase))
    return rows


CASES = [
    pytest.param(*MODELS[name], built, id=f"{name}{', built' * built}")
    for name in MODELS
    for built in (False, True)
    if not (built and name.startswith("sequential, one, built"))
    and (built or not name.startswith(("functional, ", "sequential, one, built")))
]


ALONE = """
import sys
sys.modules["keras"] = sys.modules["penstock"] = None
import numpy as np, tensorflow as tf

for line in sys.stdin:
    folder = line.strip()
    model = tf.saved_model.load(folder + "/saved_model")
    columns = np.load(folder + "/columns.npz")
    (answer,) = model.signatures["serving_default"](**{name: tf.constant(columns[name]) for name in columns}).values()
    np.save(folder + "/answer.npy", answer)
    print("answered", flush=True)
"""


class TensorFlowAlone:
    """A process where neither Keras nor Penstock can be imported."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", ALONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self, folder, rows):
        """What the SavedModel in the folder answers to raw rows."""
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        np.savez(folder / "columns.npz", **columns)
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "answered\n"
        return np.load(folder / "answer.npy")


@pytest.fixture(scope="module")
def alone():
    process = TensorFlowAlone()
    yield process
    process.process.communicate()


@pytest.mark.parametrize(("features", "make", "paths", "built"), CASES)
def test_a_model_is_offloaded_trained_saved_and_restored(features, make, paths, built, alone, tmp_path):
    keras.utils.set_random_seed(0)
    rows = offloaded_with_known_rows(make, features, paths, built=built)
    inputs = fed(rows.model, features.encode(ROWS))
    before = rows.store.fetch(paths[0], np.arange(SIZE)).rows
    rows.model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    rows.model.fit(inputs, LABELS, batch_size=16, epochs=5, verbose=0)
    after = {path: rows.store.fetch(path, np.arange(SIZE)).rows for path in paths}
    asked = [row["user"] for row in ROWS]
    assert (np.abs(after[paths[0]] - before).max(axis=1) > 0).tolist() == [user in asked for user in range(SIZE)]
    expected = rows.model.predict(inputs, verbose=0)
    check_weights(rows.model, 0, tmp_path)

    exporter = offloaded_exporter(rows, features)
    answer = exporter.answer(features.encode(ROWS))
    assert np.allclose(answer.arrays[0], expected, atol=1e-6)
    outputs = describe_outputs(name_outputs(answer, ["out"]), answer.arrays, len(ROWS))
    with exporter.materialized():
        assert not offloading.framework_of(rows.model).offloaded_layers(rows.model)
        exporter.write("saved_model", tmp_path, GraphSignature(features.inputs, outputs, features.encode(ROWS)))
    rows_of_all_ids = [{"user": place, "item": SIZE - 1 - place} for place in range(SIZE)]
    raw = [{name: row[name] for name in features.columns} for row in rows_of_all_ids]
    expected = rows.model.predict(fed(rows.model, features.encode(raw)), verbose=0)
    assert np.allclose(alone.answer(tmp_path, raw), expected, rtol=1e-5, atol=1e-6)
    check_no_python(tmp_path / "saved_model")
    check_inlined_once(tmp_path / "saved_model", len(paths))

    rows.model.fit(inputs, LABELS, batch_size=16, epochs=1, verbose=0)
    expected = rows.model.predict(inputs, verbose=0)
    native = emb.restore(rows)
    assert native is rows.model
    assert type(native).__mro__[0].__module__ != "penstock.embeddings.keras_layers"
    assert np.allclose(native.predict(inputs, verbose=0), expected, atol=1e-6)
    assert list(embeddings_in(native)) == paths
    check_weights(native, len(paths), tmp_path)


def check_no_python(saved_model):
    """No operation of the graph, in any function of it, calls Python or has a resource of ours."""
    from tensorflow.core.protobuf import saved_model_pb2

    graph = (
        saved_model_pb2.SavedModel.FromString((saved_model / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    )
    ops = {node.op for node in graph.node} | {node.op for one in graph.library.function for node in one.node_def}
    assert "ResourceGather" in ops or "GatherV2" in ops
    assert not [name for name in ops if "PyFunc" in name or "NumpyFunction" in name]


def check_inlined_once(saved_model, tables):
    """The variables have each table, and the graph none."""
    found = [shape for _, shape in tf.train.list_variables(str(saved_model / "variables" / "variables"))]
    assert found.count([SIZE, WIDTH]) == tables
    assert len([shape for shape in found if shape]) == tables + 2
    assert (saved_model / "saved_model.pb").stat().st_size < 200_000


def check_weights(model, tables, folder):
    """The model and a file of its weights have exactly the rows of so many tables, and the two weights of its head."""
    model.save_weights(folder / "all.weights.h5")
    written = []
    with h5py.File(folder / "all.weights.h5") as file:
        file.visititems(lambda name, item: written.append((name, getattr(item, "shape", None))))
    for shapes in (
        [weight.shape for weight in model.weights],
        [shape for name, shape in written if shape is not None and not name.startswith("optimizer")],
    ):
        assert len(shapes) == tables + 2
        assert shapes.count((SIZE, WIDTH)) == tables


# -- training ---------------------------------------------------------------------------------------------------------


def bags():
    """The model of two tables that the page has: one id, and a weighted bag of many."""
    user = keras.Input((), dtype="int64", name="user")
    words, weight = keras.Input((MANY,), dtype="int64", name="words"), keras.Input((MANY,), name="words_weight")
    bag = keras.ops.sum(table()(words) * keras.ops.expand_dims(weight, -1), axis=1)
    both = keras.layers.Concatenate()([table()(user), bag])
    return keras.Model({"user": user, "words": words, "words_weight": weight}, keras.layers.Dense(1)(both))


def batches(count, size=16):
    random = np.random.default_rng(0)
    inputs = {
        "user": random.integers(0, SIZE, count * size),
        "words": random.integers(0, SIZE, (count * size, MANY)),
        "words_weight": random.random((count * size, MANY)).astype(np.float32),
    }
    return inputs, random.normal(size=(count * size, 1)).astype(np.float32)


def same_weights(one, other):
    other.set_weights(one.get_weights())
    return other


class OwnTrainStep(keras.Model):
    def train_step(self, data):
        inputs, wanted = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(inputs, training=True) - wanted))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class InAGraph(keras.Model):
    """Calls its layers in a graph of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    @tf.function
    def graph(self, inputs):
        return self.inner(inputs)

    def call(self, inputs):
        return self.graph(inputs)


def with_own_train_step():
    model = bags()
    return OwnTrainStep(model.input, model.output)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (bags, {}),
        (bags, {"run_eagerly": True}),
        (bags, {"steps_per_execution": 5}),
        (with_own_train_step, {}),
        (lambda: InAGraph(bags()), {}),
        (bags, {"class_weight": {0: 1.0, 1: 3.0}}),
    ],
    ids=["graph", "eager", "five steps at once", "own train step", "graph in a graph", "class weights"],
)
def test_fit_trains_rows_as_native_layers_are_trained(make, options):
    epochs = 1 if "run_eagerly" in options else 4
    native = make()
    inputs, wanted = batches(24)
    options, weights = dict(options), {}
    if "class_weight" in options:
        wanted, weights = (wanted > 0).astype(np.float32), {"class_weight": options.pop("class_weight")}
    native({name: array[:1] for name, array in inputs.items()})
    twin = make()
    twin({name: array[:1] for name, array in inputs.items()})
    rows = emb.offload(same_weights(native, twin), "memory:", optimizer=emb.SGD(lr=0.1))
    for model in (native, twin):
        model.compile(keras.optimizers.SGD(0.1), "mse", **options)
        model.fit(
            inputs,
            wanted,
            batch_size=16,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            validation_data=(inputs, wanted),
            **weights,
        )
    emb.restore(rows)
    for ours, theirs in zip(twin.get_weights(), native.get_weights(), strict=True):
        assert np.abs(ours - theirs).max() < 1e-5


class Counted(MemoryTrainingStore):
    """A store that keeps what it was asked."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def fetch(self, table, ids):
        self.calls.append("fetch")
        return super().fetch(table, ids)

    def apply(self, table, ids, grads, lr=None):
        self.calls.append("apply")
        super().apply(table, ids, grads, lr)


@pytest.mark.parametrize("steps", [1, 3])
def test_each_train_step_ends_in_one_step_of_the_rows_before_the_next_lookup(steps):
    store = Counted()
    rows = emb.offload(functional(1), store, optimizer=emb.SGD(lr=0.1))
    rows.model.compile("sgd", "mse", steps_per_execution=steps)
    store.calls.clear()
    rows.model.fit(USER.encode(ROWS), LABELS, batch_size=16, epochs=2, verbose=0)
    assert store.calls == ["fetch", "apply"] * 8
    store.calls.clear()
    rows.model.evaluate(USER.encode(ROWS), LABELS, verbose=0)
    rows.model.predict(USER.encode(ROWS), verbose=0)
    rows.model(USER.encode(ROWS))
    rows.step()
    assert set(store.calls) == {"fetch"}


def test_a_model_of_tables_alone_is_trained_and_has_no_other_weight():
    given = inputs_of("user", "item")
    model = keras.Model(given, keras.layers.Dot(1)([table()(given["user"]), table()(given["item"])]))
    rows = emb.offload(model, "memory:", optimizer=emb.Adagrad(lr=0.5))
    model.compile("adam", "mse")
    first, *_, last = model.fit(BOTH.encode(ROWS), LABELS, epochs=30, verbose=0).history["loss"]
    assert last < first / 2
    assert model.weights == model.trainable_weights == []
    emb.restore(rows)
    assert len(model.trainable_weights) == 2


def test_rates_are_by_path_and_hold_from_the_next_step_on():
    rows = emb.offload(functional(2), "memory:", optimizer=emb.SGD(lr=0.1))
    assert dict(rows.lr) == {"layers.2": 0.1, "layers.3": 0.1}
    assert repr(rows.lr) == "{'layers.2': 0.1, 'layers.3': 0.1}"
    rows.model.compile("sgd", "mse")

    def moved():
        before = {path: rows.store.fetch(path, np.arange(SIZE)).rows for path in rows.tables}
        rows.model.fit(BOTH.encode(ROWS), LABELS, verbose=0)
        return [bool((rows.store.fetch(path, np.arange(SIZE)).rows != before[path]).any()) for path in before]

    assert moved() == [True, True]
    rows.lr["layers.2"] = np.float32(0)
    assert moved() == [False, True]
    for path, rate, words in [
        ("layers.9", 1.0, "lr has no layer 'layers.9'; layers: 'layers.2', 'layers.3'"),
        ("layers.2", -1.0, "lr must be 0 or more"),
        ("layers.2", None, "a number"),
    ]:
        with pytest.raises(ConfigError, match=words):
            rows.lr[path] = rate
    with pytest.raises(ConfigError, match="can be changed"):
        del rows.lr["layers.2"]


def test_a_loop_with_a_tape_takes_steps_by_itself_and_is_told_where_it_takes_none():
    rows = emb.offload(functional(2), "memory:", optimizer=emb.SGD(lr=0.5))
    optimizer = keras.optimizers.SGD(0.01)
    batch = {name: tf.constant(array) for name, array in BOTH.encode(ROWS).items()}

    def epoch(*, steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((rows.model(batch, training=True) - LABELS) ** 2)
        optimizer.apply(tape.gradient(loss, rows.model.trainable_variables), rows.model.trainable_variables)
        if steps:
            rows.step()
        return float(loss)

    for _ in range(40):
        epoch(steps=False)
    assert rows.store.count("layers.2") == SIZE  # those that the layer had
    before = rows.store.fetch("layers.2", np.arange(SIZE)).rows
    with pytest.warns(UserWarning, match=r"layer 'layers.2' has the gradients of 40 backward passes.*rows.step\(\)"):
        rows.model.predict(batch, verbose=0)
    assert (rows.store.fetch("layers.2", np.arange(SIZE)).rows == before).all()
    with warnings.catch_warnings(action="error"):
        first, *_, last = [epoch(steps=True) for _ in range(40)]
        epoch(steps=False)
        rows.model.predict(batch, verbose=0)
    assert last < first / 2


def test_gradients_of_passes_between_two_steps_are_added_up_and_forgotten_by_the_step():
    store = MemoryTrainingStore()
    rows = emb.offload(functional(1), store, optimizer=emb.SGD(lr=1.0))
    ids = tf.constant([3, 3, 5])
    before = store.fetch("layers.1", np.array([3, 4, 5])).rows
    for _ in range(40):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(rows.model.layers[1](ids))
        tape.gradient(total, [])
    rows.step(scale=0.5)
    rows.step()
    moved = before - store.fetch("layers.1", np.array([3, 4, 5])).rows
    assert np.allclose(moved, np.array([[40.0], [0.0], [20.0]]) * np.ones(WIDTH), atol=1e-5)


def test_a_thousand_passes_without_a_step_are_told_of_once():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    gradients = rows.model.layers[1]._table
    take = (np.array([1]), np.zeros((1, WIDTH), np.float32))
    with pytest.warns(UserWarning, match="1000 backward passes") as told:
        collections.deque((gradients._take(*take) for _ in range(1001)), maxlen=0)
    assert len(told) == 1


def test_a_gradient_that_is_not_finite_changes_no_table():
    rows = emb.offload(functional(2), "memory:", optimizer=emb.SGD(lr=0.5))
    rows.model.compile("sgd", "mse")
    before = {path: rows.store.fetch(path, np.arange(SIZE)).rows for path in rows.tables}
    with pytest.raises(FloatingPointError, match=r"table 'layers.2': no finite gradient for the ids 0, 1, 2, 3, 4"):
        rows.model.fit(BOTH.encode(ROWS), np.full((64, 1), np.nan), shuffle=False, verbose=0)
    assert all((rows.store.fetch(path, np.arange(SIZE)).rows == before[path]).all() for path in before)


def test_of_mixed_precision_the_scaled_gradients_are_scaled_back_and_a_step_that_overflows_is_left_out():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    finally:
        keras.config.set_dtype_policy(before)
    rows.model.compile(keras.optimizers.SGD(0.0), "mse")
    assert type(rows.model.optimizer).__name__ == "LossScaleOptimizer"
    first = rows.store.fetch("layers.1", np.array([3])).rows
    kernel = rows.model.layers[-1].kernel.numpy()[:, 0]
    out = float(rows.model({"user": np.array([3])})[0, 0])
    rows.model.train_on_batch({"user": np.array([3])}, np.array([[out + 0.5]], np.float32))
    assert np.allclose(rows.store.fetch("layers.1", np.array([3])).rows, first + kernel, atol=0.01)
    later = rows.store.fetch("layers.1", np.array([3])).rows
    rows.model.train_on_batch({"user": np.array([3])}, np.array([[1e30]], np.float32))
    assert (rows.store.fetch("layers.1", np.array([3])).rows == later).all()


def test_a_mask_reaches_the_next_layer_and_frozen_rows_are_read_only():
    given = keras.Input((MANY,), dtype="int64", name="words")
    model = keras.Model({"words": given}, head()(keras.layers.GlobalAveragePooling1D()(table(mask_zero=True)(given))))
    inputs = {"words": np.array([[3, 0, 0], [3, 4, 0]])}
    expected = model.predict(inputs, verbose=0)
    model.layers[1].trainable = False
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert np.allclose(model.predict(inputs, verbose=0), expected)
    model.compile("sgd", "mse")
    before = rows.store.fetch("layers.1", np.arange(SIZE)).rows
    model.fit(inputs, np.ones((2, 1)), verbose=0)
    assert (rows.store.fetch("layers.1", np.arange(SIZE)).rows == before).all()
    emb.restore(rows)
    assert not model.layers[1].trainable
    assert len(model.trainable_weights) == 2


def test_what_is_no_train_step_of_the_model_itself_takes_no_step_and_is_told_of():
    inner = functional(1)
    rows = emb.offload(inner, "memory:", optimizer=emb.SGD(lr=1.0))
    given = inputs_of("user")
    outer = keras.Model(given, inner(given))
    outer.compile("sgd", "mse")
    outer.fit(USER.encode(ROWS), LABELS, verbose=0)
    with pytest.warns(UserWarning, match="as fit\\(\\) of the model itself does"):
        emb.restore(rows)


# -- ids --------------------------------------------------------------------------------------------------------------


def any_ids(path):
    return {path: emb.Table(ids="any", missing=emb.zeros())}


@pytest.mark.parametrize("called_before", [False, True])
def test_a_sequential_without_an_input_keeps_ids_whole(called_before):
    model = keras.Sequential([table(), flat(), head()])
    if called_before:
        model(tf.constant([1]))
        assert model.inputs[0].dtype == "float32"
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.5), tables=any_ids("layers.0"))
    rows.store.load("layers.0", FAR, known(FAR))
    model.compile("sgd", "mse")
    model.fit(FAR, np.ones(5), batch_size=2, verbose=0)
    assert model.inputs[0].dtype == "int64"
    there = np.concatenate([ids for ids, _ in rows.store.scan("layers.0")])
    assert set(there.tolist()) == {*FAR.tolist(), *range(SIZE * called_before)}
    answers = model.predict(FAR, verbose=0)
    assert len(set(answers.ravel().tolist())) == 5


def test_a_sequential_first_in_another_or_around_a_model_of_ids_keeps_them_whole():
    given = keras.Input((), dtype="int64")
    inner = keras.Model(given, head()(table()(given)))
    for model, path in [
        (keras.Sequential([keras.Sequential([table(), flat()]), head()]), "layers.0.layers.0"),
        (keras.Sequential([inner]), "layers.0.layers.1"),
    ]:
        rows = emb.offload(model, Counted(), optimizer=emb.SGD(lr=0.5), tables=any_ids(path))
        model.predict(FAR, verbose=0)
        with pytest.raises(EmbeddingError, match="any id"):
            emb.restore(rows)
        assert model.inputs[0].dtype == "int64"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_ids_of_every_integer_dtype_reach_the_store_as_int64(dtype):
    class Asked(MemoryTrainingStore):
        def fetch(self, table, ids):
            asked.append(ids)
            return super().fetch(table, ids)

    asked = []
    rows = emb.offload(functional(1), Asked(), optimizer=emb.SGD(lr=0.5))
    rows.model.layers[1](tf.constant([[4, 2], [4, 4]], dtype))
    assert asked[0].dtype == np.int64
    assert asked[0].tolist() == [2, 4]


def test_ids_that_are_none_are_refused_by_the_layers_path():
    given = keras.Input((), name="user")
    with pytest.raises(ConfigError, match=r"gives float32 to .* as ids.*keras.Input\(..., dtype='int64'\)"):
        emb.offload(keras.Model(given, head()(table()(given))), "memory:", optimizer=emb.SGD(lr=1.0))
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    layer = rows.model.layers[1]
    with pytest.raises(TypeError, match=r"layer 'layers.1': ids must be integers, got float32"):
        layer(tf.constant([1.0]))
    with pytest.raises(TypeError, match=r"layer 'layers.1': ids must be integers, got bool"):
        layer(tf.constant([True]))
    with pytest.raises(IndexError, match=r"table 'layers.1': id 50 is not from 0 to 49"):
        layer(tf.constant([50]))
    with pytest.raises(IndexError, match=r"table 'layers.1': id -1 is not from 0 to 49"):
        rows.model.predict({"user": np.array([-1])}, verbose=0)
    assert layer(tf.zeros((0,), tf.int64)).shape == (0, WIDTH)
    assert layer(tf.constant([[1]])).shape == (1, 1, WIDTH)


class ManyLookups(keras.Model):
    """Looks a table up twice, with one of ids of two axes between."""

    def __init__(self):
        super().__init__()
        self.user, self.items = table(), table()

    def call(self, inputs):
        parts = [self.user(inputs["user"]), self.items(inputs["items"])[:, 1], self.user(inputs["user"] * 2 + 1)]
        return keras.ops.concatenate(parts, axis=1)


@pytest.mark.parametrize("way", ["__call__", "predict_on_batch"])
def test_lookups_are_told_in_the_order_of_the_model_also_those_of_a_graph(way):
    rows = emb.offload(InAGraph(ManyLookups()), "memory:", optimizer=emb.SGD(lr=1.0))
    ask = getattr(rows.model, way)
    batch = {"user": tf.constant([5, 3, 5], tf.int64), "items": tf.constant([[1, 2], [2, 9], [0, 0]])}
    before = ask(batch)
    with offloading.seen_lookups(rows) as seen:
        assert np.array_equal(ask(batch), before)
    ask(batch)
    asked = [("inner.user", [5, 3, 5]), ("inner.items", [[1, 2], [2, 9], [0, 0]]), ("inner.user", [11, 7, 11])]
    assert [(one.path, one.ids.tolist()) for one in seen] == asked
    for one in seen:
        assert one.ids.dtype == np.int64
        assert one.distinct.tolist() == np.unique(one.ids).tolist()
        assert np.array_equal(one.rows, rows.store.fetch(one.path, one.distinct).rows)
    assert not tf.config.functions_run_eagerly()


# -- placeholders -----------------------------------------------------------------------------------------------------


def test_a_placeholder_makes_no_table_wherever_it_is_built():
    with emb.placeholders():
        layer, of_rows = table(), table(2, size=2, weights=np.ones((2, WIDTH)))
        huge = functional(1)
        huge.layers[1].input_dim = 2**40
    layer.build((None,))
    assert layer.weights == []
    assert len(of_rows.weights) == 1
    with pytest.raises(
        EmbeddingError, match=r"is a placeholder without rows: give its model to penstock.embeddings.off"
    ):
        layer(tf.constant([1]))
    rows = emb.offload(huge, "memory:", optimizer=emb.SGD(lr=1.0), tables={"layers.1": emb.Table(missing=emb.zeros())})
    assert float(huge({"user": tf.constant([2**39])})[0, 0]) == 0.0
    assert rows.store.count("layers.1") == 0
    assert len(table().weights) == 0
    assert type(table()) is keras.layers.Embedding


MEMORY = """
import os, resource, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
from penstock import embeddings as emb

with emb.placeholders():
    given = keras.Input((), dtype="int64")
    model = keras.Model(given, keras.layers.Dense(1)(keras.layers.Embedding(int(sys.argv[1]), 64)(given)))
rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
model.compile("sgd", "mse")
model.fit(np.arange(999), np.ones(999), verbose=0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_placeholder_of_2_to_the_40_rows_takes_no_more_memory_than_of_1000():
    few, many = (
        int(subprocess.run([sys.executable, "-c", MEMORY, str(size)], check=True, capture_output=True).stdout)
        for size in (1000, 2**40)
    )
    assert many - few < 100 * 1024


# -- refusals ---------------------------------------------------------------------------------------------------------


class Special(keras.layers.Embedding):
    pass


def of(layer):
    given = keras.Input((), dtype="int64", name="user")
    return keras.Model({"user": given}, head()(layer(given)))


def quantized():
    model = of(table())
    model.layers[1].quantize("int8")
    return model


def tied():
    model = OneTable()
    model({"user": tf.constant([1])})
    with keras.src.utils.tracking.DotNotTrackScope():
        model.head._kernel = model._user._embeddings
    model.head._tracker.unlock()
    model.head._track_variable(model._user._embeddings)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: of(table(embeddings_regularizer="l2")), "has embeddings_regularizer"),
        (lambda: of(table(embeddings_constraint="non_neg")), "has embeddings_constraint"),
        (lambda: of(table(lora_rank=2)), "has LoRA"),
        (quantized, "is quantized"),
        (lambda: of(Special(SIZE, WIDTH)), "is a Special, a subclass of Embedding"),
        (lambda: of(table(dtype="float16")), "rows of float16"),
        (tied, "'_user' shares its weight with 'head'"),
        (lambda: keras.Sequential([head()]), "no embedding layer to offload"),
    ],
)
def test_a_layer_that_no_store_could_stand_for_is_refused_and_nothing_is_changed(make, words):
    model = make()
    weights = len(model.weights)
    with pytest.raises(ConfigError, match=words):
        emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert len(model.weights) == weights
    assert not offloading.framework_of(model).offloaded_layers(model)


def test_a_layer_stays_native_where_tables_says_so_and_names_are_known():
    rows = emb.offload(functional(2), "memory:", optimizer=emb.SGD(lr=1.0), tables={"layers.3": None})
    assert list(rows.tables) == ["layers.2"]
    assert len(rows.model.layers[3].weights) == 1
    with pytest.raises(ConfigError, match="offloaded already"):
        emb.offload(rows.model, "memory:", optimizer=emb.SGD(lr=1.0))
    with pytest.raises(
        ConfigError, match=r"tables names 'user', which is not an embedding layer of the model; layers: 'layers.1'"
    ):
        emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0), tables={"user": None})


def test_xla_is_left_out_and_refused_where_it_is_asked_for():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    rows.model.compile("sgd", "mse")
    assert rows.model.jit_compile is False
    for arguments in ({"jit_compile": True}, {"jit_compile": True, "run_eagerly": False}):
        with pytest.raises(ConfigError, match="jit_compile=True: XLA cannot compile a lookup"):
            rows.model.compile("sgd", "mse", **arguments)


def test_a_distribution_strategy_is_refused_before_and_after():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope(), pytest.raises(ConfigError, match=r"tf.distribute"):
        emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    with strategy.scope(), pytest.raises(ConfigError, match=r"tf.distribute"):
        rows.model.compile("sgd", "mse")


def test_another_backend_is_refused():
    pytest.importorskip("torch")
    program = """if True:
        import keras
        from penstock import embeddings as emb
        model = keras.Sequential([keras.Input((), dtype="int64"), keras.layers.Embedding(3, 2)])
        try:
            emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("ConfigError Keras runs on the backend 'torch'")


# -- saving by Keras --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: functional(1), OneTable], ids=["functional", "subclassed"])
def test_keras_saves_the_other_weights_and_no_model(make, tmp_path):
    model = make()
    model({"user": tf.constant([1])})
    native_file = tmp_path / "native.weights.h5"
    model.save_weights(native_file)
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    words = "has rows in a store, which no file or copy of Keras can include: penstock.export.save"
    for copy in (
        lambda: model.save(tmp_path / "model.keras"),
        lambda: keras.saving.save_model(model, tmp_path / "model.keras"),
        lambda: model.export(tmp_path / "exported"),
        lambda: keras.models.clone_model(model),
        lambda: model.to_json(),
    ):
        with pytest.raises(EmbeddingError, match=words):
            copy()
    kernel = np.full((WIDTH, 1), 7.0)
    dense_layer = model.layers[-1]
    bias = dense_layer.bias.numpy()
    dense_layer.set_weights([kernel, bias])
    model.save_weights(tmp_path / "dense.weights.h5")
    dense_layer.set_weights([kernel * 2, bias])
    model.load_weights(tmp_path / "dense.weights.h5")
    assert (dense_layer.kernel.numpy() == kernel).all()
    with pytest.raises(EmbeddingError, match=r"the file has rows for layer .* only the other weights were loaded"):
        model.load_weights(native_file)
    assert "OffloadedEmbedding" in repr(model.layers[-2]) or "OffloadedEmbedding" in repr(vars(model).get("_user"))
    emb.restore(rows)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", custom_objects={"OneTable": OneTable})
    assert np.allclose(again.predict(USER.encode(ROWS), verbose=0), model.predict(USER.encode(ROWS), verbose=0))


# -- restore ----------------------------------------------------------------------------------------------------------


def unbuilt():
    with emb.placeholders():
        return emb.offload(TwoTables(), "memory:", optimizer=emb.SGD(lr=1.0))


@pytest.mark.parametrize(
    "sample",
    [
        lambda: BOTH.encode(ROWS[:1]),
        lambda: BOTH.encode(ROWS),
        lambda: {"user": tf.constant([1, 2]), "item": tf.constant([3, 4])},
        lambda: BOTH.tf_dataset([{**row, "y": 1.0} for row in ROWS], label="y"),
        lambda: BOTH.tf_dataset(ROWS),
    ],
    ids=["one row", "encoded", "tensors", "dataset with labels", "dataset"],
)
def test_a_model_that_was_never_built_is_restored_from_a_sample(sample, tmp_path):
    rows = unbuilt()
    with pytest.raises(ConfigError, match="not built yet, so restore needs a sample"):
        emb.restore(rows)
    with pytest.raises(ConfigError, match="cannot be built from sample: "):
        emb.restore(rows, sample={"nothing": np.zeros(1)})
    assert list(rows.layers()) == ["towers.0.table", "towers.1"]
    model = emb.restore(rows, sample())
    check_weights(model, 2, tmp_path)
    rule = emb.init().rows(np.arange(SIZE), WIDTH, "towers.1")
    assert (model.towers[1].embeddings.numpy() == rule).all()


def test_a_sequential_that_was_never_built_is_restored_with_an_input_of_int64(tmp_path):
    for sample in ({"user": np.array([1])}, np.array([1]), USER.tf_dataset(ROWS).map(lambda x: x["user"])):
        rows = emb.offload(keras.Sequential([table(), flat(), head()]), "memory:", optimizer=emb.SGD(lr=1.0))
        model = emb.restore(rows, sample=sample)
        assert model.inputs[0].dtype == "int64"
        check_weights(model, 1, tmp_path)


def test_a_restore_that_fails_leaves_the_model_offloaded(monkeypatch):
    rows = emb.offload(functional(2), "memory:", optimizer=emb.SGD(lr=1.0))
    monkeypatch.setattr(offloading, "available_memory", lambda: 4 * SIZE * WIDTH)
    with pytest.raises(EmbeddingError, match=r"layer 'layers.3': with its rows the tables take 1600 bytes"):
        emb.restore(rows)
    monkeypatch.undo()
    assert all(isinstance(layer, Offloaded) for layer in rows.layers().values())
    emb.restore(rows)
    for call in (rows.step, rows.refresh, lambda: emb.restore(rows)):
        with pytest.raises(EmbeddingError, match="the model was restored"):
            call()


def test_a_restored_model_is_trained_on_natively_and_offloaded_once_more():
    model = functional(1)
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    model.compile("sgd", "mse")
    model.fit(USER.encode(ROWS), LABELS, verbose=0)
    emb.restore(rows)
    model.compile("sgd", "mse")
    before = model.layers[1].get_weights()[0]
    model.fit(USER.encode(ROWS), LABELS, verbose=0)
    after = model.layers[1].get_weights()[0]
    assert (before != after).any()
    again = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert (again.store.fetch("layers.1", np.arange(SIZE)).rows == after).all()
    model.fit(USER.encode(ROWS), LABELS, verbose=0)
    assert (again.store.fetch("layers.1", np.arange(SIZE)).rows != after).any()


def test_a_graph_of_the_users_own_that_outlives_the_tables_is_told_so():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    graph = tf.function(rows.model)
    batch = {"user": tf.constant([1], tf.int64)}
    assert np.allclose(graph(batch), rows.model(batch))
    emb.restore(rows)
    with pytest.raises(tf.errors.OpError, match="rows of a model that was restored since: create the graph again"):
        graph(batch)


def test_nothing_keeps_a_table_that_no_model_has():
    import gc
    import weakref

    model = functional(1)
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    model.compile("sgd", "mse")
    model.fit(USER.encode(ROWS), LABELS, verbose=0)
    store = weakref.ref(rows.store)
    del model, rows
    keras.backend.clear_session()
    gc.collect()
    assert store() is None


# -- weights that are shared ------------------------------------------------------------------------------------------


def shared(folder, make=lambda: functional(1), **options):
    return emb.offload(make(), f"shared:{folder}", optimizer=emb.SGD(lr=0.5), dense="shared", **options)


def test_the_other_weights_are_shared_and_each_step_adds_what_changed_here(tmp_path):
    keras.utils.set_random_seed(1)
    first = shared(tmp_path / "rows")
    keras.utils.set_random_seed(2)
    second = shared(tmp_path / "rows")
    kernels = [rows.model.layers[-1].kernel for rows in (first, second)]
    assert (kernels[0].numpy() == kernels[1].numpy()).all()
    begun = kernels[0].numpy().copy()
    kernels[0].assign_add(np.full((WIDTH, 1), 0.25))
    kernels[1].assign_add(np.full((WIDTH, 1), 0.5))
    first.step()
    second.step()
    assert np.allclose(kernels[1].numpy(), begun + 0.75)
    first.refresh()
    assert (kernels[0].numpy() == kernels[1].numpy()).all()
    for rows in (first, second):
        rows.model.compile(keras.optimizers.SGD(0.1), "mse")
        rows.model.fit(USER.encode(ROWS), LABELS, batch_size=8, epochs=2, verbose=0)
    first.refresh()
    answers = [rows.model.predict(USER.encode(ROWS), verbose=0) for rows in (first, second)]
    assert (answers[0] == answers[1]).all()
    saver = shared(tmp_path / "rows")
    assert (saver.model.predict(USER.encode(ROWS), verbose=0) == answers[0]).all()
    assert (emb.restore(saver).predict(USER.encode(ROWS), verbose=0) == answers[0]).all()


def test_steps_of_one_process_with_shared_weights_are_those_without(tmp_path):
    trained = []
    for dense in ("own", "shared"):
        keras.utils.set_random_seed(1)
        rows = emb.offload(bags(), f"shared:{tmp_path / dense}", optimizer=emb.SGD(lr=0.1), dense=dense)
        rows.model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=3)
        rows.model.fit(*batches(12), batch_size=16, shuffle=False, verbose=0)
        trained.append(emb.restore(rows).get_weights())
    for own, theirs in zip(*trained, strict=True):
        assert np.allclose(own, theirs, atol=1e-6)


def with_norm():
    given = inputs_of("user")
    return keras.Model(given, head()(keras.layers.BatchNormalization()(table()(given["user"]))))


class Counting(keras.layers.Layer):
    """Changes a weight that is not trained."""

    def build(self, _):
        self.seen = self.add_weight(shape=(), trainable=False, initializer="zeros", name="seen")

    def call(self, inputs):
        self.seen.assign_add(1.0)
        return inputs


def with_counting():
    given = inputs_of("user")
    return keras.Model(given, head()(Counting()(table()(given["user"]))))


def test_weights_that_cannot_be_shared_are_refused(tmp_path):
    for make, words in [
        (with_norm, r"the weight 'layers.2.moving_mean', which is not trained"),
        (OneTable, "shares the weights of a model that is built"),
    ]:
        with pytest.raises(ConfigError, match=words):
            shared(tmp_path / "none", make)
    assert not (tmp_path / "none").exists()
    rows = shared(tmp_path / "rows", with_counting)
    rows.model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match=r"a step changes the weight 'counting.*/seen'"):
        rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    rows = shared(tmp_path / "other")
    rows.model.layers[-1].kernel.assign(np.full((WIDTH, 1), np.nan))
    with pytest.raises(FloatingPointError, match=r"parameter 'layers.2.kernel' is not finite"):
        rows.step()
    with pytest.raises(TableMismatch, match=r"the store has the parameters of another model: layers.2.kernel \[4, 1\]"):
        shared(tmp_path / "other", lambda: keras.Sequential([keras.Input((), dtype="int64"), table(name="x"), head()]))


# -- saving -----------------------------------------------------------------------------------------------------------


def trained(make, features, store="memory:", **options):
    with emb.placeholders():
        rows = emb.offload(make(), store, optimizer=emb.Adagrad(lr=0.3), **options)
    rows.model.compile("adam", "mse")
    rows.model.fit(fed(rows.model, features.encode(ROWS)), LABELS, verbose=0)
    return rows


def test_an_artifact_answers_as_the_model_and_refuses_an_id_alone(tmp_path):
    rows = trained(lambda: functional(2), BOTH)
    report = ps.export.save(
        rows, tmp_path / "artifact", features=BOTH, reference_rows=ROWS[:8], validation_data=ROWS[8:]
    )
    assert report.rows == len(ROWS)
    assert list(rows.layers()) == ["layers.2", "layers.3"]
    asked = [{"user": user, "item": SIZE - 1 - user} for user in range(SIZE)]
    expected = rows.model.predict(BOTH.encode(asked), verbose=0)
    unknown = [{"user": SIZE, "item": 0}, {"user": 0, "item": -1}]
    with ps.export.load(tmp_path / "artifact", trust_model_code=True).configured(inline=True).blocking() as service:
        answers = service.predict_many([*asked, *unknown], return_exceptions=True)
    assert np.allclose([answer["output"] for answer in answers[:SIZE]], expected, rtol=1e-5, atol=1e-5)
    assert all(isinstance(answer, ps.InvalidItem) for answer in answers[SIZE:])
    rows.model.fit(BOTH.encode(ROWS), LABELS, verbose=0)


def test_a_sequential_that_only_fit_has_built_is_saved(tmp_path):
    rows = trained(lambda: keras.Sequential([table(), flat(), head()]), USER)
    assert ps.export.save(rows, tmp_path / "artifact", features=USER, reference_rows=ROWS[:8]).rows >= 8


def test_a_save_builds_a_model_that_was_never_called(tmp_path):
    rows = unbuilt()
    assert ps.export.save(rows, tmp_path / "artifact", features=BOTH, reference_rows=ROWS[:8]).rows >= 8
    assert isinstance(rows.model.towers[1], Offloaded)


def test_what_no_graph_could_hold_is_refused_and_the_model_stays_as_it_was(tmp_path):
    rows = trained(lambda: functional(1), USER)

    def save(model, features=USER, **options):
        ps.export.save(model, tmp_path / "artifact", features=features, reference_rows=ROWS[:8], **options)

    with pytest.raises(ConfigError, match="has its rows in a training store: pass the object"):
        save(rows.model)
    with pytest.raises(ExportRefused, match="'user' is Ids without a size"):
        save(rows, ps.Features({"user": f.Ids()}).fit(ROWS))
    with pytest.raises(
        ConfigError, match=r"outside has 'layers.2', which is not the path of a table; tables: 'layers.1'"
    ):
        save(rows, outside=["layers.2"])
    assert not (tmp_path / "artifact").exists()
    assert list(rows.layers()) == ["layers.1"]
    emb.restore(rows)
    with pytest.raises(ConfigError, match="the model was restored and has its rows again"):
        save(rows)
    save(rows.model)


PEAK = """
import os, resource, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import penstock as ps
from penstock import embeddings as emb, features as f
from penstock.export.exporter import GraphSignature
from penstock.export.naming import describe_outputs
from penstock.export.offloaded_model import offloaded_exporter

size = int(sys.argv[1])
with emb.placeholders():
    given = keras.Input((), dtype="int64", name="user")
    model = keras.Model(given, keras.layers.Dense(1)(keras.layers.Embedding(size, 64)(given)))
rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
features = ps.Features({"user": f.Ids(size=size)})
asked = features.encode([{"user": 1}, {"user": 2}])
exporter = offloaded_exporter(rows, features)
outputs = describe_outputs(["out"], exporter.answer(asked).arrays, 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from pathlib import Path
with exporter.materialized():
    exporter.write("saved_model", Path(sys.argv[2]), GraphSignature(features.inputs, outputs, asked))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_save_takes_at_most_five_times_the_memory_of_what_is_inlined(tmp_path):
    size = 2**19
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(size), str(tmp_path)], check=True, capture_output=True, text=True
    )
    inlined = size * 64 * 4
    assert int(done.stdout) * 1024 < 5 * inlined
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1.1 * inlined


# -- what the pages say besides ---------------------------------------------------------------------------------------


def rows_of(rows, path="layers.1"):
    return rows.store.fetch(path, np.arange(SIZE)).rows


def test_every_layer_stays_the_same_object():
    model = functional(2)
    layers = list(model.layers)
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert rows.model is model
    assert all(now is before for now, before in zip(model.layers, layers, strict=True))
    emb.restore(rows)
    assert all(now is before for now, before in zip(model.layers, layers, strict=True))


@pytest.mark.parametrize(
    "options",
    [{"clipnorm": 1e-6}, {"global_clipnorm": 1e-6}, {"clipvalue": 1e-6}, {"gradient_accumulation_steps": 4}],
    ids=lambda options: next(iter(options)),
)
def test_the_optimizer_of_keras_does_not_see_the_rows(options):
    after = []
    native = functional(1)
    for given in ({}, options):
        rows = emb.offload(same_weights(native, functional(1)), "memory:", optimizer=emb.SGD(lr=0.5))
        before = rows_of(rows)
        rows.model.compile(keras.optimizers.SGD(0.0, **given), "mse")
        rows.model.fit(USER.encode(ROWS), LABELS, batch_size=16, shuffle=False, verbose=0)
        after.append(rows_of(rows))
    assert (after[0] != before).any()
    assert np.allclose(after[1], after[0], atol=1e-7)


@pytest.mark.parametrize(("ids", "same"), [([3, 5], True), ([3, 3], False)])
def test_adagrad_is_that_of_keras_but_for_an_id_that_a_batch_has_twice(ids, same):
    native, twin = functional(1), functional(1)
    optimizer = emb.Adagrad(lr=0.1, initial_accumulator_value=0.1)
    rows = emb.offload(same_weights(native, twin), "memory:", optimizer=optimizer)
    for model in (native, twin):
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
        model.train_on_batch({"user": np.array(ids)}, np.array([[3.0], [2.0]], np.float32))
    emb.restore(rows)
    ours, theirs = (model.layers[1].get_weights()[0] for model in (twin, native))
    assert np.allclose(ours, theirs, atol=1e-6) == same


def test_sparse_adam_leaves_a_row_as_it_is_that_adam_of_keras_moves():
    native, twin = functional(1), functional(1)
    rows = emb.offload(same_weights(native, twin), "memory:", optimizer=emb.SparseAdam(lr=0.01))
    for model in (native, twin):
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model.train_on_batch({"user": np.array([5])}, np.ones((1, 1)))
    before = rows_of(rows)[5], native.layers[1].get_weights()[0][5]
    for model in (native, twin):
        model.train_on_batch({"user": np.array([3])}, np.ones((1, 1)))
    assert (rows_of(rows)[5] == before[0]).all()
    assert (native.layers[1].get_weights()[0][5] != before[1]).any()


def test_a_loop_in_a_graph_of_its_own_takes_a_step_in_each_turn():
    store = Counted()
    rows = emb.offload(functional(1), store, optimizer=emb.SGD(lr=0.5))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(rows.model.trainable_variables)

    @tf.function
    def turn(inputs, wanted):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((rows.model(inputs, training=True) - wanted) ** 2)
        optimizer.apply(tape.gradient(loss, rows.model.trainable_variables), rows.model.trainable_variables)
        rows.step()
        return loss

    batch = {name: tf.constant(array) for name, array in USER.encode(ROWS).items()}
    store.calls.clear()
    first, *_, last = [float(turn(batch, LABELS)) for _ in range(20)]
    assert last < first
    assert store.calls == ["fetch", "apply"] * 20


def test_a_layer_that_is_frozen_later_holds_from_the_next_compile_on():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    rows.model.layers[1].trainable = False
    rows.model.compile("sgd", "mse")
    before = rows_of(rows)
    rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    assert (rows_of(rows) == before).all()
    rows.model.layers[1].trainable = True
    rows.model.compile("sgd", "mse")
    rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    assert (rows_of(rows) != before).any()


def test_a_restored_model_that_is_not_compiled_again_is_refused_by_keras():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    rows.model.compile("sgd", "mse")
    rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    model = emb.restore(rows)
    with pytest.raises(ValueError, match="Unknown variable"):
        model.fit(USER.encode(ROWS), LABELS, verbose=0)


@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
def test_a_sequential_takes_a_dict_where_its_input_has_the_name_of_a_feature():
    given = BOTH.tf_dataset([{"user": 1, "item": 3, "y": 1.0}, {"user": 2, "item": 4, "y": 1.0}], label="y")
    named = keras.Sequential([keras.Input((), dtype="int64", name="user"), table(), flat(), head()])
    plain = keras.Sequential([table(), flat(), head()])
    for model, dataset in [(named, given), (plain, given.map(lambda x, y: (x["user"], y)))]:
        rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.5))
        before = rows_of(rows, "layers.0")
        model.compile("sgd", "mse")
        model.fit(dataset, shuffle=False, verbose=0)
        assert model.inputs[0].dtype == "int64"
        assert (rows_of(rows, "layers.0") != before).any(axis=1).nonzero()[0].tolist() == [1, 2]
    refused = keras.Sequential([table(), flat(), head()])
    emb.offload(refused, "memory:", optimizer=emb.SGD(lr=0.5))
    refused.compile("sgd", "mse")
    with pytest.raises(TypeError, match=r"layer 'layers.0': ids must be a dense tensor, got a dict"):
        refused.fit(given, shuffle=False, verbose=0)


def test_a_layer_that_is_not_built_begins_with_the_rule_and_not_with_its_initializer():
    rows = emb.offload(
        keras.Sequential([table(embeddings_initializer="ones"), flat(), head()]), "memory:", optimizer=emb.SGD(lr=1.0)
    )
    assert rows.store.count("layers.0") == 0
    ids = np.arange(SIZE)
    assert (rows_of(rows, "layers.0") == emb.init().rows(ids, WIDTH, "layers.0")).all()


def test_ids_that_are_no_dense_tensor_are_refused():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    for ids in (tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense(tf.constant([[1], [2]]))):
        with pytest.raises(TypeError, match="ids must be a dense tensor, got a"):
            rows.model.layers[1](ids)


def test_a_subclassed_model_of_placeholders_is_built_by_a_symbolic_call_and_no_other():
    with emb.placeholders():
        model = OneTable()
    model(inputs_of("user"))
    assert [weight.shape for weight in model.weights] == [(WIDTH, 1), (1,)]
    with pytest.raises(EmbeddingError, match="is a placeholder without rows"):
        model({"user": tf.constant([1])})
    with pytest.raises(tf.errors.OpError, match="is a placeholder without rows"):
        tf.function(model)({"user": tf.constant([1])})
    with pytest.raises(tf.errors.OpError, match="is a placeholder without rows"):
        model.predict({"user": np.array([1])}, verbose=0)


def test_a_subclassed_model_of_placeholders_that_is_built_may_be_shared(tmp_path):
    with emb.placeholders():
        model = OneTable()
    model(inputs_of("user"))
    rows = shared(tmp_path / "rows", lambda: model)
    rows.model.compile("sgd", "mse")
    rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    assert rows.store.count("_user") == SIZE


# -- models and loops of every kind -----------------------------------------------------------------------------------


class Holding(keras.Model):
    """Subclassed, with its tables where `hold` puts them."""

    def __init__(self, hold):
        super().__init__()
        self.head = head()
        layers = hold(self)
        self.layers_called = lambda: layers  # Keras looks into no function

    def call(self, inputs):
        return self.head(sum(layer(inputs["user"]) for layer in self.layers_called()))


class OwnList(keras.layers.Layer):
    """A layer with a list that has the name of one of Keras's."""

    def __init__(self):
        super().__init__()
        self._operations = [table()]

    def call(self, ids):
        return self._operations[0](ids)


def in_a_set(model):
    model.other, model.found = table(), {table()}
    return [model.other, *model.found]


def in_a_list_of_keras(model):
    model.other, model.inner = table(), OwnList()
    return [model.other, model.inner]


def in_equal_paths(model):
    model.found = {"a.b": table(), "a": {"b": table()}}
    return [model.found["a.b"], model.found["a"]["b"]]


@pytest.mark.parametrize(
    ("hold", "words"),
    [
        (in_a_set, "no path leads to the layer 'embedding.*', which is in a set"),
        (in_a_list_of_keras, "no path leads to the layer 'embedding.* a name of one of Keras's own"),
        (in_equal_paths, "two layers have the path 'found.a.b': rename a key"),
    ],
)
def test_a_layer_without_a_path_of_its_own_is_refused_and_does_not_stay_native(hold, words):
    model = Holding(hold)
    with pytest.raises(ConfigError, match=words):
        emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert len(embeddings_in(model)) == 1


def test_a_layer_is_found_in_an_attribute_that_begins_as_those_of_tensorflow_do():
    def hold(model):
        model._self_table = table()
        return [model._self_table]

    rows = emb.offload(Holding(hold), "memory:", optimizer=emb.SGD(lr=1.0))
    assert list(rows.tables) == ["_self_table"]


def test_a_model_may_have_attributes_of_every_name():
    class Named(keras.Model):
        def __init__(self):
            super().__init__()
            self._rows, self._native, self._table, self.head = table(), "mine", 3, head()

        def call(self, inputs):
            return self.head(self._rows(inputs["user"]))

    rows = emb.offload(Named(), "memory:", optimizer=emb.SGD(lr=1.0))
    rows.model.compile("sgd", "mse")
    rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    assert list(rows.tables) == ["_rows"]
    assert emb.restore(rows)._native == "mine"


def test_a_model_whose_class_takes_no_subclass_is_refused_and_not_changed():
    class Registered(OneTable):
        def __init_subclass__(cls, *, key):
            raise AssertionError

    model = Registered()
    with pytest.raises(ConfigError, match=r"a class below Registered, which refuses it: TypeError.*'key'"):
        emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert list(embeddings_in(model)) == ["_user"]


def test_an_offload_has_no_garbage_collected_for_each_of_many_layers(monkeypatch):
    collected = []
    model = functional(2)
    monkeypatch.setattr("gc.collect", lambda *_: collected.append(1))
    emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert not collected
    assert model.layers[2].weights == []


@pytest.mark.filterwarnings("ignore:The structure of `inputs`")  # of Keras, but it takes the dict
def test_a_sequential_whose_input_becomes_int64_takes_the_dict_that_it_took():
    model = keras.Sequential([keras.Input((), name="user"), table(), head()])
    emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    assert model.inputs[0].dtype == "int64"
    model.compile("sgd", "mse")
    model.fit(USER.tf_dataset([{**row, "y": 1.0} for row in ROWS], label="y"), shuffle=False, verbose=0)


class Asking(keras.callbacks.Callback):
    """Looks up an id that is not there, and goes on."""

    def on_train_batch_end(self, batch, logs=None):
        with pytest.raises(IndexError):
            self.model({"user": np.array([SIZE])})


def test_an_error_that_a_callback_has_caught_is_not_raised_by_fit():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    rows.model.compile("sgd", "mse")
    rows.model.fit(USER.encode(ROWS), LABELS, callbacks=[Asking()], verbose=0)

    def broken():
        yield USER.encode(ROWS), LABELS
        raise ValueError("the dataset is broken")

    inputs = {"user": tf.TensorSpec((None,), tf.int64)}
    dataset = tf.data.Dataset.from_generator(broken, output_signature=(inputs, tf.TensorSpec((None, 1), tf.float32)))
    with pytest.raises(tf.errors.OpError, match="the dataset is broken"):
        rows.model.fit(dataset, callbacks=[Asking()], shuffle=False, verbose=0)


class Interrupted(keras.optimizers.SGD):
    """Fails where the gradients are there and nobody has taken a step."""

    def apply(self, grads, trainable_variables=None):
        if self.fails:
            raise KeyboardInterrupt
        super().apply(grads, trainable_variables)


def test_a_train_step_that_was_broken_off_leaves_no_gradient_to_the_next_one():
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    optimizer = Interrupted(0.0)
    rows.model.compile(optimizer, "mse", run_eagerly=True)
    optimizer.fails = True
    with pytest.raises(KeyboardInterrupt):
        rows.model.fit({"user": np.array([3])}, np.array([[9.0]]), verbose=0)
    optimizer.fails = False
    before = rows.store.fetch("layers.1", np.arange(SIZE)).rows
    rows.model.fit({"user": np.array([4])}, np.array([[9.0]]), verbose=0)
    changed = (rows.store.fetch("layers.1", np.arange(SIZE)).rows != before).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [4]


def test_a_restore_that_runs_out_of_memory_on_the_way_leaves_the_model_offloaded(monkeypatch):
    rows = emb.offload(functional(2), "memory:", optimizer=emb.SGD(lr=1.0))
    rows.model.compile("sgd", "mse")
    made = []

    def constant(value):
        made.append(value)
        if len(made) == 2:
            raise MemoryError
        return tf.convert_to_tensor(value)

    monkeypatch.setattr("penstock.embeddings.keras_layers.tf.constant", constant)
    with pytest.raises(MemoryError):
        emb.restore(rows)
    monkeypatch.undo()
    assert list(rows.layers()) == ["layers.2", "layers.3"]
    rows.model.fit(BOTH.encode(ROWS), LABELS, verbose=0)
    assert len(emb.restore(rows).weights) == 4


def test_a_step_of_shared_weights_takes_no_table_along(tmp_path):
    rows = shared(tmp_path / "rows", lambda: functional(2))
    parameters, others = rows._shared.variables()
    assert [variable.name for variable in parameters] == ["kernel", "bias"]
    assert others == []
    rows.model.compile("sgd", "mse")
    rows.model.fit(BOTH.encode(ROWS), LABELS, verbose=0)


class OwnGraphs(InAGraph):
    """Has a graph in an attribute too."""

    def __init__(self, inner):
        super().__init__(inner)
        self.attribute = tf.function(self.inner)

    def call(self, inputs):
        return self.graph(inputs) + self.attribute(inputs)


def test_graphs_that_a_model_has_made_of_its_layers_are_made_anew(tmp_path):
    model = OwnGraphs(functional(1))
    batch = {"user": tf.constant(USER.encode(ROWS)["user"])}
    model(batch)
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.5))
    before = rows.store.fetch("inner.layers.1", np.arange(SIZE)).rows
    model.compile("sgd", "mse")
    model.fit(batch, LABELS, batch_size=64, verbose=0)
    assert (rows.store.fetch("inner.layers.1", np.arange(SIZE)).rows != before).any(axis=1).all()
    expected = model(batch)

    exporter = offloaded_exporter(rows, USER)
    outputs = describe_outputs(["out"], exporter.answer(USER.encode(ROWS)).arrays, len(ROWS))
    with exporter.materialized():
        assert np.allclose(model(batch), expected)
        exporter.write("saved_model", tmp_path, GraphSignature(USER.inputs, outputs, USER.encode(ROWS)))
    check_no_python(tmp_path / "saved_model")

    model.fit(batch, LABELS, batch_size=64, verbose=0)
    expected = model(batch)
    assert np.allclose(emb.restore(rows)(batch), expected)


def test_a_graph_of_the_users_own_that_was_made_before_the_offload_reads_no_old_rows():
    model = functional(1)
    graph = tf.function(model)
    batch = {"user": tf.constant([1])}
    graph(batch)
    emb.offload(model, "memory:", optimizer=emb.SGD(lr=1.0))
    with pytest.raises(tf.errors.OpError, match=r"is not in \[0, 0\)"):
        graph(batch)


class Waiting(keras.callbacks.Callback):
    """Is in `fit` until it may go on."""

    def __init__(self):
        super().__init__()
        self.inside, self.go_on = threading.Event(), threading.Event()

    def on_train_batch_end(self, batch, logs=None):
        self.inside.set()
        assert self.go_on.wait(60)


def test_layers_are_not_changed_while_another_thread_is_in_fit(tmp_path):
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=0.5))
    rows.model.compile("sgd", "mse")
    waiting = Waiting()
    trainer = threading.Thread(
        target=rows.model.fit, args=(USER.encode(ROWS), LABELS), kwargs={"callbacks": [waiting], "verbose": 0}
    )
    trainer.start()
    try:
        assert waiting.inside.wait(60)
        with pytest.raises(EmbeddingError, match="another thread is in fit"):
            emb.restore(rows)
        with pytest.raises(EmbeddingError, match="save it in a callback of fit"):
            ps.export.save(rows, tmp_path / "artifact", features=USER, reference_rows=ROWS[:8])
    finally:
        waiting.go_on.set()
        trainer.join()
    emb.restore(rows)


def test_a_callback_saves_and_fit_goes_on_to_train_rows(tmp_path):
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=0.5))
    rows.model.compile("sgd", "mse")
    saved = []

    class Saving(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            ps.export.save(rows, tmp_path / str(epoch), features=USER, reference_rows=ROWS[:8])
            saved.append(rows.store.fetch("layers.1", np.arange(SIZE)).rows)

    rows.model.fit(USER.encode(ROWS), LABELS, epochs=2, callbacks=[Saving()], verbose=0)
    assert (saved[0] != saved[1]).any(axis=1).all()


class Mapped(OneTable):
    def call(self, inputs):
        return self.head(tf.vectorized_map(self._user, inputs["user"]))


def test_rows_that_no_backward_pass_reaches_are_told_of_once():
    rows = emb.offload(Mapped(), "memory:", optimizer=emb.SGD(lr=1.0))
    rows.model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="layer '_user' fetched rows without a backward pass") as told:
        rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    assert len(told) == 1
    rows = emb.offload(functional(1), "memory:", optimizer=emb.SGD(lr=1.0))
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(rows.model.trainable_variables[0].value)
        loss = tf.reduce_sum(rows.model(USER.encode(ROWS)))
    tape.gradient(loss, rows.model.trainable_variables[0].value)
    with pytest.warns(UserWarning, match="watch_accessed_variables=False"):
        rows.step()


def copied_within():
    with emb.placeholders():
        return keras.models.clone_model(functional(1))


def placeholder():
    with emb.placeholders():
        return functional(1)


@pytest.mark.parametrize(
    "copy",
    [
        copied_within,
        lambda: keras.models.clone_model(placeholder()),
        lambda: type(placeholder()).from_config(placeholder().get_config()),
        lambda: keras.models.model_from_json(placeholder().to_json()),
    ],
    ids=["clone within", "clone", "config", "JSON"],
)
def test_a_copy_of_a_placeholder_is_offloaded_and_restored(copy):
    rows = emb.offload(copy(), "memory:", optimizer=emb.SGD(lr=0.5))
    rows.model.compile("sgd", "mse")
    rows.model.fit(USER.encode(ROWS), LABELS, verbose=0)
    expected = rows.model.predict(USER.encode(ROWS), verbose=0)
    assert np.allclose(emb.restore(rows).predict(USER.encode(ROWS), verbose=0), expected, atol=1e-6)


def test_a_placeholder_has_no_weights_to_save(tmp_path):
    with pytest.raises(EmbeddingError, match="is a placeholder without rows"):
        placeholder().save_weights(tmp_path / "all.weights.h5")
