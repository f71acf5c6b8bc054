"""`DenseFeatures`: the layer of Keras over what a spec of `from_feature_columns` gives, with the embeddings in it.

Contract
--------
* With the same rows it answers what `tf.compat.v1.feature_column.input_layer` does, but for the order in which float32
  numbers are added.
* It keeps no column of TensorFlow: its config has plain values.
* Each embedding is a native layer in a dict, by the column's name; `build` and `call` take the layer that is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

import keras
import numpy as np
from keras import ops

from penstock.errors import ConfigError
from penstock.features.feature_spec import Features
from penstock.features.kinds import Numeric, has_weights
from penstock.features.tensorflow_columns import from_feature_columns

INITIALIZERS: Final = {
    "TruncatedNormal": ("mean", "stddev", "seed"),
    "RandomNormal": ("mean", "stddev", "seed"),
    "RandomUniform": ("minval", "maxval", "seed"),
    "Constant": ("value",),
    "Zeros": (),
    "Ones": (),
}
"""The initializers that have one name and one meaning in TensorFlow and in Keras, and their options."""


@dataclasses.dataclass(frozen=True)
class _Dense:
    """A column that is a part of `x`."""

    name: str
    width: int


@dataclasses.dataclass(frozen=True)
class _Embedded:
    """A column with an embedding."""

    name: str
    buckets: int
    dimension: int
    combiner: str | None
    """Or None, where each row has one id, which has no weight."""
    max_norm: float | None
    initializer: dict[str, Any]
    """As `keras.initializers.serialize` gives it."""
    trainable: bool


@keras.saving.register_keras_serializable(package="penstock")
class DenseFeatures(keras.layers.Layer):  # type: ignore[misc]
    """The columns of `tf.feature_column` as one tensor, side by side in the order of their names.

    It stands in place of `keras.layers.DenseFeatures`, which Keras 3 has not.  It is called on a dict with the inputs
    of `penstock.features.from_feature_columns`, and ignores others; without an embedding also on the tensor `x`.

    Args:
        columns: the columns that the spec is made of; or their descriptions, as `get_config` gives them.
        options: those of `keras.layers.Layer`.

    Attributes:
        embeddings: a `keras.layers.Embedding` for each embedding column, by its name.

    Raises:
        ConfigError: a column cannot be converted, or Keras has no initializer like that of an embedding.
    """

    def __init__(self, columns: Iterable[Any], **options: Any) -> None:
        super().__init__(**options)
        given = list(columns)
        described = bool(given) and all(isinstance(column, Mapping) for column in given)
        self._columns = tuple(map(_read, given) if described else _described(given))
        self.embeddings = {
            column.name: keras.layers.Embedding(
                column.buckets,
                column.dimension,
                embeddings_initializer=keras.initializers.get(column.initializer),
                trainable=column.trainable,
                dtype=self.dtype_policy,
                name=column.name,
            )
            for column in self._columns
            if isinstance(column, _Embedded)
        }

    def build(self, input_shape: Any) -> None:
        """Check the inputs, and build the embeddings that are not built yet.

        Raises:
            ConfigError: an input is not there, or `x` is not as wide as the columns.
        """
        shapes = _by_name(input_shape)
        for name in self._input_names():
            if name not in shapes:
                raise ConfigError(
                    f"DenseFeatures was called without the input {name!r}; it has {', '.join(shapes)}.  Call it on the "
                    "inputs of from_feature_columns of the same columns"
                )
        width = sum(column.width for column in self._columns if isinstance(column, _Dense))
        if width and shapes["x"][-1] != width:
            raise ConfigError(
                f"the input 'x' is {shapes['x'][-1]} wide, and the columns of DenseFeatures are {width} wide: make the "
                "features and the layer of the same columns"
            )
        for name, layer in self.embeddings.items():
            if not layer.built:
                layer.build(shapes[name])

    def _input_names(self) -> list[str]:
        embedded = [column for column in self._columns if isinstance(column, _Embedded)]
        names = ["x"] if len(embedded) < len(self._columns) else []
        for column in embedded:
            names += [column.name] if column.combiner is None else [column.name, _weight(column)]
        return names

    def call(self, inputs: Any) -> Any:
        """The columns side by side, `(batch, width)`."""
        tensors = _by_name(inputs)
        start = 0
        parts = []
        for column in self._columns:
            if isinstance(column, _Embedded):
                parts.append(self._embedded(column, tensors))
            else:
                parts.append(tensors["x"][:, start : start + column.width])
                start += column.width
        return ops.concatenate(parts, axis=1)

    def _embedded(self, column: _Embedded, tensors: Mapping[str, Any]) -> Any:
        """A row for each row of ids, as `tf.nn.safe_embedding_lookup_sparse` makes it."""
        rows = self.embeddings[column.name](tensors[column.name])
        if column.max_norm is not None:
            rows = _clipped(rows, column.max_norm)
        if column.combiner is None:
            return rows
        weights = ops.cast(tensors[_weight(column)], rows.dtype)
        if len(weights.shape) == 1:
            rows, weights = ops.expand_dims(rows, 1), ops.expand_dims(weights, 1)
        if column.combiner != "sum":
            weights = ops.maximum(weights, 0)  # TensorFlow drops a value whose weight is not positive, but for a sum
        total = ops.sum(rows * ops.expand_dims(weights, -1), axis=1)
        if column.combiner == "sum":
            return total
        squared = column.combiner == "sqrtn"
        divisor = ops.sum(ops.square(weights) if squared else weights, axis=1, keepdims=True)
        return ops.divide_no_nan(total, ops.sqrt(divisor) if squared else divisor)

    def get_config(self) -> dict[str, Any]:
        """The options of the layer, and a description of each column."""
        return {**super().get_config(), "columns": [dataclasses.asdict(column) for column in self._columns]}


def _by_name(inputs: Any) -> Mapping[str, Any]:
    """The inputs, or their shapes, by name."""
    return inputs if isinstance(inputs, Mapping) else {"x": inputs}


def _weight(column: _Embedded) -> str:
    return f"{column.name}_weight"


def _clipped(rows: Any, norm: float) -> Any:
    """The rows, each no longer than `norm`."""
    squares = ops.sum(ops.square(rows), axis=-1, keepdims=True)
    positive = squares > 0
    lengths = ops.where(positive, ops.sqrt(ops.where(positive, squares, 1.0)), 0.0)  # sqrt has no gradient at 0
    return rows * norm / ops.maximum(lengths, norm)


def _read(description: Mapping[str, Any]) -> _Dense | _Embedded:
    return _Embedded(**description) if "buckets" in description else _Dense(**description)


def _described(columns: list[Any]) -> Iterable[_Dense | _Embedded]:
    features = from_feature_columns(columns)
    for column in sorted(columns, key=lambda column: str(column.name)):
        yield _embedding(column, features) if hasattr(column, "dimension") else _dense(column.name, features)


def _dense(name: str, features: Features) -> _Dense:
    return _Dense(name, 1 if isinstance(features.kinds[name], Numeric) else features.sizes[name])


def _embedding(column: Any, features: Features) -> _Embedded:
    return _Embedded(
        name=column.name,
        buckets=features.sizes[column.name],
        dimension=int(column.dimension),
        combiner=column.combiner if has_weights(features.kinds[column.name]) else None,
        max_norm=None if column.max_norm is None else float(column.max_norm),
        initializer=keras.initializers.serialize(_initializer(column)),
        trainable=bool(column.trainable),
    )


def _initializer(column: Any) -> Any:
    """The initializer of Keras that is like the column's."""
    given = column.initializer
    if isinstance(given, keras.initializers.Initializer):
        return given
    name = type(given).__name__
    options = {option: given.get_config()[option] for option in INITIALIZERS.get(name, ())}
    if name == "RandomUniform" and options["maxval"] is None:
        options["maxval"] = 1.0
    if name not in INITIALIZERS or np.ndim(options.get("value", 0)):
        raise ConfigError(
            f"column {column.name!r}: Keras has no initializer like this {name}: give the column one of "
            "keras.initializers, or set the rows of the layer afterwards"
        )
    return getattr(keras.initializers, name)(**options)
