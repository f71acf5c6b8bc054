"""`from_feature_columns` gives what `tf.compat.v1.feature_column.input_layer` gives, row for row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import embeddings as emb
from penstock import features as f
from penstock.errors import ConfigError, InvalidItem

fc = tf.compat.v1.feature_column

TYPES = {
    **dict.fromkeys(["a", "age"], tf.float64),
    "b": tf.float32,
    **dict.fromkeys(["s", "t", "u", "education"], tf.string),
    **dict.fromkeys(["i", "j", "k"], tf.int64),
}
BOUNDARIES = [-1.5, 0.0, 0.1, 0.7, 1.0, 16777217.0]


def input_layer(columns, table):
    """What TensorFlow makes of the table."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = {name: tf.constant(values, TYPES[name], shape=[len(values)]) for name, values in table.items()}
        layer = fc.input_layer(tensors, columns)
        session.run(tf.compat.v1.tables_initializer())
        return session.run(layer)


def with_lists(columns, table, weights):
    """Likewise, of a table with lists, with the rows `weights` of the embeddings, by the name of their column.

    A list is a dense tensor that is padded with what TensorFlow drops; `words` and their weights `w` are sparse ones.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = {name: as_tensor(name, values) for name, values in table.items()}
        variables = {}
        layer = fc.input_layer(tensors, columns, cols_to_vars=variables)
        session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()])
        for column, (variable,) in [(column, found) for column, found in variables.items() if found]:
            variable.load(weights[column.name], session)
        return session.run(layer)


def as_tensor(name, values):
    if name in TYPES:
        return tf.constant(values, TYPES[name], shape=[len(values)])
    dtype = {"tags": tf.string, "ids": tf.int64, "words": tf.string, "w": tf.float32}[name]
    padding = "" if dtype == tf.string else -1
    if name in ("words", "w"):
        places = [(row, place) for row, found in enumerate(values) for place in range(len(found or []))]
        flat = tf.constant([one for found in values for one in found or []], dtype)
        return tf.SparseTensor(np.reshape(np.array(places, np.int64), (-1, 2)), flat, [len(values), 3])
    return tf.constant([[*(found or []), *[padding] * (3 - len(found or []))] for found in values], dtype)


def numbers_around(boundaries):
    """Numbers that float32 rounds onto a boundary, and those next to them."""
    with np.errstate(over="ignore"):
        return _around(boundaries)


def _around(boundaries):
    found = [0.0, -0.0, 1e-40, -1e-40, 5e-324, -5e-324, 2.0**-126, 1e30, -1e30]
    for boundary in boundaries:
        single = np.float32(boundary)
        for other in (np.nextafter(single, np.float32(-np.inf)), np.nextafter(single, np.float32(np.inf))):
            middle = (float(single) + float(other)) / 2
            found += [
                float(single),
                float(other),
                *(math.nextafter(middle, to) for to in (-math.inf, math.inf)),
                middle,
            ]
        found += [boundary, math.nextafter(boundary, -math.inf), math.nextafter(boundary, math.inf)]
    return found


STRINGS = ["", "a", "b", "é", "x\0y", "9", "-1", "\U0001f600"]
VALUES = {
    "a": st.sampled_from(numbers_around(BOUNDARIES)) | st.floats(-1e30, 1e30),
    "b": st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False),
    "s": st.sampled_from(STRINGS) | st.text(max_size=4),
    "t": st.sampled_from(STRINGS),
    "u": st.sampled_from(STRINGS),
    "i": st.integers(-1, 4),
    "j": st.sampled_from([-1, 0, 7, 9, -2, 2**24 + 1, 2**40 + 7, 2**63 - 1, -(2**63)]),
    "k": st.sampled_from([-1, 0, 7, 9, -2, 2**24 + 1, 2**40 + 7, 2**63 - 1, -(2**63)]),
}


@st.composite
def categorical(draw):
    """A column that is an input in an indicator."""
    match draw(st.sampled_from(["identity", "hash", "hash of integers", "words", "numbers", "crossed", "bucketized"])):
        case "identity":
            return fc.categorical_column_with_identity("i", 5, default_value=draw(st.sampled_from([None, 0, 3])))
        case "hash":
            return fc.categorical_column_with_hash_bucket("s", draw(st.integers(2, 9)))
        case "hash of integers":
            return fc.categorical_column_with_hash_bucket("j", draw(st.integers(2, 9)), dtype=tf.int64)
        case "words":
            words = draw(st.lists(st.sampled_from(STRINGS), min_size=1, max_size=4, unique=True))
            return fc.categorical_column_with_vocabulary_list("t", words, **draw(unknowns(len(words))))
        case "numbers":
            numbers = draw(st.lists(st.sampled_from([-1, 0, 7, 2**40 + 7]), min_size=1, max_size=4, unique=True))
            return fc.categorical_column_with_vocabulary_list(
                "j", numbers, dtype=tf.int64, **draw(unknowns(len(numbers)))
            )
        case "crossed":
            columns = draw(st.lists(st.sampled_from(["bucketized", "identity"]), max_size=2, unique=True))
            bare = draw(st.lists(st.sampled_from(["s", "u", "k"]), min_size=2 - len(columns), max_size=2, unique=True))
            made = {"bucketized": draw(bucketized("a")), "identity": fc.categorical_column_with_identity("i", 5)}
            hash_key = draw(st.sampled_from([None, 0, 17, -1, 2**63 - 1]))
            return fc.crossed_column(
                [*(made[name] for name in columns), *bare], draw(st.integers(2, 50)), hash_key=hash_key
            )
        case _:
            return draw(bucketized("b"))


@st.composite
def unknowns(draw, size):
    if draw(st.booleans()):
        return {"num_oov_buckets": draw(st.integers(1, 3))}
    return {"default_value": draw(st.sampled_from([-1, 0, size - 1]))}


@st.composite
def bucketized(draw, name):
    boundaries = draw(st.lists(st.sampled_from(BOUNDARIES), min_size=1, max_size=4, unique=True))
    return fc.bucketized_column(fc.numeric_column(name), sorted(boundaries))


@st.composite
def dense_columns(draw):
    """Columns that `input_layer` takes, each name once."""
    columns = [fc.numeric_column("a"), fc.numeric_column("b", dtype=tf.float64), draw(bucketized("a"))]
    columns += [fc.indicator_column(draw(categorical())) for _ in range(draw(st.integers(1, 4)))]
    chosen = draw(st.permutations([*{column.name: column for column in columns}.values()]))
    return chosen[: draw(st.integers(1, len(chosen)))]


LISTS = {
    "tags": st.none() | st.lists(st.sampled_from(STRINGS), max_size=3),
    "ids": st.none() | st.lists(st.integers(-1, 4), max_size=3),
}
MANY = {"tags": 3, "ids": 3, "words": 3}
WEIGHTS = st.sampled_from([1.0, 0.5, 2.0, 0.0, -1.5, 1e-30])
WEIGHED = st.lists(st.tuples(st.sampled_from(STRINGS[1:]), WEIGHTS), max_size=3)


@st.composite
def listed(draw):
    """A categorical column of several values a row; it may have weights."""
    match draw(st.sampled_from(["hash", "words", "identity", "weighted hash", "weighted words"])):
        case "hash":
            return fc.categorical_column_with_hash_bucket("tags", 9)
        case "words":
            return fc.categorical_column_with_vocabulary_list("tags", ["", "b", "9"], **draw(unknowns(3)))
        case "identity":
            return fc.categorical_column_with_identity("ids", 5, default_value=draw(st.sampled_from([None, 2])))
        case "weighted hash":
            return fc.weighted_categorical_column(fc.categorical_column_with_hash_bucket("words", 5), "w")
        case _:
            inner = fc.categorical_column_with_vocabulary_list("words", ["a", "b", "9"], **draw(unknowns(3)))
            return fc.weighted_categorical_column(inner, "w")


@st.composite
def embedded(draw):
    return fc.embedding_column(
        draw(categorical() | listed()),
        draw(st.integers(1, 3)),
        combiner=draw(st.sampled_from(["sum", "mean", "sqrtn"])),
        max_norm=draw(st.sampled_from([None, None, 0.5])),
    )


@st.composite
def columns_with_embeddings(draw):
    columns = [draw(embedded()) for _ in range(draw(st.integers(1, 4)))]
    columns += [fc.indicator_column(draw(listed())) for _ in range(draw(st.integers(0, 2)))]
    columns += draw(st.just([]) | dense_columns())
    return draw(st.permutations([*{column.name: column for column in columns}.values()]))


@settings(max_examples=60, phases=[Phase.explicit, Phase.generate], suppress_health_check=[*HealthCheck])
@given(st.data())
def test_it_gives_what_input_layer_gives(data):
    columns = data.draw(dense_columns())
    rows = data.draw(st.integers(1, 6))
    table = {name: data.draw(st.lists(values, min_size=rows, max_size=rows)) for name, values in VALUES.items()}
    features = f.from_feature_columns(columns, integers=["k"])
    found = features.encode(table)
    assert list(found) == ["x"]
    expected = input_layer(columns, table)
    assert found["x"].tobytes() == expected.tobytes(), (found["x"], expected)


@settings(max_examples=40, phases=[Phase.explicit, Phase.generate], suppress_health_check=[*HealthCheck])
@given(st.data())
def test_a_layer_over_it_gives_what_input_layer_gives_with_the_same_rows(data):
    columns = data.draw(columns_with_embeddings())
    rows = data.draw(st.integers(1, 5))
    drawn = VALUES | LISTS
    table = {name: data.draw(st.lists(values, min_size=rows, max_size=rows)) for name, values in drawn.items()}
    pairs = data.draw(st.lists(WEIGHED, min_size=rows, max_size=rows))
    table["words"] = [[word for word, _ in row] for row in pairs]
    table["w"] = [[weight for _, weight in row] for row in pairs]
    keys = {key for column in columns for key in column.parse_example_spec}
    features = f.from_feature_columns(
        columns, integers=["k"], max_length={key: most for key, most in MANY.items() if key in keys}
    )
    check_layer(columns, features, table)


def check_layer(columns, features, table):
    """That `DenseFeatures` answers what TensorFlow does, where the rows of each embedding differ in every number."""
    layer = emb.DenseFeatures(columns)
    inputs = features.encode(table)
    layer.build({name: array.shape for name, array in inputs.items()})
    for shift, embedding in enumerate(layer.embeddings.values()):
        shape = embedding.embeddings.shape
        embedding.set_weights([np.sin(np.arange(np.prod(shape)) + shift).reshape(shape)])
    weights = {name: embedding.get_weights()[0] for name, embedding in layer.embeddings.items()}
    expected = with_lists(columns, table, weights)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_weight_that_is_not_positive_counts_in_a_sum_alone(combiner):
    words = fc.weighted_categorical_column(fc.categorical_column_with_hash_bucket("words", 9), "w")
    columns = [fc.embedding_column(words, 2, combiner=combiner)]
    table = {
        "words": [["a", "b", "9"], ["a"], ["b"], [], ["a", "b"]],
        "w": [[2.0, -1.5, 0.0], [-1.0], [0.0], [], [0.5, 0.25]],
    }
    check_layer(columns, f.from_feature_columns(columns, max_length={"words": 3}), table)


def test_the_inputs_are_x_and_for_each_embedding_its_ids_and_weights():
    words = fc.categorical_column_with_hash_bucket("words", 9)
    columns = [
        fc.numeric_column("a"),
        fc.embedding_column(fc.weighted_categorical_column(words, "w"), 2),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("s", 10**6), 2),
        fc.embedding_column(cut(1), 2),
    ]
    features = f.from_feature_columns(columns, max_length={"words": 2})
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in features.inputs} == {
        "x": ("float32", (1,)),
        "a_bucketized_embedding": ("int64", ()),
        "s_embedding": ("int64", ()),
        "s_embedding_weight": ("float32", ()),
        "words_weighted_by_w_embedding": ("int64", (2,)),
        "words_weighted_by_w_embedding_weight": ("float32", (2,)),
    }
    alone = f.from_feature_columns([columns[1]])
    assert [(tensor.name, tensor.shape) for tensor in alone.inputs] == [
        ("words_weighted_by_w_embedding", (1,)),
        ("words_weighted_by_w_embedding_weight", (1,)),
    ]


@pytest.mark.parametrize("max_length", [{"tags": 2}, {"tags": 1}])
def test_more_values_than_max_length_are_refused(max_length):
    column = fc.embedding_column(fc.categorical_column_with_hash_bucket("tags", 9), 2)
    features = f.from_feature_columns([column], max_length=max_length)
    rows = [{"tags": ["a"] * max_length["tags"]}, {"tags": ["a"] * (max_length["tags"] + 1)}]
    with pytest.raises(
        InvalidItem, match=rf"expected a list of at most {max_length['tags']} values, got .* `\$\[1\].tags`"
    ):
        features.encode(rows)
    tensors = {
        "tags": tf.fill([1, max_length["tags"] + 1], "a"),
        "tags_length": tf.constant([max_length["tags"] + 1], tf.int64),
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"tags: a list has more than {max_length['tags']} values"):
        features.tf_encode(tensors)


@pytest.mark.parametrize(
    "boundary",
    [0.0, 0.1, 0.7, -0.1, 16777217.0, 1e-40, -1e-40, 2.0**-126, -(2.0**-126), 3.4e38, -3.4028234663852886e38],
)
def test_a_boundary_is_where_float32_has_it(boundary):
    column = fc.bucketized_column(fc.numeric_column("a"), [boundary])
    numbers = [number for number in numbers_around([boundary]) if abs(number) < 2.0**128 - 2.0**103]
    found = f.from_feature_columns([column]).encode({"a": numbers})["x"]
    assert found.tolist() == input_layer([column], {"a": numbers}).tolist()


def test_a_table_of_float32_has_the_buckets_that_tensorflow_trains_on():
    random = np.random.default_rng(0)
    table = {
        "b": np.concatenate([random.normal(size=25_000), np.round(random.normal(size=1000), 1)]).astype(np.float32)
    }
    boundaries = np.unique([*np.arange(-20, 20) / 10, *table["b"][:100].astype(np.float64), *random.normal(size=100)])
    columns = [fc.bucketized_column(fc.numeric_column("b"), boundaries.tolist()), fc.numeric_column("b")]
    assert f.from_feature_columns(columns).encode(table)["x"].tobytes() == input_layer(columns, table).tobytes()


def test_what_tensorflow_drops_is_an_empty_row():
    columns = [
        fc.indicator_column(fc.categorical_column_with_hash_bucket("s", 3)),
        fc.indicator_column(fc.categorical_column_with_identity("i", 3, default_value=2)),
        fc.indicator_column(fc.categorical_column_with_vocabulary_list("t", ["", "a"], num_oov_buckets=1)),
    ]
    table = {"s": [""], "i": [-1], "t": [""]}
    assert not input_layer(columns, table).any()
    features = f.from_feature_columns(columns)
    assert not features.encode(table)["x"].any()
    assert not features.encode([{}])["x"].any()


def test_an_integer_in_a_cross_is_told_from_a_string():
    crossed = fc.indicator_column(fc.crossed_column(["k", "u"], 1000))
    table = {"k": [7, -2, 2**40], "u": ["a", "b", "c"]}
    expected = input_layer([crossed], table).tolist()
    assert f.from_feature_columns([crossed], integers=["k"]).encode(table)["x"].tolist() == expected
    known = [crossed, fc.numeric_column("k", dtype=tf.int64)]
    features = f.from_feature_columns(known)
    assert features.encode(table)["x"].tolist() == input_layer(known, table).tolist()
    assert f.from_feature_columns([crossed]).encode(table)["x"].tolist() != expected


def test_a_cross_of_a_cross_has_the_keys_of_both():
    inner = fc.crossed_column(["s", "t"], 5)
    crossed = fc.indicator_column(fc.crossed_column([inner, "u"], 100))
    table = {"s": ["a", "b"], "t": ["", "c"], "u": ["d", "e"]}
    assert f.from_feature_columns([crossed]).encode(table)["x"].tolist() == input_layer([crossed], table).tolist()


def test_a_default_stands_for_a_missing_number():
    columns = [
        fc.numeric_column("a", default_value=2.0),
        fc.bucketized_column(fc.numeric_column("a", default_value=2.0), [1]),
    ]
    assert f.from_feature_columns(columns).encode([{}])["x"].tolist() == [[2, 0, 1]]
    with pytest.raises(InvalidItem):
        f.from_feature_columns([fc.numeric_column("a")]).encode([{"a": None}])


def identity():
    return fc.categorical_column_with_identity("i", 3)


def words():
    return fc.categorical_column_with_vocabulary_list("s", ["a"])


def of_a_file():
    return fc.categorical_column_with_vocabulary_file("s", "file", 3)


def sequence():
    return tf.feature_column.sequence_categorical_column_with_identity("i", 3)


def cut(*boundaries, shape=(1,)):
    return fc.bucketized_column(fc.numeric_column("a", shape=shape), [*boundaries])


def crossed(*keys):
    return fc.indicator_column(fc.crossed_column([*keys], 9))


def weighted():
    return fc.weighted_categorical_column(fc.categorical_column_with_hash_bucket("s", 3), "w")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: fc.embedding_column(identity(), 2, combiner="max"),
            "'i_embedding': combiner must be one of sum, mean",
        ),
        (
            lambda: fc.embedding_column(identity(), 2, ckpt_to_load_from="file", tensor_name_in_ckpt="rows"),
            "'i_embedding': ckpt_to_load_from is a file of TensorFlow 1",
        ),
        (
            lambda: fc.embedding_column(identity(), 2, use_safe_embedding_lookup=False),
            "'i_embedding': use_safe_embedding_lookup=False leaves open",
        ),
        (
            lambda: fc.embedding_column(fc.categorical_column_with_vocabulary_list("s", ["a"], default_value=1), 2),
            "'s_embedding': default_value 1 is not the id of one of the 1 values",
        ),
        (lambda: fc.embedding_column(of_a_file(), 2), "'s_embedding': VocabularyFileCategoricalColumn .*read the file"),
        (
            lambda: fc.embedding_column(fc.weighted_categorical_column(fc.crossed_column(["s", "t"], 9), "w"), 2),
            "CrossedColumn cannot be weighted here: IdentityCategoricalColumn and",
        ),
        (
            weighted,
            "'s_weighted_by_w': WeightedCategoricalColumn .*wrap it in an indicator_column or an embedding_col",
        ),
        (identity, "'i': IdentityCategoricalColumn cannot be converted: wrap it in an indicator_column"),
        (lambda: fc.indicator_column(of_a_file()), "'s_indicator': VocabularyFileCategoricalColumn .*read the file"),
        (lambda: tf.feature_column.sequence_numeric_column("a"), "'a': SequenceNumericColumn cannot be converted"),
        (lambda: fc.indicator_column(sequence()), "'i_indicator': SequenceCategoricalColumn .*max_length="),
        (lambda: fc.numeric_column("a", normalizer_fn=abs), "'a': normalizer_fn is a function"),
        (lambda: fc.numeric_column("a", shape=(2,)), r"'a': shape must be \(1,\), got \(2,\)"),
        (lambda: cut(1, shape=(2,)), r"'a_bucketized': shape must be \(1,\)"),
        (lambda: cut(1, 1 + 1e-12), "'a_bucketized': boundaries must rise"),
        (lambda: cut(1e39), r"the boundary 1e\+39 is not a finite number as float32"),
        (lambda: crossed("s", cut(1)), "'a_bucketized_X_s_indicator': a bare name stands before a column"),
        (lambda: crossed(words(), "t"), "crosses the index of a value in the vocabulary list of 's'"),
        (lambda: crossed(weighted(), "t"), "TensorFlow ignores weights in a cross, but 's_weighted_by_w' has some"),
    ],
)
def test_what_cannot_be_equal_is_refused_by_name(make, reason):
    with pytest.raises(ConfigError, match=reason):
        f.from_feature_columns([make()])


@pytest.mark.parametrize(
    ("max_length", "reason"),
    [
        ({"tag": 2}, "max_length= has 'tag', which is not the key of a categorical column; did you mean 'tags'"),
        ({"a": 2}, "max_length= has 'a', which is not the key of a categorical column$"),
        ({3: 2}, "max_length= has 3"),
        ({"tags": 0}, "max_length of 'tags' must be an integer of at least 1"),
        (20, "max_length must be a dict of numbers by raw key, got 20"),
        ({"s": 2}, "'s_X_t_indicator': 's' has a list in each row, but a cross takes one value of each key"),
    ],
)
def test_max_length_is_of_keys_that_may_have_lists(max_length, reason):
    words = [fc.categorical_column_with_hash_bucket(key, 9) for key in ("tags", "s")]
    columns = [fc.numeric_column("a"), crossed("s", "t"), *(fc.embedding_column(word, 2) for word in words)]
    with pytest.raises(ConfigError, match=reason):
        f.from_feature_columns(columns, max_length=max_length)


def test_a_float_is_no_key_of_a_cross():
    with pytest.raises(ConfigError, match="the key 'a' is a float, which TensorFlow cuts to an integer"):
        f.from_feature_columns([fc.numeric_column("a"), fc.indicator_column(fc.crossed_column(["a", "s"], 9))])


def test_shared_embeddings_are_refused():
    words = fc.categorical_column_with_hash_bucket("s", 3), fc.categorical_column_with_hash_bucket("t", 3)
    with tf.Graph().as_default():
        shared = fc.shared_embedding_columns([*words], 2)
        with pytest.raises(ConfigError, match="EmbeddingColumn cannot be converted: make an embedding_column of each"):
            f.from_feature_columns(shared)
        shared = tf.feature_column.shared_embeddings([*words], 2)
        with pytest.raises(
            ValueError, match="SharedEmbeddingColumns are not supported in `linear_model` or `input_layer`"
        ):
            fc.input_layer({"s": tf.constant(["a"]), "t": tf.constant(["a"])}, shared)
        with pytest.raises(ConfigError, match="EmbeddingColumn cannot be converted: make an embedding_column of each"):
            f.from_feature_columns(shared)


def test_two_columns_of_one_name_and_what_is_no_column_are_refused():
    with pytest.raises(ConfigError, match="two columns with the name 'a'"):
        f.from_feature_columns([fc.numeric_column("a"), fc.numeric_column("a", default_value=1.0)])
    with pytest.raises(ConfigError, match=r"'a' is not a column of tf\.feature_column"):
        f.from_feature_columns(["a"])


def test_the_hashes_of_keras_are_the_same_ones():
    """What the page about coming from `FeatureSpace` says of buckets and crosses."""
    import keras

    table = {"s": ["x", "y", "é", "z"], "t": ["1", "2", "3", "q"], "i": [17, 2**40 + 7, -1, 0]}
    features = f.Features(
        {"s": f.Hashed(1000), "t": f.Hashed(1000), "i": f.Hashed(1000), "c": f.Crossed(["s", "t"], 1000)}
    )
    found = features.encode(table)
    for name, values in table.items():
        assert found[name].tolist() == keras.layers.Hashing(num_bins=1000)(np.array(values)).numpy().tolist()
    crossing = keras.layers.HashedCrossing(num_bins=1000)
    assert found["c"].tolist() == crossing((np.array(table["s"]), np.array(table["t"]))).numpy().tolist()
