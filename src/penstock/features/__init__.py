"""The features of a model: declared once, and encoded the same in training and in serving."""

from __future__ import annotations

from penstock.features.encoding import EncodedRows
from penstock.features.feature_spec import Features
from penstock.features.kinds import (
    EMPTY,
    MEAN,
    Bucketized,
    Crossed,
    Hashed,
    Ids,
    Kind,
    Numeric,
    StandIn,
    Text,
    Vocabulary,
)
from penstock.features.learnt import Statistics
from penstock.features.tensorflow_columns import from_feature_columns
from penstock.features.tensors import Tensor

__all__ = [
    "EMPTY",
    "MEAN",
    "Bucketized",
    "Crossed",
    "EncodedRows",
    "Features",
    "Hashed",
    "Ids",
    "Kind",
    "Numeric",
    "StandIn",
    "Statistics",
    "Tensor",
    "Text",
    "Vocabulary",
    "from_feature_columns",
]
