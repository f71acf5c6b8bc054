"""A training store in the memory of this process, for any number of threads: `memory:`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np

from penstock.embeddings.id_index import entries_for, find, insert
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.shared_store import SharedTrainingStore, whole_folder
from penstock.embeddings.training_store import CHUNK, Fetched, TableSpec, last_of_each, summed


class MemoryTrainingStore:
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

    def fetch(self, table: str, ids: Ids) -> Fetched:
        """As `TrainingStore.fetch`."""
        return self._table(table).fetch(ids)

    def apply(self, table: str, ids: Ids, grads: Rows, lr: float | None = None) -> None:
        """As `TrainingStore.apply`."""
        self._table(table).apply(ids, grads, lr)

    def load(self, table: str, ids: Ids, rows: Rows) -> None:
        """As `TrainingStore.load`."""
        self._table(table).load(ids, rows)

    def scan(self, table: str, chunk: int = CHUNK) -> Iterator[tuple[Ids, Rows]]:
        """As `TrainingStore.scan`."""
        return self._table(table).scan(chunk)

    def count(self, table: str) -> int:
        """As `TrainingStore.count`."""
        return self._table(table).count

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


class _Table:
    """A table; its lock guards every array."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.count = 0
        self.filling = threading.Lock()
        self.filled = False
        self._lock = threading.Lock()
        self._step = 0
        self._index = np.zeros(entries_for(0), np.int64)
        self._ids = np.empty(0, np.int64)
        self._rows = np.empty((0, spec.width), np.float32)
        self._state = np.empty((0, spec.optimizer.state_width(spec.width)), np.float32)

    def fetch(self, ids: Ids) -> Fetched:
        ids = self.spec.check_ids(ids)
        with self._lock:
            places = find(self._index, self._ids, ids)
            found = places >= 0
            if found.all():
                return Fetched(self._rows[places], found)
            rows = np.empty((len(ids), self.spec.width), np.float32)
            rows[found] = self._rows[places[found]]
        rows[~found] = self._missing(ids[~found])
        return Fetched(rows, found)

    def apply(self, ids: Ids, grads: Rows, lr: float | None) -> None:
        ids, lr = self.spec.check_ids(ids), self.spec.check_lr(lr)
        distinct, total = summed(ids, self.spec.check_rows(grads, len(ids), "gradients"))
        if not len(distinct):
            return
        with self._lock:
            self._step += 1
            places = self._places_of(distinct)
            rows, state = self._rows[places], self._state[places]
            self.spec.optimizer.update(rows, state, total, lr, self._step)
            self._rows[places], self._state[places] = rows, state

    def load(self, ids: Ids, rows: Rows) -> None:
        ids = self.spec.check_ids(ids)
        distinct, last = last_of_each(ids, self.spec.check_rows(rows, len(ids), "rows"))
        with self._lock:
            places = self._places_of(distinct, begun=False)
            self._rows[places] = last
            self._state[places] = self.spec.optimizer.first_state(len(places), self.spec.width)

    def scan(self, chunk: int) -> Iterator[tuple[Ids, Rows]]:
        with self._lock:
            ids = np.sort(self._ids[: self.count])
        for start in range(0, len(ids), chunk):
            some = ids[start : start + chunk]
            yield some, self.fetch(some).rows

    def save(self, saved: SharedTrainingStore) -> None:
        name = self.spec.name
        with self._lock:
            for start in range(0, self.count, CHUNK):
                some = slice(start, min(start + CHUNK, self.count))
                saved.put_with_state(name, self._ids[some], self._rows[some], self._state[some])
            saved.put_counters(name, self._step, filled=self.filled)

    def _places_of(self, distinct: Ids, *, begun: bool = True) -> Ids:
        """Places of distinct ids, made where they are not there; not `begun`, the new rows are yet to be written."""
        places = find(self._index, self._ids, distinct)
        new = distinct[places < 0]
        if len(new):
            start = self.count
            self._make_room(start + len(new))
            added = np.arange(start, start + len(new))
            self._ids[added] = new
            if begun:
                self._rows[added] = self._missing(new)
                self._state[added] = self.spec.optimizer.first_state(len(new), self.spec.width)
            insert(self._index, new, added)
            self.count += len(new)
            places[places < 0] = added
        return places

    def _make_room(self, count: int) -> None:
        if count > len(self._ids):
            more = max(count, 2 * len(self._ids), 1024)
            self._ids = _longer(self._ids, more)
            self._rows, self._state = _longer(self._rows, more), _longer(self._state, more)
        entries = entries_for(count)
        if entries > len(self._index):
            self._index = np.zeros(entries, np.int64)
            insert(self._index, self._ids[: self.count], np.arange(self.count))

    def _missing(self, ids: Ids) -> Rows:
        return self.spec.missing.rows(ids, self.spec.width, self.spec.name)


def _longer(array: np.ndarray, rows: int) -> np.ndarray:
    longer = np.empty((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
