"""Look up the rows of embedding tables that a batch needs, where tables lie outside of the graph.

The graph `ids` tells the ids of every lookup.  Each is checked, the distinct ids of each table are fetched once for the
whole batch, and the graph `model` gets the rows, and for each lookup the places of its ids among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.artifact.manifest import Lookup, TableEntry
from penstock.embeddings.row_store import RowStore
from penstock.embeddings.rules import Ids
from penstock.embeddings.training_store import Fetched
from penstock.errors import InvalidItem
from penstock.graphs.graph import Graph

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class WrongId:
    """An id that is none of its table's."""

    table: str
    id: int
    size: int
    input: str = ""
    """The input that has these ids; "" where the model computes them."""
    place: int = 0
    """Which value of a row of that input it is."""

    def __str__(self) -> str:
        return f"table {self.table!r} has the ids from 0 to {self.size - 1}, but id {self.id} was requested"


class WrongIds(Exception):
    """Rows of the batch have ids that are none of their table's.  The others can be asked without them."""

    def __init__(self, rows: Mapping[int, WrongId]) -> None:
        super().__init__("; ".join(f"row {row}: {why}" for row, why in rows.items()))
        self.rows = rows
        """The first such id, by the row's place in the batch."""


@dataclass(frozen=True)
class LookedUp:
    """Rows that a batch needs."""

    ids: Arrays
    """The ids of each lookup, by its name."""
    fetched: Mapping[str, Fetched]
    """The rows of the distinct ids of each table outside."""
    inputs: Arrays
    """Inputs of the graph `model`: the rows, and the places of the ids among them."""


class Lookups:
    """The lookups of a model that has tables outside."""

    def __init__(self, tables: Sequence[TableEntry], graph: Graph, store: RowStore) -> None:
        self.tables = tuple(tables)
        self.graph = graph
        """The graph `ids`."""
        self.store = store

    def look_up(self, inputs: Arrays) -> LookedUp:
        """The rows for encoded inputs.

        Raises:
            WrongIds: rows of the batch have ids that are none of their table's.
            InvalidItem: likewise, where nothing says which row an id is of.
            RowsUnavailable: the rows cannot be read now.
        """
        given = self.graph.run(inputs)
        ids = {tensor.name: array for tensor, array in zip(self.graph.outputs, given, strict=True)}
        self._check(ids, inputs)
        outside = [table for table in self.tables if table.placed == "outside"]
        distinct, fed = {}, dict[str, NDArray[Any]]()
        for table in outside:
            distinct[table.name], places = _places([ids[lookup.ids] for lookup in table.lookups])
            fed |= {lookup.places: array for lookup, array in zip(table.lookups, places, strict=True)}
        fetched = self.store.fetch(distinct)
        for table in outside:
            rows = fetched[table.name].rows
            # A graph is written for a row at least.
            fed[table.input] = rows if len(rows) else np.zeros((1, table.width), np.float32)
        return LookedUp(ids, fetched, fed)

    def missing(self, looked_up: LookedUp, rows: int) -> list[dict[str, int]]:
        """How many distinct ids of each row were not found, by table; lookups that are not by the row are left out."""
        counts: list[dict[str, int]] = [{} for _ in range(rows)]
        for table in self.tables:
            by_row = [lookup for lookup in table.lookups if lookup.by_row]
            if table.placed != "outside" or not by_row or looked_up.fetched[table.name].found.all():
                continue
            gone = ~looked_up.fetched[table.name].found
            places = np.concatenate([looked_up.inputs[lookup.places].reshape(rows, -1) for lookup in by_row], axis=1)
            wrong = gone[places] if len(gone) else np.zeros(places.shape, bool)
            for row in np.flatnonzero(wrong.any(axis=1)).tolist():
                counts[row][table.name] = len(np.unique(places[row][wrong[row]]))
        return counts

    def close(self) -> None:
        """Release the graph and the store."""
        self.graph.close()
        self.store.close()

    def _check(self, ids: Arrays, inputs: Arrays) -> None:
        wrong: dict[int, WrongId] = {}
        for table in self.tables:
            for lookup in table.lookups:
                for row, why in _wrong_ids(table, lookup, ids[lookup.ids], inputs).items():
                    wrong.setdefault(row, why)
        if wrong:
            raise WrongIds(wrong)


def _wrong_ids(table: TableEntry, lookup: Lookup, ids: np.ndarray[Any, Any], inputs: Arrays) -> dict[int, WrongId]:
    if table.size is None or not ids.size or (ids.min() >= 0 and ids.max() < table.size):
        return {}
    outside = (ids < 0) | (ids >= table.size)
    if not lookup.by_row:
        raise InvalidItem(str(WrongId(table.name, int(ids[outside][0]), table.size)))
    source = next((name for name, array in inputs.items() if _are_same(array, ids)), "")
    flat, ids = outside.reshape(len(ids), -1), ids.reshape(len(ids), -1)
    wrong: dict[int, WrongId] = {}
    for row in np.flatnonzero(flat.any(axis=1)).tolist():
        place = int(flat[row].argmax())
        wrong[row] = WrongId(table.name, int(ids[row][place]), table.size, source, place)
    return wrong


def _are_same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def _places(lookups: Sequence[Ids]) -> tuple[Ids, list[NDArray[np.int64]]]:
    """The distinct ids of all lookups, and for each lookup the places of its ids among them."""
    flat = np.concatenate([ids.reshape(-1) for ids in lookups])
    distinct, inverse = np.unique(flat, return_inverse=True)
    ends = np.cumsum([ids.size for ids in lookups])[:-1]
    parts = np.split(inverse.astype(np.int64, copy=False), ends)
    return distinct, [part.reshape(ids.shape) for part, ids in zip(parts, lookups, strict=True)]
