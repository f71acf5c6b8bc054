"""What TensorFlow's and PyTorch's parts ask of a feature spec, and what both feed a training loop with.

`Features` calls these parts, so they know it by this Protocol alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from penstock.errors import ConfigError
from penstock.features.kinds import Feature
from penstock.features.learnt import Statistics
from penstock.features.tables import read_table
from penstock.features.tensors import TensorSpec


class FittedFeatures(Protocol):
    """A spec that has learnt what it needs; `Features` is one after `fit`."""

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features as declared, by name."""
        ...

    @property
    def concat_into(self) -> str | None:
        """The input that has the float32 features side by side."""
        ...

    @property
    def statistics(self) -> Mapping[str, Statistics]:
        """What was learnt, by feature."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of ids of each feature with ids."""
        ...

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the model, in order."""
        ...

    def encode(self, table: Any) -> dict[str, np.ndarray]:
        """Turn a table into the inputs of the model."""
        ...


def training_arrays(
    features: FittedFeatures, table: Any, label: str | None
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """What a training loop is fed with: the inputs of the model, and the labels, or None where no label is named.

    Labels are integers as int64, or other numbers as float32.

    Raises:
        ConfigError: the table has no such column, or it has something else than numbers.
        InvalidItem: a row is refused.
    """
    inputs = features.encode(table)
    return inputs, None if label is None else _labels(table, label)


def _labels(table: Any, label: str) -> np.ndarray:
    raw = read_table(table, (label,))
    if label not in raw:
        raise ConfigError(f"the table has no column {label!r} for the labels")
    column = raw.column(label)
    try:
        labels = np.asarray(column)
    except (ValueError, OverflowError):
        labels = np.empty(0, object)
    if labels.ndim != 1 or labels.dtype.kind not in "biuf":
        raise ConfigError(f"the labels in column {label!r} must be numbers, one a row and none missing")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ConfigError(f"the label in column {label!r} is missing in row {int(np.argmax(np.isnan(labels)))}")
    return labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)
