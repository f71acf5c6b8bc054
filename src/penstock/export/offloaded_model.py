"""Export a model of PyTorch whose embedding rows lie in a training store: they are put into the graph.

The model answers with its layers as they are trained, and only while the graph is written they are native and filled.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ExportRefused
from penstock.export.torch_model import TorchExporter, exported_module
from penstock.features.kinds import Ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.embeddings.torch_layers import OffloadedRows
    from penstock.features.feature_spec import Features


def offloaded_exporter(rows: OffloadedRows, features: Features) -> OffloadedExporter:
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
    return OffloadedExporter(exported_module(rows.model, offloaded=True), rows)


class OffloadedExporter(TorchExporter):
    """A model on the CPU, and the tables that it looks rows up in."""

    def __init__(self, model: Any, rows: OffloadedRows) -> None:
        super().__init__(model)
        self._rows = rows

    @contextmanager
    def materialized(self, inline_limit: int) -> Iterator[None]:
        """Have every table in its layer."""
        from penstock.embeddings.torch_layers import materialized

        for path, spec in self._rows.tables.items():
            count = self._rows.store.count(spec.name) if spec.size is None else spec.size
            size = 4 * count * spec.width
            table = f"the table of layer {path!r} has {count} rows, {size} bytes"
            if spec.size is None:
                raise ExportRefused(f"{table}, and takes any id, of which most have no row that a graph could hold")
            if size > inline_limit:
                raise ExportRefused(f"{table}, and inline_limit is {inline_limit}: raise it, or make the table smaller")
        with materialized(self._model):
            yield
