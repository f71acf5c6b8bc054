"""The raw columns as tensors: which there are, of which dtype, and the values of each row in slots.

Contract
--------
* A column is float64 where a feature takes numbers, else int64 where one takes ids, else string: every feature that
  reads a column can read that.
* A tensor of another dtype or rank is refused, and never cast.
* A list is cut or padded to as many slots as its feature takes; a longer one fails an assertion.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

import tensorflow as tf

from penstock.errors import ConfigError
from penstock.features.kinds import Bucketized, Crossed, Feature, Hashed, Ids, Numeric, Text, Vocabulary

RawKind: TypeAlias = Numeric | Bucketized | Hashed | Vocabulary | Ids | Text
"""A kind that reads a column."""
NODE_NAME: Final = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
"""TensorFlow's rule."""


def refuse(bad: Any, message: str) -> None:
    """Fail where `bad` is true anywhere; the error has the message, and the first of the rows."""
    rows = bad if bad.shape.rank == 1 else tf.reduce_any(bad, axis=1)
    tf.debugging.Assert(tf.logical_not(tf.reduce_any(rows)), [message, "in rows", tf.reshape(tf.where(rows), [-1])])


def raw_column(kind: RawKind, name: str) -> str:
    """The column that a feature reads."""
    return kind.column if kind.column is not None else name


def length_column(column: str) -> str:
    """The column that says how many values of each row of a dense list count."""
    return f"{column}_length"


def raw_specs(kinds: Mapping[str, Feature]) -> dict[str, tf.TensorSpec]:
    """The columns as tensors of any batch and any length, in the order in which the features read them.

    Raises:
        ConfigError: no tensor can be what two features read, or a column has the name of a list's lengths.
    """
    readers: dict[str, list[RawKind]] = {}
    weights: set[str] = set()
    for name, kind in kinds.items():
        if not isinstance(kind, Crossed):
            readers.setdefault(raw_column(kind, name), []).append(kind)
            weights |= {getattr(kind, "weights", None) or raw_column(kind, name)} - {raw_column(kind, name)}
    specs: dict[str, tf.TensorSpec] = {}
    for column, found in readers.items():
        is_list = getattr(found[0], "max_length", None) is not None
        shape = (None, None) if is_list else (None,)
        specs[column] = _spec(column, shape, _common_dtype(column, found))
        if is_list:
            specs[length_column(column)] = _length_spec(column, {*readers, *weights})
    return specs | {column: _spec(column, (None, None), tf.float64) for column in sorted(weights)}


def _spec(column: str, shape: tuple[None, ...], dtype: Any) -> tf.TensorSpec:
    """The tensor of a column; named after it where a node of a graph can have such a name."""
    return tf.TensorSpec(shape, dtype, name=column if NODE_NAME.fullmatch(column) else None)


def _common_dtype(column: str, readers: list[RawKind]) -> Any:
    numbers = any(isinstance(kind, Numeric | Bucketized) for kind in readers)
    ids = any(isinstance(kind, Ids) for kind in readers)
    if (numbers or ids) and any(isinstance(kind, Text) for kind in readers):
        raise ConfigError(f"column {column!r} is used as a number and as text, but a tensor has one dtype")
    return tf.float64 if numbers else tf.int64 if ids else tf.string


def _length_spec(column: str, others: Collection[str]) -> tf.TensorSpec:
    name = length_column(column)
    if name in others:
        raise ConfigError(f"the column {name!r} has the name of the lengths of {column!r}: rename it")
    return _spec(name, (None,), tf.int64)


class RawColumns:
    """The tensors of one batch, checked."""

    def __init__(self, kinds: Mapping[str, Feature], tensors: Mapping[str, Any]) -> None:
        self._specs = raw_specs(kinds)
        self._tensors = {
            name: _checked(name, spec, tensors[name]) for name, spec in self._specs.items() if name in tensors
        }

    def single(self, column: str) -> Any:
        """The tensor of a column with one value a row."""
        return self._tensor(column)

    def slots(self, column: str, max_length: int) -> tuple[Any, Any]:
        """The first `max_length` values of each row's list, and which of these slots have a value."""
        values, lengths = self._padded(column, max_length)
        refuse(lengths > max_length, f"{column}: a list has more than {max_length} values")
        return values, tf.sequence_mask(lengths, max_length)

    def weights(self, column: str, values_column: str, max_length: int) -> tuple[Any, Any]:
        """The weights of the values of a list, in its slots, and which of these slots have a value."""
        values, tensor = self._tensor(values_column), self._tensor(column)
        if isinstance(values, tf.RaggedTensor) != isinstance(tensor, tf.RaggedTensor):
            raise ConfigError(f"{column!r} and {values_column!r} must both be a RaggedTensor, or neither")
        weights, lengths = self._padded(column, max_length)
        if isinstance(tensor, tf.RaggedTensor):
            other = tf.cast(values.row_lengths(), tf.int64)
            refuse(lengths != other, f"{column}: a list has not the same length as that in {values_column}")
        else:
            same = tf.shape(tensor)[1] == tf.shape(values)[1]
            tf.debugging.Assert(same, [f"{column}: the lists have not the same lengths as those in {values_column}"])
            lengths = self._lengths(values_column)
        return weights, tf.sequence_mask(lengths, max_length)

    def _tensor(self, column: str) -> Any:
        if column not in self._tensors:
            raise ConfigError(f"there is no tensor {column!r}; there are {', '.join(self._tensors) or 'none'}")
        return self._tensors[column]

    def _padded(self, column: str, max_length: int) -> tuple[Any, Any]:
        tensor = self._tensor(column)
        if isinstance(tensor, tf.RaggedTensor):
            tensor = tensor.to_tensor()
        return _fitted(tensor, max_length), self._lengths(column)

    def _lengths(self, column: str) -> Any:
        """How many values each row's list has."""
        tensor = self._tensor(column)
        if isinstance(tensor, tf.RaggedTensor):
            return tf.cast(tensor.row_lengths(), tf.int64)
        rows, width = tf.unstack(tf.shape(tensor, tf.int64))
        lengths = self._tensors.get(length_column(column))
        if lengths is None:
            return tf.fill([rows], width)
        refuse(
            (lengths < 0) | (lengths > width),
            f"{length_column(column)}: a value is not a valid length of a list in {column}",
        )
        return lengths


def _checked(name: str, spec: tf.TensorSpec, given: Any) -> Any:
    """The tensor of a column, as it was given.

    Raises:
        ConfigError: it has another dtype or rank.
    """
    tensor = given if isinstance(given, tf.RaggedTensor) else tf.convert_to_tensor(given)
    ragged = isinstance(tensor, tf.RaggedTensor)
    if (
        tensor.dtype != spec.dtype
        or tensor.shape.rank not in (spec.shape.rank, None)
        or (ragged and spec.shape.rank == 1)
    ):
        shape = "(batch,)" if spec.shape.rank == 1 else "(batch, length)"
        raise ConfigError(
            f"the tensor {name!r} must be {spec.dtype.name} of shape {shape}, "
            f"got {tensor.dtype.name} of shape {tuple(tensor.shape)}"
        )
    return tensor if ragged else tf.ensure_shape(tensor, spec.shape)


def _fitted(tensor: Any, max_length: int) -> Any:
    """Rows of exactly `max_length` slots."""
    cut = tensor[:, :max_length]
    return tf.ensure_shape(
        tf.pad(cut, [[0, 0], [0, max_length - tf.shape(cut)[1]]], constant_values=_nothing(tensor)), (None, max_length)
    )


def _nothing(tensor: Any) -> Any:
    return tf.constant("") if tensor.dtype == tf.string else tf.constant(0, tensor.dtype)
