"""The features of a model: declared once, and encoded the same in training and in serving."""

from __future__ import annotations

from penstock.features.encoding import EncodedRows
from penstock.features.feature_spec import Features
from penstock.features.kinds import (
    EMPTY,
    MEAN,
    Bucketized,
    Crossed,
    Feature,
    FillValue,
    Hashed,
    Ids,
    Numeric,
    Text,
    Vocabulary,
)
from penstock.features.learnt import Statistics
from penstock.features.tensorflow_columns import from_feature_columns
from penstock.features.tensors import TensorSpec

__all__ = [
    "EMPTY",
    "MEAN",
    "Bucketized",
    "Crossed",
    "EncodedRows",
    "Feature",
    "Features",
    "FillValue",
    "Hashed",
    "Ids",
    "Numeric",
    "Statistics",
    "TensorSpec",
    "Text",
    "Vocabulary",
    "from_feature_columns",
]
