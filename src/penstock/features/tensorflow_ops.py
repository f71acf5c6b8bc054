"""A feature spec in TensorFlow's ops: what `encode` does to a table, done to tensors in a graph.

Contract
--------
* `tf_encode` gives bit for bit what `encode` gives for the same values: eagerly, in a `tf.function`, in a SavedModel.
* What `encode` refuses fails with TensorFlow's `InvalidArgumentError`, which names the column.
* No op has a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from penstock.errors import ConfigError
from penstock.features.encoders import TOO_LARGE
from penstock.features.fitted import FittedFeatures, training_arrays
from penstock.features.kinds import (
    EMPTY,
    MEAN,
    Bucketized,
    Crossed,
    Hashed,
    Ids,
    Numeric,
    Text,
    Vocabulary,
    has_weights,
)
from penstock.features.learnt import Statistics
from penstock.features.tensorflow_ids import buckets_between, cross_bucket, hash_bucket, places_in
from penstock.features.tensorflow_raw import RawColumns, RawKind, raw_column, raw_specs, refuse
from penstock.features.tensorflow_values import Values, read, rounded_to_float32


@dataclass(frozen=True, slots=True)
class Encoded:
    """One feature of a batch."""

    column: str
    key: Any
    """What it counts as in a cross."""
    output: Any
    """Ids, numbers, or strings."""
    live: Any
    """Which have an output; elsewhere it may be anything."""
    weights: Any = None
    """float32, 0 where there is no value: `(batch, max_length)`, or `(batch,)`; None where a value is always there."""


def tf_encode(features: FittedFeatures, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of the model for a batch of raw columns.

    A column is one tensor under its name, `(batch,)`: float64 where a feature takes numbers (NaN is missing), else
    int64 where one takes ids, else string.  Only what equals one of `missing_values` is a missing string or id.

    For a feature with `max_length` it is `(batch, length)`, or a `RaggedTensor`.  A dense one may have a column
    ``NAME_length`` beside it, int64 `(batch,)`: how many values of each row count.

    Raises:
        ConfigError: a column is not there, or is no tensor of this dtype and rank.
        tf.errors.InvalidArgumentError: a row is refused.
    """
    # AutoGraph would translate each function, and there is nothing to translate: no control flow depends on a tensor.
    return tf.autograph.experimental.do_not_convert(_encode)(features, tensors)  # type: ignore[no-any-return]


def _encode(features: FittedFeatures, tensors: Mapping[str, Any]) -> dict[str, Any]:
    columns = RawColumns(features.features, tensors)
    encoded: dict[str, Encoded] = {}
    for name, kind in features.features.items():
        if not isinstance(kind, Crossed):
            encoded[name] = _encode_raw(name, kind, features.statistics[name], columns)
    for name, kind in features.features.items():
        if isinstance(kind, Crossed):
            encoded[name] = _encode_cross(name, kind, encoded)
    return _assemble(features, encoded)


def tf_signature(features: FittedFeatures) -> dict[str, tf.TensorSpec]:
    """The raw columns as `tf_encode` takes them, for a serving signature: dense, of any batch and any length."""
    return raw_specs(features.features)


def tf_dataset(features: FittedFeatures, table: Any, label: str | None, batch_size: int) -> tf.data.Dataset:
    """The encoded table as batches of (inputs, labels), or of inputs where no label is named; in the table's order.

    Raises:
        ConfigError: there is no such label, or `batch_size` is no number of rows.
        InvalidItem: a row is refused.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size!r}")
    inputs, labels = training_arrays(features, table, label)
    return tf.data.Dataset.from_tensor_slices(inputs if labels is None else (inputs, labels)).batch(batch_size)


def _encode_raw(name: str, kind: RawKind, learnt: Statistics, columns: RawColumns) -> Encoded:
    column = raw_column(kind, name)
    max_length = getattr(kind, "max_length", None)
    if max_length is None:
        slots = columns.single(column)
        present = tf.ones_like(slots, tf.bool)
    else:
        slots, present = columns.slots(column, max_length)
    values = _fill_value(kind, column, learnt, read(kind, column, slots, present))
    if isinstance(kind, Text):
        return Encoded(column, values.tensor, values.tensor, values.live)
    if isinstance(kind, Numeric):
        numbers = rounded_to_float32(column, values.tensor, learnt, values.live)
        return Encoded(column, numbers, numbers, values.live)
    ids, live = _ids(kind, column, learnt, values)
    key = ids if isinstance(kind, Bucketized | Ids) else values.tensor
    return Encoded(column, key, ids, live, _weights(kind, live, columns, column))


def _fill_value(kind: RawKind, column: str, learnt: Statistics, values: Values) -> Values:
    """The values with what stands for the missing ones."""
    if kind.fill_value is EMPTY:
        return values
    if kind.fill_value is None:
        refuse(values.missing, f"{column}: a value is missing")
        return values
    fill_value = learnt.mean if kind.fill_value is MEAN else kind.fill_value
    filled = tf.where(values.missing, tf.constant(fill_value, values.tensor.dtype), values.tensor)
    return Values(filled, values.live | values.missing, tf.zeros_like(values.missing))


def _ids(
    kind: Bucketized | Hashed | Vocabulary | Ids, column: str, learnt: Statistics, values: Values
) -> tuple[Any, Any]:
    """The id of each value, and which values have one."""
    if isinstance(kind, Bucketized):
        boundaries = kind.boundaries if learnt.boundaries is None else learnt.boundaries
        assert boundaries is not None, "it is fitted"
        return buckets_between(values.tensor, boundaries), values.live
    if isinstance(kind, Hashed):
        return hash_bucket(values.tensor, kind.buckets), values.live
    if isinstance(kind, Vocabulary):
        return _known_or_not(kind, column, learnt, values)
    if kind.size is None:
        return values.tensor, values.live
    inside = (values.tensor >= 0) & (values.tensor < kind.size)
    return _with_unknown(
        kind.unknown, column, f"an id is not between 0 and {kind.size - 1}", values, inside, values.tensor
    )


def _known_or_not(kind: Vocabulary, column: str, learnt: Statistics, values: Values) -> tuple[Any, Any]:
    known = kind.values if learnt.values is None else learnt.values
    assert known is not None, "it is fitted"
    places, found = places_in(values.tensor, known)
    if kind.num_oov_indices:
        return tf.where(found, places, len(known) + hash_bucket(values.tensor, kind.num_oov_indices)), values.live
    unknown = known.index(kind.unknown) if isinstance(kind.unknown, str) else kind.unknown
    return _with_unknown(unknown, column, "a value is not in the vocabulary", values, found, places)


def _with_unknown(unknown: Any, column: str, why: str, values: Values, known: Any, ids: Any) -> tuple[Any, Any]:
    """The ids with what stands for unknown ones."""
    if unknown is None:
        refuse(values.live & ~known, f"{column}: {why}")
        return ids, values.live
    if unknown is EMPTY:
        return ids, values.live & known
    return tf.where(known, ids, tf.constant(unknown, tf.int64)), values.live


def _weights(kind: Bucketized | Hashed | Vocabulary | Ids, live: Any, columns: RawColumns, column: str) -> Any:
    """The weight of each value; None for a feature of one value that cannot be empty."""
    if kind.max_length is None and not has_weights(kind):
        return None
    if kind.max_length is None or kind.weights is None:
        return tf.cast(live, tf.float32)
    given, present = columns.weights(kind.weights, column, kind.max_length)
    weights = rounded_to_float32(kind.weights, given, Statistics(), present)
    return tf.where(live, weights, tf.zeros_like(weights))


def _encode_cross(name: str, kind: Crossed, encoded: Mapping[str, Encoded]) -> Encoded:
    keys = [encoded[key] for key in kind.keys]
    live = tf.reduce_all(tf.stack([key.live for key in keys]), axis=0)
    if kind.fill_value is None:
        refuse(~live, f"{' or '.join(key.column for key in keys)}: a value is missing, and {name} is crossed with it")
    ids = cross_bucket([key.key for key in keys], kind)
    return Encoded(name, ids, ids, live, tf.cast(live, tf.float32) if has_weights(kind) else None)


def _assemble(features: FittedFeatures, encoded: Mapping[str, Encoded]) -> dict[str, Any]:
    """The inputs by name, in the spec's order."""
    made: dict[str, Any] = {}
    joined: list[Any] = []
    for name, kind in features.features.items():
        if getattr(kind, "cross_only", False):
            continue
        one = encoded[name]
        if getattr(kind, "one_hot", False):
            made[name] = _counts(one, features.sizes[name], getattr(kind, "weights", None))
        elif one.weights is not None:
            made[name] = tf.where(one.live, one.output, tf.zeros_like(one.output))
            made[f"{name}_weight"] = one.weights
        else:
            made[name] = one.output
        if made[name].dtype == tf.float32:
            joined.append(made[name] if made[name].shape.rank == 2 else tf.expand_dims(made[name], 1))
    if features.concat_into is not None:
        made[features.concat_into] = tf.concat(joined, axis=1)
    return {tensor.name: made[tensor.name] for tensor in features.inputs}


def _counts(one: Encoded, size: int, column: str | None) -> Any:
    """A row with the sum of the weights of each id, added from the first to the last as `encode` adds them.

    `column` has the weights; without it each value weighs 1.
    """
    ids = tf.where(one.live, one.output, tf.constant(-1, tf.int64))  # one_hot(-1) is a row of zeros
    if one.weights is None:
        return tf.one_hot(ids, size, dtype=tf.float32)
    sums = tf.zeros((tf.shape(ids)[0], size), tf.float32)
    for place in range(ids.shape[1]):
        here = tf.one_hot(ids[:, place], size, on_value=True, off_value=False)
        sums = tf.where(here, sums + one.weights[:, place : place + 1], sums)
    if column is not None:
        refuse(~tf.math.is_finite(sums), f"{column}: a sum of weights {TOO_LARGE}")
    return sums
