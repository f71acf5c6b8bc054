"""Read rows of embedding tables that are trained: what a store of them does, and one in memory.

Contract
--------
* Ids are int64, one-dimensional, ascending and distinct, as `numpy.unique` gives them.  Nothing is cast or sorted.
* Rows come in the order of their ids.  A row that is not there follows from its table's rule.
* Rows that come back are copies: to change them changes nothing in the store.
* A call in which something is wrong fetches nothing.
* All methods may be called by many threads at once, but for `close`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.training_store import Fetched, TableShape
from penstock.errors import ConfigError


class RowStore(Protocol):
    """Tables of rows that do not change, by name."""

    def tables(self) -> dict[str, TableShape]:
        """The tables that are there."""

    def fetch(self, ids: Mapping[str, Ids], timeout: float | None = None) -> dict[str, Fetched]:
        """Rows of these ids, by table: float32 of shape (ids, width), and whether each was there.

        Args:
            ids: by table; a table may have no ids.
            timeout: seconds after which it gives up, where the store can; None: it waits.

        Raises:
            KeyError: there is no such table.
            ConfigError: ids are of another dtype or shape, do not ascend, or one is there twice.
            IndexError: an id is outside of a table with dense ids.
            RowsUnavailable: the rows cannot be read now.
        """

    def close(self) -> None:
        """Let go of what it holds.  Nothing else may be called then."""


def check_asked(table: TableShape, ids: Any) -> Ids:
    """The ids as they are, as `RowStore.fetch` takes them; ConfigError or IndexError for others."""
    if isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.ndim == 1 and len(ids):
        ascends = ids[1:] > ids[:-1]
        if not ascends.all():
            wrong = ascends.argmin()
            one, next_one = ids[wrong], ids[wrong + 1]
            raise ConfigError(
                f"table {table.name!r}: ids must be ascending and unique, as numpy.unique returns them; "
                f"{next_one} follows {one}"
            )
        if table.size is None or (ids[0] >= 0 and ids[-1] < table.size):
            return ids
    return table.check_ids(ids)


def check_table(tables: Mapping[str, Any], name: str, where: str) -> None:
    """Raise KeyError where there is no table of this name."""
    if name not in tables:
        raise KeyError(f"there is no table {name!r} {where}; tables: {', '.join(map(repr, sorted(tables))) or 'none'}")


def with_rule(table: TableShape, ids: Ids, fetched: Fetched) -> Fetched:
    """Put the rule's rows in place of those that were not found, and give `fetched` back."""
    rows, found = fetched
    if not found.all():
        missing = ~found
        rows[missing] = table.missing.rows(ids[missing], table.width, table.name)
    return fetched


class MemoryRowStore:
    """Rows in the memory of this process, for tests and small tables."""

    def __init__(self, tables: Iterable[tuple[TableShape, Ids, Rows]]) -> None:
        """Keep copies.

        Args:
            tables: each with its ids, ascending and distinct, and a row for each.
        """
        self._tables = {
            shape.name: (shape, check_asked(shape, ids).copy(), shape.check_rows(rows, len(ids), "rows").copy())
            for shape, ids, rows in tables
        }

    def tables(self) -> dict[str, TableShape]:
        """As `RowStore.tables`."""
        return {name: shape for name, (shape, _, _) in self._tables.items()}

    def fetch(self, ids: Mapping[str, Ids], timeout: float | None = None) -> dict[str, Fetched]:  # noqa: ARG002  # memory is there at once
        """As `RowStore.fetch`."""
        for name, some in ids.items():
            check_table(self._tables, name, "in memory")
            check_asked(self._tables[name][0], some)
        return {name: self._of(name, some) for name, some in ids.items()}

    def close(self) -> None:
        """As `RowStore.close`."""
        self._tables.clear()

    def _of(self, name: str, asked: Ids) -> Fetched:
        shape, known, rows = self._tables[name]
        if not len(known):
            fetched = Fetched(np.empty((len(asked), shape.width), np.float32), np.zeros(len(asked), bool))
        else:
            places = np.searchsorted(known, asked).clip(max=len(known) - 1)
            fetched = Fetched(rows[places], known[places] == asked)
        return with_rule(shape, asked, fetched)
