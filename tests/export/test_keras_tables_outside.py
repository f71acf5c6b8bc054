"""Models of Keras whose tables stay outside of the graph answer as the model does, whatever they look up."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import penstock as ps  # noqa: E402
from penstock import embeddings as emb  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.artifact.opened_artifact import open_artifact  # noqa: E402
from penstock.artifact.served_model import open_model  # noqa: E402
from penstock.cli.artifact_shown import show_artifact  # noqa: E402
from penstock.embeddings.offloading import framework_of  # noqa: E402
from penstock.errors import ConfigError, ExportRefused  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`build")  # of a model with a table that is for training alone

WIDTH = 4
USERS, ITEMS = 1000, 60
SPEC = ps.Features({"user": f.Ids(), "items": f.Ids(size=ITEMS, max_length=3), "age": f.Numeric()})
ROWS = [
    {"user": user, "items": list(range(place, place + place % 4)), "age": place / 3}
    for place, user in enumerate([5, 2**31 + 5, 2**24 + 1, 7, 0, 999, 5, -3, 2**40 + 7])
]
ASKED = [
    *ROWS,
    {"user": 77, "items": [], "age": 2.0},
    {"user": 2**62, "items": [59, 1, 59], "age": -1.0},
]


def table(size=ITEMS, **options):
    return keras.layers.Embedding(size, WIDTH, **options)


def bag(rows, weights):
    return keras.ops.sum(rows * keras.ops.expand_dims(weights, -1), axis=1)


class Scored(keras.Model):
    """Base of the subclassed models: each makes vectors of the width of a row."""

    def __init__(self):
        super().__init__()
        self.user = table(USERS)
        self.out = keras.layers.Dense(2)

    def call(self, inputs):
        found = self.vectors(inputs["user"], inputs["items"], inputs["items_weight"])
        return {"score": self.out(keras.ops.concatenate(found, axis=1) * 100) + inputs["age"][:, None]}


class Twice(Scored):
    """A table that is looked up twice, once by ids that are computed; and one with ids of two axes."""

    def __init__(self):
        super().__init__()
        self.items = table()

    def vectors(self, user, items, weights):
        return [self.user(user), bag(self.items(items), weights), self.user(user * 7 + items[:, 0] + 1)]


class Pair(Scored):
    """Two tables of one width and size; one in a list, and ids of 32 bits where every id fits."""

    def __init__(self):
        super().__init__()
        self.pair = [table(), table()]

    def vectors(self, user, items, weights):
        left, right = self.pair
        return [left(items[:, 0]), right(keras.ops.cast(items[:, 1], "int32")), left(items[:, 2])]


class Masked(Scored):
    """Padding that a mask keeps from the next layer."""

    def __init__(self):
        super().__init__()
        self.items, self.pool = table(mask_zero=True), keras.layers.GlobalAveragePooling1D()

    def vectors(self, user, items, weights):
        at_least_one = keras.ops.concatenate([items, keras.ops.ones_like(items[:, :1])], axis=1)
        return [self.user(user), self.pool(self.items(at_least_one))]


class Flattened(Scored):
    """Ids whose first axis is not the batch: flattened, some of them, always the same ones, and a single one."""

    def __init__(self):
        super().__init__()
        self.flat, self.some, self.places, self.one = table(), table(), table(3), table()

    def vectors(self, user, items, weights):
        batch = keras.ops.shape(items)[0]
        rows = keras.ops.reshape(self.flat(keras.ops.reshape(items, (-1,))), (batch, 3, WIDTH))
        where = tf.where(weights > 0)
        some = tf.scatter_nd(where, self.some(tf.gather_nd(items, where)), tf.cast([batch, 3, WIDTH], tf.int64))
        return [keras.ops.sum((rows + some) * self.places(tf.range(3)), axis=1) + self.one(tf.constant(7))]


class InAGraph(Twice):
    """Makes its lookups in a graph of its own."""

    @tf.function
    def vectors(self, user, items, weights):
        return super().vectors(user, items, weights)


class Branching(Twice):
    """Has branches that only TensorFlow can follow, before and behind its lookups."""

    @tf.function
    def kept(self, values):
        if tf.reduce_sum(values) < 0:
            return values + 0
        return values * 1

    def vectors(self, user, items, weights):
        first, *others = super().vectors(user, self.kept(items), weights)
        return [self.kept(first), *others]


def functional():
    user = keras.Input((), dtype="int64", name="user")
    items, weights = keras.Input((3,), dtype="int64", name="items"), keras.Input((3,), name="items_weight")
    age = keras.Input((), name="age")
    given = {"user": user, "items": items, "items_weight": weights, "age": age}
    users = table(USERS)
    parts = [users(user), bag(table()(items), weights), bag(table()(items + 0), weights), users(user * 3 - 1)]
    both = keras.layers.Concatenate()([*parts, keras.ops.expand_dims(age, 1)])
    return keras.Model(given, {"score": keras.layers.Dense(2)(both)})


def trained(make, *, filled=False, **options):
    """The rows of a model; unless it is `filled`, those alone are stored that were trained."""
    keras.utils.set_random_seed(1)
    if filled:
        model = make()
        model(SPEC.encode(ROWS))
    else:
        with emb.placeholders():
            model = make()
    users = next(
        path for path, layer in framework_of(model).embedding_layers(model).items() if layer.input_dim == USERS
    )
    any_ids = {users: emb.Table(ids="any", missing=emb.init(3))}
    rows = emb.offload(model, "memory:", optimizer=emb.Adagrad(lr=0.1), tables=any_ids, **options)
    tensors = {name: tf.constant(array) for name, array in SPEC.encode(ROWS).items()}
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(rows.model(tensors)["score"] ** 2)
        tape.gradient(loss, rows.model.trainable_variables)
        rows.step()
    return rows


def answers(model, rows, spec=SPEC):
    return model({name: tf.constant(array) for name, array in spec.encode(rows).items()}, training=False)["score"]


def check_no_python(path):
    """No operation of the graph, in any function of it, calls Python, or takes rows from nowhere."""
    from tensorflow.core.protobuf import saved_model_pb2

    (graph,) = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs
    assert sorted(graph.signature_def.keys() - {"__saved_model_init_op"}) == ["ids", "rows"]
    nodes = [*graph.graph_def.node]
    for function in graph.graph_def.library.function:
        nodes += function.node_def
        assert not [node for node in function.node_def if node.op == "Placeholder"]
    assert not [node.op for node in nodes if "PyFunc" in node.op or "NumpyFunction" in node.op]


class Unread(keras.Model):
    """Has no feature but its ids, so it may take their tensor, and looks another table up before it sees them."""

    def __init__(self):
        super().__init__()
        self.bias, self.user, self.out = table(1), table(USERS), keras.layers.Dense(2)

    def call(self, ids):
        first = self.bias(tf.zeros((1,), tf.int32))
        return {"score": self.out(self.user(ids) + first)}


def sequential():
    return keras.Sequential([keras.Input((), dtype="int64"), table(USERS), keras.layers.Dense(2)])


USER = ps.Features({"user": f.Ids()})


def test_ids_may_be_those_of_a_vocabulary_in_the_model(tmp_path):
    class Worded(keras.Model):
        def __init__(self):
            super().__init__()
            self.words = keras.layers.StringLookup(vocabulary=["red", "green", "blue"])
            self.word, self.out = table(4), keras.layers.Dense(2)

        def call(self, inputs):
            return {"score": self.out(self.word(self.words(inputs["word"])))}

    features = ps.Features({"word": f.Text()})
    asked = [{"word": word} for word in ("red", "blue", "green", "yellow", "red")]
    rows = emb.offload(Worded(), "memory:", optimizer=emb.SGD(lr=0.1))
    report = ps.export.save(rows, tmp_path / "saved", features=features, reference_rows=asked, outside=["word"])
    found = open_model(open_artifact(report.path, trust=True)).predict_rows(asked).values["score"]
    assert np.allclose(found, answers(rows.model, asked, features), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [Unread, sequential])
def test_a_model_of_one_input_takes_its_tensor(make, tmp_path):
    keras.utils.set_random_seed(1)
    with emb.placeholders():
        model = make()
    path = "user" if make is Unread else "layers.0"
    rows = emb.offload(
        model, "memory:", optimizer=emb.SGD(lr=0.1), tables={path: emb.Table(ids="any", missing=emb.init(3))}
    )
    asked = [{"user": row["user"]} for row in ASKED]
    report = ps.export.save(
        rows, tmp_path / "saved", features=USER, reference_rows=asked, outputs=["score"] * (make is not Unread) or None
    )
    found = open_model(open_artifact(report.path, trust=True)).predict_rows(asked).values["score"]
    expected = rows.model(tf.constant(USER.encode(asked)["user"]))
    assert np.allclose(found, expected["score"] if make is Unread else expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [Twice, Pair, Masked, Flattened, InAGraph, Branching, functional])
def test_a_model_with_its_tables_outside_answers_as_it_does(make, tmp_path):
    rows = trained(make)
    before = answers(rows.model, ASKED)
    report = ps.export.save(
        rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS, outside=list(rows.tables), shard_bytes=700
    )
    assert np.array_equal(answers(rows.model, ASKED), before)
    artifact = open_artifact(report.path, trust=True)
    asked = {one.path for one in artifact.manifest.outside}
    assert asked == set(rows.tables) - ({"user"} if make in (Pair, Flattened) else set())
    check_no_python(report.path / "saved_model")
    model = open_model(artifact)
    for count in (1, 2, len(ASKED)):
        found = [
            model.predict_rows(ASKED[start : start + count]).values["score"] for start in range(0, len(ASKED), count)
        ]
        assert np.allclose(np.concatenate(found), before, rtol=1e-5, atol=1e-5), count
    model.close()


def test_a_table_inside_and_one_outside_are_both_held_to_their_ids(tmp_path):
    class Computed(Twice):
        def vectors(self, user, items, weights):
            return [self.user(user), bag(self.items(items), weights), self.items(items[:, 0] + user % 50)]

    rows = trained(Computed)
    report = ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    artifact = open_artifact(report.path, trust=True)
    manifest = artifact.manifest
    assert [(one.path, one.placed) for one in manifest.tables] == [("user", "outside"), ("items", "inlined")]
    assert [(graph.format, graph.path, graph.role) for graph in manifest.graphs] == [
        ("saved_model", "saved_model", "ids"),
        ("saved_model", "saved_model", "model"),
    ]
    written = [shape for _, shape in tf.train.list_variables(str(report.path / "saved_model/variables/variables"))]
    assert sorted(shape for shape in written if shape) == [[2], [3 * WIDTH, 2], [ITEMS, WIDTH]]
    asked = [ROWS[0], {"user": 49, "items": [59], "age": 1}, {"user": 2**50, "items": [60], "age": 1}, ROWS[1]]
    model = open_model(artifact)
    found = model.predict_rows(asked, explain=True)
    assert found.kept == [0, 3]
    assert found.invalid[1].reason == "table 'items' has the ids from 0 to 59, but id 108 was requested"
    assert found.invalid[2].path == "$.items[0]"
    assert np.allclose(found.values["score"], answers(rows.model, ROWS[:2]), rtol=1e-5, atol=1e-5)
    assert found.missing == [{}, {}]
    assert model.predict_rows([{"user": 12345, "items": [], "age": 0}], explain=True).missing == [{"user": 1}]


def test_as_many_ids_as_rows_are_not_by_the_row_in_another_order_or_where_values_say_how_many(tmp_path):
    class Turned(Flattened):
        def vectors(self, user, items, weights):
            first = items[:, 0]
            turned = self.flat(keras.ops.flip(first, axis=0))
            alone = self.some(tf.boolean_mask(first, user > -10))
            return [keras.ops.flip(turned, axis=0) + alone]

    report = ps.export.save(trained(Turned), tmp_path / "saved", features=SPEC, reference_rows=ROWS, outside=["flat"])
    artifact = open_artifact(report.path, trust=True)
    assert [lookup.by_row for lookup in artifact.manifest.lookups] == [False, False]


def test_a_model_that_looks_up_no_table_outside_is_saved_as_one_without(tmp_path):
    class Idle(Twice):
        def vectors(self, user, items, weights):
            return [bag(self.items(items), weights)]

    rows = trained(Idle)
    with pytest.raises(ExportRefused, match="feature 'user' is Ids without a size"):  # nothing would check its ids
        ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    sized = ps.Features({"user": f.Ids(size=2**62), "items": f.Ids(size=ITEMS, max_length=3), "age": f.Numeric()})
    probes = [row for row in ROWS if row["user"] >= 0]
    report = ps.export.save(rows, tmp_path / "saved", features=sized, reference_rows=probes)
    manifest = open_artifact(report.path).manifest
    assert (manifest.schema, manifest.tables, [graph.role for graph in manifest.graphs]) == (3, (), ["model"])


def test_ids_that_depend_on_rows_are_refused_with_both_layers(tmp_path):
    class Chained(Twice):
        def vectors(self, user, items, weights):
            first = self.user(user)
            return [first, first, self.items(keras.ops.cast(first[:, 0] * 10, "int64") % ITEMS)]

    rows = trained(Chained)
    before = answers(rows.model, ROWS)
    with pytest.raises(ExportRefused, match="the ids of layer 'items' depend on the rows of layer 'user'"):
        ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    assert not (tmp_path / "saved").exists()
    assert np.array_equal(answers(rows.model, ROWS), before)


def test_a_lookup_in_a_loop_is_refused_by_its_layer(tmp_path):
    class Looping(Twice):
        def vectors(self, user, items, weights):
            each = tf.map_fn(self.items, items, fn_output_signature=tf.float32)
            return [self.user(user), each[:, 0], each[:, 1]]

    with pytest.raises(ExportRefused, match="layer 'items' is called inside of a loop"):
        ps.export.save(trained(Looping), tmp_path / "saved", features=SPEC, reference_rows=ROWS)


def test_features_that_are_called_as_the_inputs_with_rows_are_told_apart(tmp_path):
    spec = ps.Features({"rows_0": f.Ids(), "places_0_0": f.Numeric(), "ids_0_0": f.Numeric()})

    class Named(keras.Model):
        def __init__(self):
            super().__init__()
            self.user = table(9)

        def call(self, inputs):
            return {"score": keras.ops.sum(self.user(inputs["rows_0"]), 1) + inputs["places_0_0"] * inputs["ids_0_0"]}

    probes = [{"rows_0": place * 3, "places_0_0": place, "ids_0_0": 1 / (place + 1)} for place in range(5)]
    any_ids = {"user": emb.Table(ids="any", missing=emb.init(3))}
    rows = emb.offload(Named(), "memory:", optimizer=emb.SGD(lr=0.1), tables=any_ids)
    report = ps.export.save(rows, tmp_path / "saved", features=spec, reference_rows=probes)
    assert report.rows >= len(probes)


def test_a_column_with_an_embedding_is_outside_as_it_is_inlined(tmp_path, capsys):
    column = tf.feature_column
    colors = column.categorical_column_with_hash_bucket("color", 1000)
    columns = [
        column.numeric_column("age"),
        column.embedding_column(colors, WIDTH),
        column.embedding_column(column.categorical_column_with_identity("tags", 50), WIDTH, combiner="mean"),
    ]
    table_of = [{"age": place / 2, "color": f"color {place}", "tags": list(range(place % 3))} for place in range(12)]
    features = f.from_feature_columns(columns, max_length={"tags": 3}).fit(table_of)
    keras.utils.set_random_seed(1)
    with emb.placeholders():
        model = keras.Sequential([emb.DenseFeatures(columns), keras.layers.Dense(2)])
    rows = emb.offload(model, f"shared:{tmp_path / 'rows'}", optimizer=emb.SGD(lr=0.1))
    found = {}
    for name, outside in {"outside": list(rows.tables)[:1], "inlined": []}.items():
        report = ps.export.save(rows, tmp_path / name, features=features, reference_rows=table_of, outside=outside)
        artifact = open_artifact(report.path, trust=True)
        assert [one.path for one in artifact.manifest.outside] == outside
        show_artifact(artifact, as_json=False)
        assert ("no raw features" in capsys.readouterr().out) == bool(outside)
        found[name] = open_model(artifact).predict_rows(table_of).values["output"]
    assert np.allclose(found["outside"], found["inlined"], rtol=1e-5, atol=1e-6)


def test_a_model_with_shared_weights_is_saved_with_a_table_outside(tmp_path):
    rows = trained(functional, dense="shared")
    report = ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    with pytest.raises(ConfigError, match="can run code"):
        open_model(open_artifact(report.path))
    found = open_model(open_artifact(report.path, trust=True)).predict_rows(ASKED)
    assert np.allclose(found.values["score"], answers(rows.model, ASKED), rtol=1e-5, atol=1e-5)


def test_the_weights_are_loaded_once_for_both_graphs(tmp_path, monkeypatch):
    rows = trained(Pair)
    report = ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS, outside=["pair.0", "pair.1"])
    loads, load = [], tf.saved_model.load
    monkeypatch.setattr(tf.saved_model, "load", lambda path: loads.append(path) or load(path))
    model = open_model(open_artifact(report.path, trust=True))
    assert len(loads) == 1
    assert set(load(loads[0]).signatures) == {"ids", "rows"}  # and none that takes raw features
    model.close()
