"""`tf_encode` gives the bits of `encode`: eagerly, in a `tf.function`, and loaded from a SavedModel."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from feature_batches import bits, dense, fit_on, ragged, rows_for, specs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import features as f
from penstock.errors import ConfigError, InvalidItem
from penstock.features.tensorflow_ids import sorted_hashes
from penstock.features.tensorflow_ops import tf_signature

Refused = tf.errors.InvalidArgumentError


# Shrinking a failure would trace hundreds of graphs, and what fails is small anyway.
bounded = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=[*HealthCheck])


def fitted(data, kind=None):
    """A random spec that can be fitted and planned."""
    spec = data.draw(specs(kind))
    try:
        return fit_on(spec, data.draw)
    except ConfigError:  # as a vocabulary of nothing
        return None


def check(features, encode, rows, make=dense):
    """That both give the same bits, or that both refuse; where they refuse, also that the good rows are the same."""
    signature = tf_signature(features)
    try:
        expected = features.encode(rows)
    except InvalidItem:
        with pytest.raises(Refused) as caught:
            encode(make(rows, signature))
        assert any(
            f"{column}:" in str(caught.value) or f"{column} or" in str(caught.value) for column in features.columns
        )
        good = features.encode_rows(rows)
        expected, rows = good.inputs, [rows[place] for place in good.kept]
    assert bits(encode(make(rows, signature))) == bits(expected)


@pytest.mark.parametrize("kind", ["Numeric", "Bucketized", "Hashed", "Vocabulary", "Ids", "Text", "Crossed"])
@settings(bounded, max_examples=8)
@given(st.data())
def test_each_kind_gives_the_bits_of_encode(kind, data):
    compare(fitted(data, kind), data)


@settings(bounded, max_examples=3)
@given(st.data())
def test_kinds_together_give_the_bits_of_encode(data):
    compare(fitted(data), data)


def compare(features, data):
    """Eagerly and in a graph, for dense and for ragged lists; one graph for several batches."""
    if features is None:
        return
    graph = tf.function(lambda tensors: features.tf_encode(tensors), input_signature=[tf_signature(features)])
    for _ in range(3):
        rows = rows_for(tf_signature(features), data.draw)
        check(features, graph, rows)
        check(features, features.tf_encode, rows)
        check(features, features.tf_encode, rows, ragged)


@settings(bounded, max_examples=2)
@given(st.data())
def test_a_saved_model_gives_the_bits_of_encode_and_refuses_what_it_refuses(tmp_path_factory, data):
    features = fitted(data)
    if features is None:
        return
    module, path = tf.Module(), str(tmp_path_factory.mktemp("saved"))
    module.encode = tf.function(lambda tensors: features.tf_encode(tensors), input_signature=[tf_signature(features)])
    tf.saved_model.save(module, path)
    loaded = tf.saved_model.load(path)
    for _ in range(4):
        check(features, loaded.encode, rows_for(tf_signature(features), data.draw))


ROWS = {
    "age": [32.0, float("nan"), 5e-324, -0.0, 2.0**-126],
    "id": [2**24 + 1, 2**31 + 5, 2**40 + 7, -1, 2**63 - 1],
    "word": ["é", "", "a\0b", "9", "unknown"],
    "tags": [["a", "b"], [], ["a", "a", "b"], ["z"], [""]],
    "w": [[0.5, 2.0], [], [1.0, 1e-40, -3.0], [0.1], [1.0]],
}
FEATURES = f.Features(
    {
        "age": f.Numeric(scale="standard", fill_value=f.MEAN),
        "id": f.Ids(),
        "word": f.Vocabulary(["9", "é", ""], num_oov_indices=2),
        "decade": f.Bucketized([0, 30], fill_value=f.EMPTY, one_hot=True, column="age"),
        "pair": f.Crossed(["word", "id"], 1000),
        "tags": f.Hashed(7, max_length=3, weights="w"),
        "counts": f.Hashed(4, max_length=3, weights="w", one_hot=True, column="tags"),
    },
    concat_into="x",
).fit(ROWS)


def tensors(**others):
    signature = tf_signature(FEATURES)
    rows = [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)]
    return dense(rows, signature) | others


def test_each_id_is_exact():
    expected = FEATURES.encode(ROWS)
    found = FEATURES.tf_encode(tensors())
    assert found["id"].numpy().tolist() == ROWS["id"]
    assert bits(found) == bits(expected)
    assert list(found) == [tensor.name for tensor in FEATURES.inputs]


def test_random_float32_have_the_buckets_and_the_hashes_of_tensorflow():
    """Trained on a column of float32, and asked by the text that JSON has of it."""
    random = np.random.default_rng(0)
    numbers = (random.normal(size=25_000) * random.choice([1e-3, 1, 1e6], 25_000)).astype(np.float32)
    numbers[::10] = np.round(random.normal(size=2_500), 1)
    whole = random.integers(-(2**24), 2**24, 25_000).astype(np.float32)
    features = f.Features(
        {
            "bucket": f.Bucketized(sorted({float(str(number)) for number in numbers[:1000]}), column="a"),
            "cut": f.Bucketized(quantiles=100, column="a"),
            "number": f.Numeric(scale="standard", column="a"),
            "hash": f.Hashed(1000, column="w"),
            "known": f.Vocabulary(max_size=500, num_oov_indices=7, column="w"),
            "cross": f.Crossed(["cut", "hash"], 5000),
        }
    ).fit({"a": numbers, "w": whole})
    found = features.encode({"a": numbers, "w": whole})
    decimals = [json.loads(str(number)) for number in numbers]
    words = tf.strings.as_string(tf.cast(whole, tf.int64))
    served = features.tf_encode({"a": tf.constant(decimals, tf.float64), "w": words})
    assert bits(found) == bits(served)
    boundaries = np.float32(features.features["bucket"].boundaries).tolist()
    assert found["bucket"].tolist() == tf.raw_ops.Bucketize(input=numbers, boundaries=boundaries).numpy().tolist()
    assert found["hash"].tolist() == tf.strings.to_hash_bucket_fast(words, 1000).numpy().tolist()


def test_the_signature_has_each_raw_column_once():
    signature = {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in tf_signature(FEATURES).items()}
    assert signature == {
        "age": ([None], "float64"),
        "id": ([None], "int64"),
        "word": ([None], "string"),
        "tags": ([None, None], "string"),
        "tags_length": ([None], "int64"),
        "w": ([None, None], "float64"),
    }


def test_a_column_that_numbers_and_categories_read_is_float64():
    both = f.Features({"n": f.Numeric(column="c"), "h": f.Hashed(9, column="c"), "i": f.Ids(column="c")})
    values = [9.0, -0.0, -1.0, 2.0**53]
    encoded = both.tf_encode({"c": tf.constant(values, tf.float64)})
    assert bits(encoded) == bits(both.encode({"c": values}))
    for refused in (2.0**53 + 2, 0.5, 5e-324):
        with pytest.raises(Refused, match="c: expected a whole number"):
            both.tf_encode({"c": tf.constant([refused], tf.float64)})


def test_without_lengths_each_value_of_a_dense_list_counts():
    lists = f.Features({"a": f.Ids(max_length=2)})
    found = lists.tf_encode({"a": tf.constant([[1], [2]], tf.int64)})
    assert found["a"].numpy().tolist() == [[1, 0], [2, 0]]
    assert found["a_weight"].numpy().tolist() == [[1, 0], [1, 0]]


def test_a_sum_that_is_subnormal_is_zero_in_both():
    counts = f.Features({"c": f.Ids(2, max_length=3, weights="w", one_hot=True)})
    small = 2.0**-126
    table = {
        "c": [[0, 0, 0], [0, 1, 0], [1, 1, 1]],
        "w": [[1.5 * small, -small, small], [-1.5 * small, 1, small], [-0.0] * 3],
    }
    found = counts.tf_encode({"c": tf.constant(table["c"], tf.int64), "w": tf.constant(table["w"], tf.float64)})
    assert bits(found) == bits(counts.encode(table))
    assert counts.encode(table)["c"].tolist() == [[small, 0], [0, 1], [0, 0]]


def test_no_batch_is_a_batch():
    assert bits(FEATURES.tf_encode({name: tensor[:0] for name, tensor in tensors().items()})) == bits(
        FEATURES.encode({name: [] for name in ROWS})
    )


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"age": tf.constant([1.0, 2.0, np.inf, 4.0, 5.0], tf.float64)}, r"age: expected a finite number[^$]*2"),
        ({"age": tf.constant([1e300] * 5, tf.float64)}, "age: a number is not a finite number as float32"),
        (
            {"word": tf.constant([b"a", b"\xff", b"b", b"\xed\xa0\x80", b"c"])},
            r"word: a string is not UTF-8[^$]*1,? 3",
        ),
        (
            {"tags_length": tf.constant([2, 0, 4, 1, 1], tf.int64)},
            "a value is not a valid length of a list in tags",
        ),
        (
            {"tags_length": tf.constant([2, 0, -1, 1, 1], tf.int64)},
            "a value is not a valid length of a list in tags",
        ),
        ({"tags": tf.fill([5, 4], "a"), "tags_length": tf.constant([4] * 5, tf.int64)}, "tags: a list has more than 3"),
        ({"w": tf.zeros([5, 2], tf.float64)}, "w: the lists have not the same lengths as those in tags"),
        (
            {"w": tf.fill([5, 3], tf.constant(np.nan, tf.float64))},
            "w: a (number|sum of weights) is not a finite number as float32",
        ),
        ({"w": tf.fill([5, 3], tf.constant(3e38, tf.float64))}, "w: a sum of weights is not a finite number"),
    ],
)
def test_what_is_refused_names_its_column_and_the_rows(others, reason):
    graph = tf.function(lambda given: FEATURES.tf_encode(given))
    for encode in (FEATURES.tf_encode, graph):
        with pytest.raises(Refused, match=reason):
            encode(tensors(**others))


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"age": tf.constant([1.0] * 5)}, r"'age' must be float64 of shape \(batch,\), got float32 of shape \(5,\)"),
        ({"age": [1.0] * 5}, "'age' must be float64"),
        ({"id": tf.constant([1] * 5)}, "'id' must be int64 .*, got int32"),
        ({"id": tf.ones([5, 1], tf.int64)}, r"'id' must be int64 of shape \(batch,\), got int64 of shape \(5, 1\)"),
        ({"word": tf.ragged.constant([["a"], [], [], [], []])}, "'word' must be string of shape"),
        ({"tags": tf.constant(["a"] * 5)}, r"'tags' must be string of shape \(batch, length\)"),
        ({"tags": tf.ragged.constant([["a"], [], [], [], []])}, "'w' and 'tags' must both be a RaggedTensor"),
    ],
)
def test_a_tensor_is_never_cast(others, reason):
    with pytest.raises(ConfigError, match=reason):
        FEATURES.tf_encode(tensors(**others))


def test_a_column_without_a_tensor_is_named():
    given = tensors()
    del given["word"]
    with pytest.raises(ConfigError, match="there is no tensor 'word'; there are age, id, tags"):
        FEATURES.tf_encode(given)


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ({"a": f.Numeric(column="c"), "b": f.Text(column="c")}, "column 'c' is used as a number and as text"),
        ({"a": f.Ids(max_length=2), "a_length": f.Ids()}, "'a_length' has the name of the lengths of 'a'"),
        ({"a": f.Ids(max_length=2, weights="a_length")}, "'a_length' has the name of the lengths of 'a'"),
    ],
)
def test_columns_that_cannot_be_tensors_are_refused(kinds, reason):
    with pytest.raises(ConfigError, match=reason):
        tf_signature(f.Features(kinds))


def test_two_values_of_one_hash_are_refused():
    assert sorted_hashes(["a", "b", "c"], np.array([3, 1, 2])).tolist() == [1, 2, 0]
    with pytest.raises(ConfigError, match="'a' and 'c' have the same hash"):
        sorted_hashes(["a", "b", "c"], np.array([3, 1, 3]))


def test_a_name_that_no_node_can_have_is_a_column_all_the_same(caplog):
    spaced = f.Features({"age in years": f.Numeric()})
    graph = tf.function(spaced.tf_encode, input_signature=[tf_signature(spaced)])
    assert graph({"age in years": tf.constant([2.0], tf.float64)})["age in years"].numpy().tolist() == [2.0]
    assert not caplog.records


FIRST_CALL = """
import penstock.features as f
import tensorflow as tf
features = f.Features({"age": f.Numeric()})
signature = {"age": tf.TensorSpec([None], tf.float64, name="age")}
graph = tf.function(features.tf_encode, input_signature=[signature])
print(graph({"age": tf.constant([2.0], tf.float64)})["age"].numpy().tolist())
"""


def test_a_graph_whose_tracing_is_the_first_call_of_all_is_made_without_a_warning():
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout == "[2.0]\n"
    assert "AutoGraph" not in done.stderr


def test_a_data_set_has_the_batches_of_the_table():
    table = ROWS | {"label": [0, 1, 1, 0, 1]}
    batches = list(FEATURES.tf_dataset(table, "label", batch_size=2))
    assert [int(labels.shape[0]) for _, labels in batches] == [2, 2, 1]
    expected = FEATURES.encode(table)
    whole = {name: np.concatenate([inputs[name] for inputs, _ in batches]) for name in expected}
    assert bits(whole) == bits(expected)
    assert np.concatenate([labels for _, labels in batches]).tolist() == table["label"]
    (only,) = FEATURES.tf_dataset(table)
    assert bits(only) == bits(expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_narrow_column_of_a_data_set_counts_as_its_decimals(dtype):
    table = {"a": np.array([0.1, 0.3, 0.5, 0.7], dtype=dtype)}
    (batch,) = f.Features({"a": f.Bucketized([0.3, 0.7])}).tf_dataset(table)
    assert batch["a"].numpy().tolist() == [0, 1, 1, 2]


def test_a_text_reaches_a_data_set_as_it_is():
    (batch,) = f.Features({"t": f.Text()}).tf_dataset({"t": ["", "é"]})
    assert batch["t"].numpy().tolist() == [b"", "é".encode()]


@pytest.mark.parametrize("batch_size", [0, -1, True, 2.0, None])
def test_a_batch_has_a_row_at_least(batch_size):
    with pytest.raises(ConfigError, match=f"batch_size must be at least 1, got {batch_size}"):
        FEATURES.tf_dataset(ROWS, batch_size=batch_size)


@pytest.mark.parametrize(
    "labels", [["a"] * 5, [None] * 5, [1, 2, 3, 4, None], [[1]] * 5, [2**70] * 5, [1.0, [2], 3, 4, 5]]
)
def test_labels_are_numbers(labels):
    with pytest.raises(ConfigError, match="the labels in column 'y' must be numbers"):
        FEATURES.tf_dataset(ROWS | {"y": labels}, "y")


def test_a_label_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="label in column 'y' is missing in row 1"):
        FEATURES.tf_dataset(ROWS | {"y": [0.0, float("nan"), 1.0, 1.0, 1.0]}, "y")
    with pytest.raises(ConfigError, match="the table has no column 'z' for the labels"):
        FEATURES.tf_dataset(ROWS, "z")
