"""The features of a model: declared once, and encoded the same in training and in serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        from penstock.spelling import explain_name

        raise AttributeError(explain_name(__name__, name))
