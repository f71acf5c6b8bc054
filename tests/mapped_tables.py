"""Tables written as shards into a folder, and mapped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from penstock.embeddings.mapped_rows import MappedRowStore
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.shards import ShardedTable, write_shards
from penstock.embeddings.training_store import TableShape

SAVED = "one save"


def write_table(
    folder: Path, shape: TableShape, ids: Ids, rows: Rows, *, shard_bytes: int = 2**14, saved: str = SAVED
) -> ShardedTable:
    """The table, written below a folder, in chunks that are no multiple of a shard."""
    pieces = max(1, len(ids) // 301)
    chunks = zip(np.array_split(ids, pieces), np.array_split(rows, pieces), strict=True)
    shards = write_shards(folder, shape, chunks, rows=len(ids), saved=saved, shard_bytes=shard_bytes)
    table = ShardedTable(shape, len(ids), shards)
    table.check()
    return table


def map_tables(folder: Path, tables: Iterable[ShardedTable], *, saved: str = SAVED) -> MappedRowStore:
    """A store of these tables, whose files are below a folder."""
    return MappedRowStore({table.shape.name: table for table in tables}, partial(_open, folder), saved)


def _open(folder: Path, path: str) -> int:
    return os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
