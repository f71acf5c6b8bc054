"""Random specs, rows for them, and these rows as tensors: what the tests of `tf_encode` draw from.

Every number, string and id that is known to make trouble is among the values.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from penstock import features as f
from penstock.features.tensorflow_ops import tf_signature

FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 9.0, 2.5, 0.1, 1e-40, -1e-40, 5e-324, -5e-324, 1e300, math.nan, math.inf, -math.inf,
    2.0**-126, 2.0**-126 - 2.0**-150, 2.0**-126 - 2.0**-151, -(2.0**-126 - 2.0**-149), 16777217.0, 2.0**53, 2.0**53 + 2,
    3.5e38, -3.5e38, 3.4028235677973366e38, 3.4028235677973362e38,
]  # fmt: skip
STRINGS = ["", "a", "b", "é", "a\0b", "9", "-1", "\U0001f600", "\ufeffa", "\ufffd", "?"]
IDS = [-1, 0, 1, 2, 9, 2**24 + 1, 2**31 + 5, 2**40 + 7, 2**63 - 1, -(2**63)]

floats = st.sampled_from(FLOATS) | st.floats()
strings = st.sampled_from(STRINGS) | st.text(max_size=4)
ids = st.sampled_from(IDS) | st.integers(0, 5)
tame_floats = st.floats(-1e6, 1e6)


def optional(strategy):
    return st.none() | strategy


def ignored(values):
    return st.lists(st.sampled_from(values), max_size=2).map(tuple)


@st.composite
def forms(draw, *, key=False, sized=True):
    """Options that say what becomes of an id: alone, one-hot, in a list, or only a key."""
    form = draw(st.sampled_from(["key"] if key else ["id", "one_hot", "many", "counts"] if sized else ["id", "many"]))
    options = {"one_hot": form in ("one_hot", "counts"), "cross_only": form == "key"}
    if form in ("many", "counts"):
        options |= {"max_length": draw(st.integers(1, 3)), "weights": draw(st.sampled_from([None, "w"]))}
    return options


@st.composite
def numerics(draw, column):
    fill_value = optional(st.sampled_from([f.MEAN, 0.25, -3.0]))
    scale = draw(st.sampled_from([None, "standard", "minmax"]))
    return f.Numeric(
        scale=scale,
        fill_value=draw(fill_value),
        missing_values=draw(ignored([-1, 0.5, 1e-40, math.inf])),
        column=column,
    )


@st.composite
def bucketized(draw, column, **form):
    options = draw(forms(**form))
    if draw(st.booleans()):
        cuts = st.lists(
            st.sampled_from([-1.0, 0.0, 0.1, 0.5, 2.0**-126, 1e30, 9.0]), min_size=1, max_size=4, unique=True
        )
        options["boundaries"] = sorted(draw(cuts))
    else:
        options["quantiles"] = draw(st.integers(2, 4))
    fill_value = draw(optional(st.sampled_from([f.EMPTY, f.MEAN, 0.5])))
    return f.Bucketized(**options, fill_value=fill_value, missing_values=draw(ignored([-1, 9.0])), column=column)


@st.composite
def hashed(draw, column, **form):
    options = draw(forms(**form))
    fill_value = draw(optional(st.sampled_from([f.EMPTY, "gone", 9])))
    return f.Hashed(
        draw(st.integers(1, 9)),
        **options,
        fill_value=fill_value,
        missing_values=draw(ignored(["", "?", -1, 9.0])),
        column=column,
    )


@st.composite
def vocabularies(draw, column, **form):
    options = draw(forms(**form))
    values = None
    if draw(st.booleans()):
        values = options["values"] = draw(st.lists(st.sampled_from(STRINGS), min_size=1, max_size=5, unique=True))
    else:
        options |= {"max_size": draw(st.integers(1, 5)), "min_count": draw(st.integers(1, 2))}
    options["num_oov_indices"] = draw(st.integers(0, 2))
    if not options["num_oov_indices"]:
        options["unknown"] = draw(optional(st.sampled_from([f.EMPTY, *(values or [])])))
    fill_values = [f.EMPTY, *(values or [])] + (["gone"] if options["num_oov_indices"] else [])
    fill_value = draw(optional(st.sampled_from(fill_values)))
    return f.Vocabulary(**options, fill_value=fill_value, missing_values=draw(ignored(["", "?", 9])), column=column)


@st.composite
def id_kinds(draw, column, **form):
    size = draw(st.sampled_from([None, 3, 10, 2**40 + 8]))
    options = draw(forms(**form, sized=size in (3, 10)))
    if size is not None:
        options["unknown"] = draw(optional(st.sampled_from([f.EMPTY, 1])))
    fill_value = draw(optional(st.sampled_from([f.EMPTY, 2])))
    return f.Ids(size, **options, fill_value=fill_value, missing_values=draw(ignored([-1, 9, 2.0])), column=column)


@st.composite
def texts(draw, column):
    return f.Text(fill_value=draw(optional(st.just("gone"))), missing_values=draw(ignored(["", "?"])), column=column)


KEYS = {"Bucketized": bucketized, "Hashed": hashed, "Vocabulary": vocabularies, "Ids": id_kinds}
KINDS = {"Numeric": numerics, "Text": texts, **KEYS}


@st.composite
def crosses(draw):
    """A cross with its keys, each of a column of its own."""
    keys = {
        f"key {place}": draw(draw(st.sampled_from([*KEYS.values()]))(None, key=True))
        for place in range(draw(st.integers(2, 3)))
    }
    one_hot = draw(st.booleans())
    cross = f.Crossed(
        [*keys],
        draw(st.sampled_from([1, 7, 50] if one_hot else [7, 2**40])),
        hash_key=draw(st.sampled_from([0, 5, 0xDECAFCAFFE, 2**64 - 1])),
        one_hot=one_hot,
        fill_value=draw(st.sampled_from([None, f.EMPTY])),
    )
    return {"cross": cross, **keys}


@st.composite
def specs(draw, kind=None):
    """A spec, not fitted: one feature of a kind, or several, of which some read one column."""
    if kind == "Crossed":
        return f.Features(draw(crosses()))
    if kind is not None:
        return f.Features({"one": draw(KINDS[kind](draw(st.sampled_from([None, "raw"]))))})
    kinds = {
        "n": draw(numerics("shared number")), "b": draw(bucketized("shared number", key=True)),
        "i": draw(id_kinds("shared number", key=True)), "h": draw(hashed("shared word", key=True)),
        "v": draw(vocabularies("shared word", key=True)), "t": draw(texts("shared word")),
        "c": f.Crossed(["b", "h"], 11, one_hot=True, fill_value=f.EMPTY),
        "d": f.Crossed(["v", "i"], 7, fill_value=f.EMPTY),
        "l": f.Hashed(5, max_length=3, weights="w", fill_value=f.EMPTY, missing_values=("",), column="list"),
        "m": f.Vocabulary(["a", "b", ""], max_length=2, one_hot=True, weights="w", fill_value="a", column="list"),
    }  # fmt: skip
    return f.Features(kinds, concat_into=draw(st.sampled_from([None, "x"])))


def fit_on(spec, draw):
    """The spec, fitted on a few rows without anything that is refused."""
    values = {tf.float64: tame_floats, tf.string: st.sampled_from(STRINGS), tf.int64: st.integers(0, 2)}
    return spec.fit(rows_for(spec_signature(spec), draw, values, least=6, longest=1))


def spec_signature(spec):
    """The signature needs the kinds only, so it is there before the spec is fitted."""
    from penstock.features.tensorflow_raw import raw_specs

    return raw_specs(spec.features)


def rows_for(signature, draw, values=None, *, least=0, longest=3):
    """Rows as `encode` takes them; a list and its weights are of one length."""
    values = values or {tf.float64: floats, tf.string: strings, tf.int64: ids}
    rows = []
    for _ in range(draw(st.integers(least, 8))):
        length = draw(st.integers(0, longest))
        row = {}
        for name, wanted in signature.items():
            if name.endswith("_length"):
                continue
            one = values[wanted.dtype]
            if name == "w":
                one = st.sampled_from([1.0, 0.0, -2.5, 0.1, 1e-40, 3e38, -(2.0**-126), 1.5 * 2.0**-126])
            row[name] = draw(one if wanted.shape.rank == 1 else st.lists(one, min_size=length, max_size=length))
        rows.append(row)
    return rows


def dense(rows, signature):
    """The rows as the tensors of the signature."""
    tensors = {}
    for name, wanted in signature.items():
        if name.endswith("_length"):
            lengths = [len(row[name.removesuffix("_length")]) for row in rows]
            tensors[name] = tf.constant(lengths, tf.int64, shape=[len(rows)])
        elif wanted.shape.rank == 1:
            tensors[name] = tf.constant([row[name] for row in rows], wanted.dtype, shape=[len(rows)])
        else:
            width = max([len(row[name]) for row in rows], default=0)
            filler = "\0 no value" if wanted.dtype == tf.string else 7
            padded = [[*row[name], *[filler] * (width - len(row[name]))] for row in rows]
            tensors[name] = tf.constant(padded, wanted.dtype, shape=[len(rows), width])
    return tensors


def ragged(rows, signature):
    """The rows as tensors, with a `RaggedTensor` for each list."""
    tensors = {name: tensor for name, tensor in dense(rows, signature).items() if not name.endswith("_length")}
    for name, wanted in signature.items():
        if wanted.shape.rank == 2:
            flat = tf.constant([value for row in rows for value in row[name]], wanted.dtype)
            tensors[name] = tf.RaggedTensor.from_row_lengths(flat, [len(row[name]) for row in rows])
    return tensors


def bits(arrays):
    """Arrays of numpy or tensors by name: dtype, shape and bytes of each."""
    found = {}
    for name, given in arrays.items():
        array = np.asarray(given)
        if array.dtype == object:
            found[name] = [value if isinstance(value, bytes) else value.encode() for value in array]
        else:
            found[name] = (array.dtype.str, array.shape, array.tobytes())
    return found


__all__ = ["bits", "dense", "fit_on", "ragged", "rows_for", "specs", "tf_signature"]
