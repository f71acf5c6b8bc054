"""The rows of embedding tables while they are trained: what a store of them does.

Contract
--------
* Ids are int64, rows and gradients float32, and nothing else is cast: a wrong dtype or shape is a `ConfigError`.
* A row that is not there follows from its table's rule.  To read it makes nothing; the first update begins with it.
* An id may be there several times in a call.  `apply` adds up its gradients first, and takes one step for it.
* Each update of a row and of its optimizer's state is done as a whole, or not at all.
* All methods may be called by many threads at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.row_optimizers import SGD, Adagrad, RowOptimizer, SparseAdam
from penstock.embeddings.rules import Constant, Ids, Init, MissingRule, Rows, Zeros, is_finite
from penstock.errors import ConfigError, TableMismatch

CHUNK: Final = 65536
"""Rows that `scan` gives at a time."""
LONGEST_NAME: Final = 200
WIDEST: Final = 65536


class TableShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as a reader sees it: its name, its shape, its rule."""

    name: str
    width: int
    """Numbers of a row."""
    ids: Literal["dense", "any"] = "dense"
    """`dense`: from 0 to below `size`; `any`: every int64."""
    size: int | None = None
    """Rows of a table with dense ids; None with any."""
    missing: MissingRule = Init()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(rf"[\x21-\x7e]{{1,{LONGEST_NAME}}}", self.name):
            raise ConfigError(
                f"the name of a table must be 1 to {LONGEST_NAME} printable ASCII characters, got {self.name!r}"
            )
        for count in ("width", "size"):
            if isinstance(getattr(self, count), np.integer):  # one of numpy cannot be written as JSON
                msgspec.structs.force_setattr(self, count, int(getattr(self, count)))
        if not isinstance(self.width, int) or not 1 <= self.width <= WIDEST:
            raise ConfigError(f"table {self.name!r}: width must be from 1 to {WIDEST}, got {self.width!r}")
        if self.ids not in {"dense", "any"}:
            raise ConfigError(f"table {self.name!r}: ids must be 'dense' or 'any', got {self.ids!r}")
        sized = isinstance(self.size, int) and 1 <= self.size <= 2**63
        if not (sized if self.ids == "dense" else self.size is None):
            raise ConfigError(
                f"table {self.name!r}: size must be the number of rows with dense ids, and None with any; got "
                f"ids={self.ids!r}, size={self.size}"
            )
        if not isinstance(self.missing, Zeros | Constant | Init):
            raise ConfigError(
                f"table {self.name!r}: missing must be zeros(), constant() or init(), got {self.missing!r}"
            )
        if isinstance(self.missing, Constant) and len(self.missing.values) != self.width:
            raise ConfigError(
                f"table {self.name!r}: constant has {len(self.missing.values)} values, but a row has {self.width}"
            )

    def check_ids(self, ids: Any) -> Ids:
        """The ids as they are; ConfigError for another dtype or shape, IndexError for one that cannot be."""
        found: NDArray[Any] = ids
        if not isinstance(found, np.ndarray) or found.dtype != np.int64 or found.ndim != 1:
            shown = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
            raise ConfigError(f"table {self.name!r}: ids must be a one-dimensional array of int64, got {shown}")
        if self.size is not None and len(found):
            wrong = found[(found < 0) | (found >= self.size)]
            if len(wrong):
                raise IndexError(f"table {self.name!r}: id {wrong[0]} is not from 0 to {self.size - 1}")
        return found

    def check_rows(self, rows: Any, count: int, what: str) -> Rows:
        """The rows, or gradients, of so many ids; ConfigError for another dtype or shape."""
        found: NDArray[Any] = rows
        wanted = (count, self.width)
        if not isinstance(found, np.ndarray) or found.dtype != np.float32 or found.shape != wanted:
            shown = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
            raise ConfigError(f"table {self.name!r}: {what} must be float32 of shape {wanted}, got {shown}")
        return found


class TableSpec(TableShape, frozen=True, forbid_unknown_fields=True):
    """A table that is trained: its shape, its rule, and its optimizer."""

    optimizer: RowOptimizer = SGD(lr=0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.optimizer, SGD | Adagrad | SparseAdam):
            raise ConfigError(
                f"table {self.name!r}: optimizer must be SGD, Adagrad or SparseAdam of penstock.embeddings, "
                f"got {self.optimizer!r}"
            )

    def check_same(self, there: TableSpec) -> None:
        """Raise TableMismatch where the table that is there differs in more than the learning rate."""
        for field in self.__struct_fields__:
            ours, theirs = getattr(self, field), getattr(there, field)
            if field == "optimizer":
                ours, theirs = (msgspec.structs.replace(each, lr=0.0) for each in (ours, theirs))
            if ours != theirs:
                raise TableMismatch(
                    f"table {self.name!r} exists with another {field}: {getattr(there, field)!r}, not "
                    f"{getattr(self, field)!r}"
                )

    def check_lr(self, lr: float | None) -> float:
        """The learning rate of one call: the table's own where it names none."""
        if lr is None:
            return self.optimizer.lr
        if not (is_finite(lr) and lr >= 0):
            raise ConfigError(f"table {self.name!r}: lr must be 0 or more, and finite, got {lr!r}")
        return lr


class Fetched(NamedTuple):
    """Rows as they are now."""

    rows: Rows
    """A row for each id, by the table's rule where it is not there."""
    found: NDArray[np.bool_]
    """Whether each is there."""


class TrainingStore(Protocol):
    """Tables of rows, by name."""

    def create(self, spec: TableSpec) -> None:
        """Make a table, or do nothing where an equal one is there, the learning rate aside.

        Raises:
            TableMismatch: another table of that name is there.
        """

    def tables(self) -> dict[str, TableSpec]:
        """The tables that are there."""

    def fetch(self, table: str, ids: Ids) -> Fetched:
        """The rows of `ids`.  KeyError where there is no such table."""

    def apply(self, table: str, ids: Ids, grads: Rows, lr: float | None = None) -> None:
        """Take one step of the table's optimizer for each distinct id; `lr` in place of the optimizer's own."""

    def load(self, table: str, ids: Ids, rows: Rows) -> None:
        """Put rows as they are, with new optimizer state.  The last row of an id counts."""

    def scan(self, table: str, chunk: int = CHUNK) -> Iterator[tuple[Ids, Rows]]:
        """All rows that are there, in ascending ids, at most `chunk` at a time."""

    def count(self, table: str) -> int:
        """How many rows are there."""

    def filling(self, table: str) -> AbstractContextManager[bool]:
        """Fill a table once: True for whoever is to fill it now, False once another has.

        Others wait meanwhile.  Where the block is left by an error, or its process dies, the next one is to fill it.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder that is whole or absent: a `shared:` store of what is here, optimizer state too."""

    def close(self) -> None:
        """Let go of what it holds.  Nothing else may be called then."""


def summed(ids: Ids, grads: Rows) -> tuple[Ids, Rows]:
    """The distinct ids in ascending order, each with the sum of its gradients."""
    if _ascends(ids):
        return ids, grads
    distinct, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    if len(distinct) == len(ids):
        order = np.empty_like(inverse)
        order[inverse] = np.arange(len(ids))
        return distinct, grads[order]
    by_id = np.argsort(inverse, kind="stable")
    starts = np.cumsum(counts) - counts
    return distinct, np.add.reduceat(grads[by_id], starts, axis=0)


def last_of_each(ids: Ids, rows: Rows) -> tuple[Ids, Rows]:
    """The distinct ids in ascending order, each with its last row."""
    if _ascends(ids):
        return ids, rows
    distinct, from_behind = np.unique(ids[::-1], return_index=True)
    return distinct, rows[::-1][from_behind]


def _ascends(ids: Ids) -> bool:
    """Whether the ids are distinct and sorted already, which takes a tenth of the time of sorting them."""
    return bool((ids[1:] > ids[:-1]).all())
