"""The parameters of a model beside its tables, where many processes train it at once: a table of a training store.

Contract
--------
* The first process to come puts its values there, and the others take them.
* A process adds what it has changed since it last looked, whatever optimizer has done so.  The store has the first
  values and the sum of all changes, in any order.
* Values are float32, one parameter behind the other in rows of one width, from id 0 on.
* The ids below 0 have the names and shapes, a byte in each number, so another model is refused.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Final

import numpy as np

from penstock.embeddings.row_optimizers import SGD
from penstock.embeddings.rules import Rows, Zeros
from penstock.embeddings.training_store import TableSpec, TrainingStore
from penstock.errors import TableMismatch

_log = logging.getLogger("penstock.embeddings")
_WIDTH: Final = 256
SPEC: Final = TableSpec("(parameters)", _WIDTH, ids="any", missing=Zeros(), optimizer=SGD(lr=1.0))


class SharedParameters:
    """The values that all processes have changed, as this one saw them last."""

    def __init__(self, store: TrainingStore, shapes: Mapping[str, tuple[int, ...]], values: Rows) -> None:
        """Put `values` into the store, unless another process has put its own there.

        Args:
            store: a store, where the parameters of one model have room.
            shapes: the shape of each parameter, by its name.
            values: all of them in that order, in one dimension.

        Raises:
            TableMismatch: the store has the parameters of another model.
        """
        self._store = store
        self._sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
        self._size = len(values)
        first = _in_rows(values)
        self._ids = np.arange(len(first))
        layout = [f"{name} {list(shape)}" for name, shape in shapes.items()]
        store.create(SPEC)
        with store.filling(SPEC.name) as fill:
            if fill:
                told = _in_rows(np.frombuffer("\n".join(layout).encode(), np.uint8))
                store.load(SPEC.name, -1 - np.arange(len(told)), told)
                store.load(SPEC.name, self._ids, first)
            else:
                self._check_layout(layout)
                _log.info("the store has the other parameters already: using them instead of those of this model")
        self.seen = self._fetched()
        """The values that were there when this process last looked, in one dimension."""

    def taken(self, values: Rows) -> Rows:
        """The values that are there, with what `values` has changed since they were seen last on top."""
        changed, self.seen = values - self.seen, self._fetched()
        return self.seen + changed

    def changes(self, values: Rows) -> Rows:
        """The difference of `values` to what was seen last.

        Raises:
            FloatingPointError: a value is not finite.
        """
        changed = values - self.seen
        if not np.isfinite(changed).all():
            place = int(np.argmin(np.isfinite(changed)))
            names = zip(self._sizes, itertools.accumulate(self._sizes.values()), strict=True)
            raise FloatingPointError(f"parameter {next(name for name, end in names if place < end)!r} is not finite")
        return changed

    def added(self, changes: Rows) -> Rows:
        """The values that are there, with `changes` among them."""
        rows = _in_rows(changes)
        ids = np.flatnonzero(rows.any(axis=1))
        if len(ids):
            self._store.apply(SPEC.name, ids, -rows[ids])
        self.seen += changes  # should the store fail now, they are not added once more
        self.seen = self._fetched()
        return self.seen

    def _fetched(self) -> Rows:
        return self._store.fetch(SPEC.name, self._ids).rows.reshape(-1)[: self._size]

    def _check_layout(self, layout: list[str]) -> None:
        parts = []
        for place in itertools.count(1):
            row, found = self._store.fetch(SPEC.name, np.array([-place]))
            if not found.all():
                break
            parts.append(row)
        told = np.concatenate(parts, axis=None).astype(np.uint8).tobytes().rstrip(b"\0").decode() if parts else ""
        for there, ours in itertools.zip_longest(told.split("\n"), layout or [""]):
            if there != ours:
                raise TableMismatch(
                    f"the store has the parameters of another model: {there or 'nothing'}; this one has "
                    f"{ours or 'nothing'}"
                )


def _in_rows(values: np.ndarray[tuple[int], np.dtype[np.float32 | np.uint8]]) -> Rows:
    rows = np.zeros((-(-len(values) // _WIDTH), _WIDTH), np.float32)
    rows.reshape(-1)[: len(values)] = values
    return rows
