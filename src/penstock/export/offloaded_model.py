"""Export a model whose embedding rows lie in a training store: they are put into the graph, or into shards beside it.

The model answers with its layers as they are trained, and only while a graph is written the tables inside of it are in
native layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.artifact.manifest import GraphEntry, GraphFormat, Lookup, Role, TableEntry
from penstock.artifact.recorded import RecordedRows, joined_rows
from penstock.embeddings.offloading import OffloadedRows, SeenLookup, framework_of, seen_lookups
from penstock.embeddings.shards import Shard, write_shards
from penstock.embeddings.training_store import TableShape
from penstock.errors import ConfigError, ExportRefused
from penstock.export.class_names import class_names
from penstock.export.exporter import WholeModel
from penstock.export.keras_model import FOLDER, KerasExporter, refuse_python, traced
from penstock.export.split_model import LookupNames, TracedLookup
from penstock.export.torch_model import TorchExporter, exported_module, torch_export, write_program
from penstock.features.kinds import Ids

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.export.exporter import GraphSignature, ModelAnswer, ModelExporter
    from penstock.export.split_model import SplitModel
    from penstock.features.feature_spec import Features


def offloaded_exporter(rows: OffloadedRows, features: Features) -> ModelExporter:
    """The exporter of the model of `rows`.

    Raises:
        ConfigError: the model has its rows back, or cannot be exported for another reason.
    """
    if not rows.tables:
        raise ConfigError("the model was restored and has its rows again: pass the model itself to save")
    rows.refresh()
    if "keras.Model" in class_names(rows.model):
        return _KerasExporter(rows, features)
    return _TorchExporter(rows, features)


class _OffloadedExporter(WholeModel):
    """Common part of both frameworks; in its subclasses the exporter of whole models comes behind it."""

    _model: Any

    def _begin(self, rows: OffloadedRows, features: Features) -> None:
        self._rows = rows
        self._features = features
        self._outside: tuple[str, ...] = ()
        self._seen: list[SeenLookup] = []
        self._traced: Sequence[TracedLookup] = ()
        """The lookups of the graphs that are written."""
        self._looked_up: set[str] = set()
        """The layers that look rows up when the model is asked; others are for training alone."""
        self._names = LookupNames([tensor.name for tensor in features.inputs], list(rows.tables))

    def place_tables(self, inline_limit: int, outside: Collection[str]) -> None:
        """Leave a table outside where it is too large, takes any id, or is named."""
        tables = self._rows.tables
        for path in outside:
            if path not in tables:
                raise ConfigError(
                    f"outside has {path!r}, which is not the path of a table; tables: {', '.join(map(repr, tables))}"
                )
        self._outside = tuple(
            path
            for path, spec in tables.items()
            if spec.size is None or path in outside or 4 * spec.size * spec.width > inline_limit
        )
        if not self._outside:
            self._refuse_unchecked_ids()

    def _refuse_unchecked_ids(self) -> None:
        """Refuse a feature that takes any id, where no table is outside and so nothing checks the ids of lookups."""
        for name, kind in self._features.features.items():
            if isinstance(kind, Ids) and kind.size is None:
                raise ExportRefused(
                    f"feature {name!r} is Ids without a size, and a graph reads id -1 as the last row of a table: "
                    "write Ids(size=...)"
                )

    @contextmanager
    def materialized(self) -> Iterator[None]:
        """Have every table that is put into the graph in its layer."""
        framework = framework_of(self._model)
        found = {layer._table.path: layer for layer in framework.offloaded_layers(self._model).values()}
        self._layers = {path: layer for path, layer in found.items() if path in self._looked_up}
        with framework.materialized(self._model, self._outside):
            yield

    def answer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> ModelAnswer:
        """The answer of the model, with its lookups where a table lies outside."""
        if not self._outside:
            return super().answer(inputs)  # type: ignore[safe-super]  # the framework's own comes behind this class
        with seen_lookups(self._rows) as seen:
            self._seen = seen
            answer = super().answer(inputs)  # type: ignore[safe-super]
        self._looked_up |= {one.path for one in seen}
        return self._with_lookups(answer, seen) if self._fed() else answer

    def write_graphs(self, format: GraphFormat, folder: Path, signature: GraphSignature) -> Sequence[GraphEntry]:  # noqa: A002
        """Write a graph to the ids of the lookups and one from rows, where the model looks up a table outside."""
        if self._fed():
            return self._write_split(format, folder, signature)
        if self._outside:  # they are for training alone
            self._refuse_unchecked_ids()
        return super().write_graphs(format, folder, signature)

    @abstractmethod
    def _write_split(self, format: GraphFormat, folder: Path, signature: GraphSignature) -> Sequence[GraphEntry]:  # noqa: A002
        """Write both graphs, and set `_traced`."""

    def write_tables(self, folder: Path, saved: str, shard_bytes: int) -> Sequence[TableEntry]:
        """Write the rows of the tables outside, while others may go on to train them."""
        lookups: dict[str, list[Lookup]] = defaultdict(list)
        for one in self._traced:
            places = self._names.places(one.name) if one.path in self._outside else ""
            lookups[one.path].append(Lookup(one.name, places, one.by_row))
        return [self._write_table(path, found, folder, saved, shard_bytes) for path, found in lookups.items()]

    def _fed(self) -> dict[str, int]:
        """The width of the rows of each layer outside that the model looks up, by path."""
        return {path: self._rows.tables[path].width for path in self._outside if path in self._looked_up}

    def _write_table(
        self, path: str, lookups: Sequence[Lookup], folder: Path, saved: str, shard_bytes: int
    ) -> TableEntry:
        spec, store = self._rows.tables[path], self._rows.store
        shape = TableShape(spec.name, spec.width, spec.ids, spec.size, spec.missing)
        is_outside, rows = path in self._outside, spec.size or 0
        shards: tuple[Shard, ...] = ()
        if is_outside:
            shards = write_shards(
                folder, shape, store.scan(spec.name), rows=store.count(spec.name), saved=saved, shard_bytes=shard_bytes
            )
            rows = sum(shard.rows for shard in shards)
        return TableEntry(
            name=spec.name,
            path=path,
            ids=spec.ids,
            size=spec.size,
            width=spec.width,
            rows=rows,
            missing=spec.missing,
            placed="outside" if is_outside else "inlined",
            input=self._names.rows(path) if is_outside else "",
            shards=shards,
            lookups=tuple(lookups),
        )

    def _with_lookups(self, answer: ModelAnswer, seen: Sequence[SeenLookup]) -> ModelAnswer:
        names = self._names.of_lookups([one.path for one in seen])
        ids = {name: np.atleast_1d(one.ids) for one, (_, name) in zip(seen, names, strict=True)}
        parts: dict[str, list[RecordedRows]] = defaultdict(list)
        for one in seen:
            if one.path in self._outside:
                parts[self._rows.tables[one.path].name].append(RecordedRows(one.distinct, one.rows))
        return replace(answer, ids=ids, rows={table: joined_rows(found) for table, found in parts.items()})


class _TorchExporter(_OffloadedExporter, TorchExporter):
    def __init__(self, rows: OffloadedRows, features: Features) -> None:
        super().__init__(exported_module(rows.model, offloaded=True))
        self._begin(rows, features)
        self._split: SplitModel | None = None

    def _write_split(self, format: GraphFormat, folder: Path, signature: GraphSignature) -> Sequence[GraphEntry]:  # noqa: A002
        from penstock.export.torch_lookups import split_module

        entries = []
        with self.followed(format):
            split = self._split = self._split or torch_export(
                lambda: split_module(self._model, self._layers, self._fed(), signature, self._names), format
            )
            self._traced = split.lookups
            graphs: dict[Role, tuple[Any, GraphSignature]] = {
                "ids": (split.ids, split.ids_signature),
                "model": (split.model, split.model_signature),
            }
            for role, (program, of) in graphs.items():
                file = folder / f"{role}.{format}"
                write_program(program, format, file, of)
                entries.append(GraphEntry(format, file.name, of.inputs, of.outputs, role))
        return entries


class _KerasExporter(_OffloadedExporter, KerasExporter):
    def __init__(self, rows: OffloadedRows, features: Features) -> None:
        super().__init__(rows.model, features)
        self._begin(rows, features)

    def _write_split(self, format: GraphFormat, folder: Path, signature: GraphSignature) -> Sequence[GraphEntry]:  # noqa: A002
        """Write one SavedModel with the signatures `ids` and `rows`."""
        from penstock.export.keras_lookups import split_model

        names = [tensor.name for tensor in signature.outputs]

        def answer(inputs: dict[str, Any]) -> dict[str, Any]:
            return self.answer_named(inputs, names)

        split = traced(lambda: split_model(answer, self._layers, self._fed(), signature, self._names), format)
        self._traced = split.lookups
        for function in (split.ids, split.model):
            refuse_python(function, format)
        self.save({"ids": split.ids, "rows": split.model}, format, folder)
        ids, model = split.ids_signature, split.model_signature
        return [
            GraphEntry(format, FOLDER, ids.inputs, ids.outputs, "ids"),
            GraphEntry(format, FOLDER, model.inputs, model.outputs, "model"),
        ]

    def _call(self, tensors: Any) -> Any:
        self._seen.clear()  # where the model is tried once more, the lookups of the first time are none
        return super()._call(tensors)
