"""Export a model whose embedding rows lie in a training store: they are put into the graph.

The model answers with its layers as they are trained, and only while the graph is written they are native and filled.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.embeddings.offloading import OffloadedRows, framework_of
from penstock.errors import ConfigError, ExportRefused
from penstock.export.class_names import class_names
from penstock.export.keras_model import KerasExporter
from penstock.export.torch_model import TorchExporter, exported_module
from penstock.features.kinds import Ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.export.exporter import ModelExporter
    from penstock.features.feature_spec import Features


def offloaded_exporter(rows: OffloadedRows, features: Features) -> ModelExporter:
    """The exporter of the model of `rows`.

    Raises:
        ConfigError: the model has its rows back, or cannot be exported for another reason.
        ExportRefused: a feature takes ids that no graph could refuse.
    """
    if not rows.tables:
        raise ConfigError("the model was restored and has its rows back: give save the model itself")
    for name, kind in features.kinds.items():
        if isinstance(kind, Ids) and kind.size is None:
            raise ExportRefused(
                f"feature {name!r} is Ids without a size, and a graph reads id -1 as the last row of a table: "
                "write Ids(size=...)"
            )
    rows.refresh()
    if "keras.Model" in class_names(rows.model):
        return _KerasExporter(rows, features)
    return _TorchExporter(rows, exported_module(rows.model, offloaded=True))


class _OffloadedExporter:
    """Base of the exporters of models of which tables lie outside."""

    _model: Any
    _rows: OffloadedRows

    @contextmanager
    def materialized(self, inline_limit: int) -> Iterator[None]:
        """Have every table in its layer."""
        for path, spec in self._rows.tables.items():
            count = self._rows.store.count(spec.name) if spec.size is None else spec.size
            size = 4 * count * spec.width
            table = f"the table of layer {path!r} has {count} rows, {size} bytes"
            if spec.size is None:
                raise ExportRefused(f"{table}, and takes any id, of which most have no row that a graph could hold")
            if size > inline_limit:
                raise ExportRefused(f"{table}, and inline_limit is {inline_limit}: raise it, or make the table smaller")
        with framework_of(self._model).materialized(self._model):
            yield


class _TorchExporter(_OffloadedExporter, TorchExporter):
    def __init__(self, rows: OffloadedRows, model: Any) -> None:
        super().__init__(model)
        self._rows = rows


class _KerasExporter(_OffloadedExporter, KerasExporter):
    def __init__(self, rows: OffloadedRows, features: Features) -> None:
        super().__init__(rows.model, features)
        self._rows = rows
