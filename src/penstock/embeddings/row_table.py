"""A table of a training store, whose rows lie in parts: what its methods do, wherever the parts are.

Contract
--------
* A record is a row and its optimizer's state, side by side.
* A part has the records of some ids.  It reads and changes many at a time, and nobody sees it in the middle of that.
* An id belongs to the same part for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.id_index import MOST, Entries, IdIndex, Places, mixed
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.training_store import CHUNK, Fetched, TableSpec, last_of_each, summed
from penstock.errors import EmbeddingError

Change = Callable[[Rows], None]
"""Changes records in place."""

_CACHED: Final = 2**18
"""Bytes of records that are updated at a time where all are in one part: they stay in a core's cache meanwhile."""


def record_width(spec: TableSpec) -> int:
    """Numbers of a record."""
    return spec.width + spec.optimizer.state_width(spec.width)


class Records:
    """Arrays of ids and of their records, and where each id lies in them.  No lock.

    A record is moved as one item: numpy takes twice as long for as many numbers.
    """

    def __init__(self, spec: TableSpec, direct: Entries | None) -> None:
        self._spec = spec
        self._index = IdIndex(direct)
        self._item = _item(record_width(spec))
        self._row_alone = np.dtype({"names": ["row"], "formats": [_item(spec.width)], "itemsize": self._item.itemsize})
        self.place(np.empty(0, np.int64), np.empty(0, self._item))

    def place(self, ids: Ids, records: NDArray[Any]) -> None:
        """Have these arrays, which begin as those before; `records` is contiguous, of any dtype."""
        self.items = records.view(self._item)
        self._rows = self.items.view(self._row_alone)["row"]
        self.ids = ids  # last: their number says how many records there are, also after an interrupt in the middle

    def make_room(self, count: int) -> None:
        """Have arrays of at least `count` records in memory."""
        if count > MOST:
            raise EmbeddingError(f"table {self._spec.name!r} cannot have more than {MOST} rows in one part")
        if count > len(self.ids):
            room = max(count, 2 * len(self.ids), 1024)
            ids, items = np.empty(room, np.int64), np.empty(room, self._item)
            ids[: len(self.ids)], items[: len(self.ids)] = self.ids, self.items
            self.place(ids, items)

    def find(self, ids: Ids, count: int) -> Places:
        """The place of each id among the first `count`; -1 where it is not there."""
        self._index.catch_up(self.ids, count)
        return self._index.find(self.ids, ids)

    def rows(self, ids: Ids, count: int) -> Fetched:
        """Rows of `ids` among the first `count`; those of ids that are not there have no values."""
        places = self.find(ids, count)
        found = places >= 0
        if found.all():
            return Fetched(_numbers(self._rows[places], self._spec.width), found)
        rows = np.empty((len(ids), self._spec.width), np.float32)
        rows[found] = _numbers(self._rows[places[found]], self._spec.width)
        return Fetched(rows, found)

    def begin(self, ids: Ids, places: Places, *, whole: bool) -> Rows:
        """Copies of records for an update to change; `whole`: it writes all of them."""
        old, width = places >= 0, self._spec.width
        there = self.read(places[old])
        if len(there) == len(ids):
            return there
        records = np.empty((len(ids), there.shape[1]), np.float32)
        records[old] = there
        if not whole:
            new = ids[~old]
            records[~old, :width] = self._spec.missing.rows(new, width, self._spec.name)
            records[~old, width:] = self._spec.optimizer.first_state(len(new), width)
        return records

    def read(self, places: Places) -> Rows:
        """Copies of records."""
        return _numbers(self.items[places], record_width(self._spec))

    def write(self, places: Places, records: Rows) -> None:
        """Put records."""
        self.items[places] = _items(records)


class Part(Protocol):
    """The records of some ids."""

    def fetch(self, ids: Ids) -> Fetched:
        """Rows of `ids`; those of ids that are not there have no values."""

    def make_room(self, ids: Ids) -> None:
        """Have room for an update of these distinct ids, so that a later one fails before it changes anything."""

    def change(self, ids: Ids, change: Change, *, whole: bool) -> None:
        """Change the records of distinct ids; those that are not there begin with the table's rule.

        `whole`: the change writes all of each, so no rule is needed.
        """

    def known_ids(self) -> Ids:
        """The ids that are there, in the order in which they came."""

    def count(self) -> int:
        """How many are there."""


class RowTable(ABC):
    """A table by its parts."""

    def __init__(self, spec: TableSpec, parts: Sequence[Part]) -> None:
        self.spec = spec
        self._parts = parts

    @abstractmethod
    def updating(self, steps: int) -> AbstractContextManager[int]:
        """Say that an update is under way, and give the number of its step, which is so many after the last one."""

    def fetch(self, ids: Ids) -> Fetched:
        """As `TrainingStore.fetch`."""
        ids = self.spec.check_ids(ids)
        if len(self._parts) == 1:
            rows, found = self._parts[0].fetch(ids)
        else:
            items, found = np.empty(len(ids), _item(self.spec.width)), np.empty(len(ids), bool)
            for part, at in self._split(ids):
                there, found[at] = part.fetch(ids[at])
                items[at] = _items(there)
            rows = _numbers(items, self.spec.width)
        if not found.all():
            rows[~found] = self.spec.missing.rows(ids[~found], self.spec.width, self.spec.name)
        return Fetched(rows, found)

    def apply(self, ids: Ids, grads: Rows, lr: float | None) -> None:
        """As `TrainingStore.apply`."""
        ids, rate = self.spec.check_ids(ids), self.spec.check_lr(lr)
        distinct, total = summed(ids, self.spec.check_rows(grads, len(ids), "gradients"))
        totals, width = _items(total), self.spec.width

        def change(at: Any, step: int) -> Change:
            return lambda records: self.spec.optimizer.update(
                records[:, :width], records[:, width:], _numbers(totals[at], width), rate, step
            )

        self._update(distinct, change, whole=False)

    def load(self, ids: Ids, rows: Rows) -> None:
        """As `TrainingStore.load`."""
        ids = self.spec.check_ids(ids)
        distinct, last = last_of_each(ids, self.spec.check_rows(rows, len(ids), "rows"))
        state = self.spec.optimizer.first_state(len(distinct), self.spec.width)
        self.put(distinct, np.concatenate([last, state], axis=1))

    def put(self, ids: Ids, records: Rows) -> None:
        """Put records of distinct ids."""

        def change(at: Any, _: int) -> Change:
            def replace(there: Rows) -> None:
                there[:] = records[at]

            return replace

        self._update(ids, change, whole=True)

    def scan(self, chunk: int) -> Iterator[tuple[Ids, Rows]]:
        """As `TrainingStore.scan`."""
        ids = np.sort(np.concatenate([part.known_ids() for part in self._parts]))
        for start in range(0, len(ids), chunk):
            some = ids[start : start + chunk]
            yield some, self.fetch(some).rows

    def count(self) -> int:
        """As `TrainingStore.count`."""
        return sum(part.count() for part in self._parts)

    def _update(self, distinct: Ids, change: Callable[[Any, int], Change], *, whole: bool) -> None:
        parts = self._split(distinct)
        for part, at in parts:
            part.make_room(distinct[at])
        if parts:
            with self.updating(steps=0 if whole else 1) as step:
                for part, at in parts:
                    part.change(distinct[at], change(at, step), whole=whole)

    def _split(self, ids: Ids) -> list[tuple[Part, Any]]:
        """The parts that have some of `ids`, each with the places of these in it; a part may come several times."""
        if len(self._parts) == 1:
            some = max(1, _CACHED // (4 * record_width(self.spec)))
            return [(self._parts[0], slice(start, start + some)) for start in range(0, len(ids), some)]
        numbers = ((mixed(ids) >> np.uint64(32)) % np.uint64(len(self._parts))).astype(np.uint8)
        places = [(part, np.flatnonzero(numbers == number)) for number, part in enumerate(self._parts)]
        return [(part, at) for part, at in places if len(at)]


class StoreOfTables(ABC):
    """The methods of a training store that one table answers."""

    @abstractmethod
    def using(self, table: str) -> AbstractContextManager[RowTable]:
        """The table of this name, with its errors as the store's; KeyError where there is none."""

    def fetch(self, table: str, ids: Ids) -> Fetched:
        """As `TrainingStore.fetch`."""
        with self.using(table) as of:
            return of.fetch(ids)

    def apply(self, table: str, ids: Ids, grads: Rows, lr: float | None = None) -> None:
        """As `TrainingStore.apply`."""
        with self.using(table) as of:
            of.apply(ids, grads, lr)

    def load(self, table: str, ids: Ids, rows: Rows) -> None:
        """As `TrainingStore.load`."""
        with self.using(table) as of:
            of.load(ids, rows)

    def scan(self, table: str, chunk: int = CHUNK) -> Iterator[tuple[Ids, Rows]]:
        """As `TrainingStore.scan`."""
        with self.using(table) as of:
            yield from of.scan(chunk)

    def count(self, table: str) -> int:
        """As `TrainingStore.count`."""
        with self.using(table) as of:
            return of.count()


def _item(width: int) -> np.dtype[np.void]:
    return np.dtype((np.void, 4 * width))


def _items(rows: Rows) -> NDArray[np.void]:
    return np.ascontiguousarray(rows).view(_item(rows.shape[1]))[:, 0]


def _numbers(items: NDArray[np.void], width: int) -> Rows:
    return items.view(np.float32).reshape(-1, width)
