"""Embedding tables trained outside the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.artifact.row_stores import open_row_store
    from penstock.embeddings.keras_layers import DenseFeatures
    from penstock.embeddings.offloading import OffloadedRows, Table, offload, placeholders, restore
    from penstock.embeddings.opening import open_training_store
    from penstock.embeddings.row_optimizers import SGD, Adagrad, SparseAdam
    from penstock.embeddings.row_store import RowStore
    from penstock.embeddings.rules import constant, init, zeros
    from penstock.embeddings.training_store import Fetched, TableShape, TableSpec, TrainingStore
    from penstock.errors import EmbeddingError, RowsUnavailable, TableMismatch

__all__ = [
    "SGD",
    "Adagrad",
    "DenseFeatures",
    "EmbeddingError",
    "Fetched",
    "OffloadedRows",
    "RowStore",
    "RowsUnavailable",
    "SparseAdam",
    "Table",
    "TableMismatch",
    "TableShape",
    "TableSpec",
    "TrainingStore",
    "constant",
    "init",
    "offload",
    "open_row_store",
    "open_training_store",
    "placeholders",
    "restore",
    "zeros",
]

_MODULES = {
    "penstock.artifact.row_stores": ("open_row_store",),
    "penstock.embeddings.keras_layers": ("DenseFeatures",),
    "penstock.embeddings.offloading": ("OffloadedRows", "Table", "offload", "placeholders", "restore"),
    "penstock.embeddings.opening": ("open_training_store",),
    "penstock.embeddings.row_optimizers": ("SGD", "Adagrad", "SparseAdam"),
    "penstock.embeddings.row_store": ("RowStore",),
    "penstock.embeddings.rules": ("constant", "init", "zeros"),
    "penstock.embeddings.training_store": ("Fetched", "TableShape", "TableSpec", "TrainingStore"),
    "penstock.errors": ("EmbeddingError", "RowsUnavailable", "TableMismatch"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
