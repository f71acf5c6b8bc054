"""The sides of the scenes that read rows which are trained: mapped shards, and what else may hold rows."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from penstock.embeddings.mapped_rows import MappedRowStore
from penstock.embeddings.shards import ShardedTable, write_shards
from penstock.embeddings.training_store import TableShape

SHARDS = 4
CHUNK = 65536
NAME = "rows"

Read = Callable[[np.ndarray], np.ndarray]
"""Gives the rows of ids."""


def ids_of(kind: str, rows: int) -> np.ndarray:
    """All ids of a table: from 0 on, or any of 64 bits."""
    if kind == "dense":
        return np.arange(rows)
    draw, ids = np.random.default_rng(1), np.empty(0, np.int64)
    while len(ids) < rows:
        ids = np.unique(draw.integers(-(2**63), 2**63 - 1, rows + 1000, endpoint=True))
    return ids[:rows]


def chunks_of(ids: np.ndarray, width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The ids and the rows of a table; rows differ within a chunk."""
    block = np.random.default_rng(2).standard_normal((CHUNK, width), np.float32)
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        yield some, block[: len(some)] + np.float32(start)


class Shards:
    """A table as shards, read by a store."""

    def __init__(self, folder: Path, kind: str, rows: int, width: int) -> None:
        shape = TableShape(NAME, width, size=rows) if kind == "dense" else TableShape(NAME, width, ids="any")
        ids = ids_of(kind, rows)
        # Rows begin after a page, or with ids behind less than nine bytes a row and two pages.
        a_row, before = (4 * width, 4096) if kind == "dense" else (4 * width + 9, 8192)
        shard_bytes = -(-rows // SHARDS) * a_row + before
        shards = write_shards(folder, shape, chunks_of(ids, width), rows=rows, saved="bench", shard_bytes=shard_bytes)
        self._table = ShardedTable(shape, rows, shards)
        self._folder = folder
        self.files = [folder / shard.file for shard in shards]
        self.open()

    def open(self) -> None:
        """Map the files anew."""
        self._store = MappedRowStore({NAME: self._table}, partial(self._open, self._folder), "bench")

    def close(self) -> None:
        """Let go of the maps."""
        self._store.close()

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self._store.fetch({NAME: ids})[NAME].rows

    @staticmethod
    def _open(folder: Path, path: str) -> int:
        return os.open(folder / path, os.O_RDONLY)


class OneMap:
    """All rows of a table in one file that is mapped, and where ids are not numbers of rows, the ids in another."""

    def __init__(self, folder: Path, kind: str, rows: int, width: int, *, advice: int = mmap.MADV_NORMAL) -> None:
        self._width, self._advice, self._dense = width, advice, kind == "dense"
        self.files = [folder / "all.rows", folder / "all.ids"]
        ids = ids_of(kind, rows)
        self.files[1].write_bytes(ids.data)
        with self.files[0].open("wb") as file:
            file.writelines(some.data for _, some in chunks_of(ids, width))
        self.open()

    def open(self) -> None:
        """Map the files anew."""
        rows, ids = map(self._map, self.files)
        self._rows = np.frombuffer(rows, np.float32).reshape(-1, self._width)
        self._ids = np.frombuffer(ids, np.int64)

    def close(self) -> None:
        """Let go of the maps."""
        del self._rows, self._ids

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return np.take(self._rows, ids if self._dense else np.searchsorted(self._ids, ids), axis=0)

    def _map(self, path: Path) -> mmap.mmap:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(self._advice)
        return mapped


Reader = Shards | OneMap


@contextmanager
def readers(folder: Path, kind: str, rows: int, width: int, *, cold: bool) -> Iterator[tuple[Reader, Reader]]:
    """Shards and one map of the same table."""
    advice = mmap.MADV_RANDOM if cold else mmap.MADV_NORMAL
    with (
        closing(Shards(folder, kind, rows, width)) as ours,
        closing(OneMap(folder, kind, rows, width, advice=advice)) as theirs,
    ):
        if not cold:
            for some in np.array_split(ids_of(kind, rows), -(-rows // CHUNK)):
                ours(some)
                theirs(some)
        yield ours, theirs


def make_cold(reader: Reader) -> None:
    """Have nothing of its files in memory; maps of a file keep its pages there, so they are made anew."""
    reader.close()
    for path in reader.files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    reader.open()


def draw_ids(draw: np.random.Generator, known: np.ndarray, count: int) -> np.ndarray:
    """So many distinct ids of those, ascending."""
    return known[np.sort(draw.choice(len(known), count, replace=False, shuffle=False))]


# -- beside them ------------------------------------------------------------------------------------------------------


def rows_beside(folder: Path, rows: int, width: int, ids: int) -> dict[str, float]:
    """Rows/s of what else people keep rows in: the median of 20 calls; what is not installed is left out by name."""
    known, draw = ids_of("dense", rows), np.random.default_rng(0)
    figures = {}
    for name, opened in (("a dict of rows", in_dict), ("LMDB", in_lmdb), ("rocksdict", in_rocksdict)):
        try:
            with opened(folder, known, width) as read:
                batches = [draw_ids(draw, known, ids) for _ in range(25)]
                figures[f"rows/s of {name}"] = ids / median([_seconds(read, batch) for batch in batches][5:])
        except ModuleNotFoundError as error:
            print(f"{name} is left out: {error}")
    return figures


def _seconds(read: Read, ids: np.ndarray) -> float:
    begin = time.perf_counter()
    read(ids)
    return time.perf_counter() - begin


@contextmanager
def in_dict(folder: Path, known: np.ndarray, width: int) -> Iterator[Read]:  # noqa: ARG001  # it has no file
    """A dict from id to a row."""
    kept: dict[int, np.ndarray] = {}
    for some, rows in chunks_of(known, width):
        kept.update(zip(some.tolist(), rows.copy(), strict=True))
    yield lambda ids: np.stack([kept[number] for number in ids.tolist()])


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def _joined(values: list[Any], width: int) -> np.ndarray:
    return np.frombuffer(b"".join(values), np.float32).reshape(-1, width)


@contextmanager
def in_lmdb(folder: Path, known: np.ndarray, width: int) -> Iterator[Read]:
    """LMDB, a row a key, read in one transaction a call."""
    lmdb = import_module("lmdb")
    with lmdb.open(str(folder / "lmdb"), map_size=2**40) as kept:
        for some, rows in chunks_of(known, width):
            with kept.begin(write=True) as transaction:
                for number, row in zip(some.tolist(), rows, strict=True):
                    transaction.put(_key(number), row.tobytes(), append=True)

        def read(ids: np.ndarray) -> np.ndarray:
            with kept.begin(buffers=True) as transaction:
                return _joined([transaction.get(_key(number)) for number in ids.tolist()], width)

        yield read


@contextmanager
def in_rocksdict(folder: Path, known: np.ndarray, width: int) -> Iterator[Read]:
    """RocksDB, a row a key, compacted, read by one multi_get a call."""
    rocksdict = import_module("rocksdict")
    kept = rocksdict.Rdict(str(folder / "rocksdict"), rocksdict.Options(raw_mode=True))
    with closing(kept):
        for some, rows in chunks_of(known, width):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for number, row in zip(some.tolist(), rows, strict=True):
                batch.put(_key(number), row.tobytes())
            kept.write(batch)
        kept.compact_range(None, None)
        yield lambda ids: _joined(kept[[_key(number) for number in ids.tolist()]], width)
