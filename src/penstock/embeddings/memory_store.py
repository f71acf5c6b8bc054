"""A training store in the memory of this process, for any number of threads: `memory:`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np

from penstock.embeddings.id_index import direct_entries
from penstock.embeddings.row_table import Change, Records, RowTable, StoreOfTables
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.shared_store import SharedTrainingStore, whole_folder
from penstock.embeddings.training_store import CHUNK, Fetched, TableSpec


class MemoryTrainingStore(StoreOfTables):
    """Tables that are gone with the process."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._making = threading.Lock()

    def create(self, spec: TableSpec) -> None:
        """As `TrainingStore.create`."""
        with self._making:
            there = self._tables.get(spec.name)
            if there is None:
                self._tables[spec.name] = _Table(spec)
            else:
                spec.check_same(there.spec)

    def tables(self) -> dict[str, TableSpec]:
        """As `TrainingStore.tables`."""
        with self._making:
            return {name: table.spec for name, table in self._tables.items()}

    @contextmanager
    def using(self, table: str) -> Iterator[RowTable]:
        """As `StoreOfTables.using`."""
        yield self._table(table)

    @contextmanager
    def filling(self, table: str) -> Iterator[bool]:
        """As `TrainingStore.filling`."""
        of = self._table(table)
        with of.filling:
            yield not of.filled
            of.filled = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """As `TrainingStore.save`."""
        with whole_folder(path) as made, closing(SharedTrainingStore(made)) as saved:
            for name, spec in self.tables().items():
                saved.create(spec)
                self._tables[name].save(saved)

    def close(self) -> None:
        """As `TrainingStore.close`."""
        self._tables.clear()

    def _table(self, name: str) -> _Table:
        try:
            return self._tables[name]
        except KeyError:
            raise KeyError(f"no table {name!r} is in memory") from None


class _Part:
    """All rows of a table; its lock guards the arrays."""

    def __init__(self, spec: TableSpec) -> None:
        self.lock = threading.RLock()
        self._records = Records(spec, direct_entries(spec.size))
        self._count = 0

    def fetch(self, ids: Ids) -> Fetched:
        with self.lock:
            return self._records.rows(ids, self._count)

    def make_room(self, ids: Ids) -> None:
        """Do nothing: `change` takes the memory that it needs."""

    def change(self, ids: Ids, change: Change, *, whole: bool) -> None:
        with self.lock:
            places = self._records.find(ids, self._count)
            records = self._records.begin(ids, places, whole=whole)
            change(records)
            new = places < 0
            count = self._count + int(np.count_nonzero(new))
            self._records.make_room(count)
            places[new] = np.arange(self._count, count)
            self._records.ids[self._count : count] = ids[new]
            self._records.write(places, records)
            self._count = count

    def known_ids(self) -> Ids:
        with self.lock:
            return self._records.ids[: self._count].copy()

    def count(self) -> int:
        return self._count

    def records(self) -> Iterator[tuple[Ids, Rows]]:
        """Ids and records, chunk by chunk; nobody may change them meanwhile."""
        for start in range(0, self._count, CHUNK):
            places = np.arange(start, min(start + CHUNK, self._count))
            yield self._records.ids[places], self._records.read(places)


class _Table(RowTable):
    """A table, in one part."""

    def __init__(self, spec: TableSpec) -> None:
        self._part = _Part(spec)
        super().__init__(spec, [self._part])
        self.filling = threading.Lock()
        self.filled = False
        self._step = 0

    @contextmanager
    def updating(self, steps: int) -> Iterator[int]:
        with self._part.lock:
            self._step += steps
            yield self._step

    def save(self, saved: SharedTrainingStore) -> None:
        with self._part.lock:
            for ids, records in self._part.records():
                saved.put_records(self.spec.name, ids, records)
            saved.put_counters(self.spec.name, self._step, filled=self.filled)
