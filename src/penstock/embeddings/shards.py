"""Write the rows of a table as shards: safetensors files of ranges of ascending ids, which processes map.

Contract
--------
* A shard holds rows that exist, in ascending ids; all ids of a shard are below those of the next.
* Its tensors are `rows`, and before them `ids` and `index` unless the table has every id from 0 to below its size.
* Its header follows from the table, its range, its number and the save that wrote it.  A reader compares bytes, which
  tell a shard of another table, place or save.
* The data of `rows` begins at a multiple of 4096 in the file, those of `ids` and `index` at a multiple of 8.
* A table without rows has no shard.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.sampled_index import count_of_samples, samples_of
from penstock.embeddings.training_store import TableShape
from penstock.errors import ConfigError, EmbeddingError
from penstock.hosting.file_names import file_stem

TABLES: Final = "tables"
"""The folder of the tables, in an artifact."""
MOST_SHARDS: Final = 99999
"""Shards of a table: their numbers have five digits, so that a header is as long before their count is known."""
_ALIGNED: Final = 4096
"""Where rows begin: a row of 256 bytes then lies in one page, and at a multiple of 64 maybe in two."""
_LENGTH: Final = 8
"""Bytes that say how long the header is."""
_LEAST_ID: Final = -(2**63)
_MOST_ID: Final = 2**63 - 1


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of rows."""

    file: str
    """Its path below the artifact."""
    first: int
    """The least id."""
    last: int
    """The greatest id."""
    rows: int


class ShardLayout(NamedTuple):
    """The bytes that a shard's file must begin with, and where its parts are."""

    header: bytes
    """The first bytes of the file: the length of the JSON behind it, and the JSON."""
    ids_at: int
    index_at: int
    rows_at: int
    """Where the data of each tensor begins in the file; without ids all three are where the rows begin."""
    samples: int
    """Entries of the index; 0 without ids."""
    size: int
    """Bytes of the file."""


@dataclass(frozen=True)
class ShardedTable:
    """A table and its shards."""

    shape: TableShape
    rows: int
    shards: tuple[Shard, ...]

    @property
    def dense(self) -> bool:
        """Whether every id from 0 to below the size is there, so that shards have no ids."""
        return self.shape.size == self.rows

    def check(self) -> None:
        """Hold rows, ranges and names to each other, and to the shape.

        Raises:
            ValueError: they do not fit.
        """
        table, end = f"table {self.shape.name!r}", _LEAST_ID
        most = _MOST_ID
        if self.shape.size is not None:
            end, most = 0, self.shape.size - 1
        if len(self.shards) > MOST_SHARDS:
            raise ValueError(f"{table} has {len(self.shards)} shards, but the maximum is {MOST_SHARDS}")
        for number, shard in enumerate(self.shards, 1):
            where, path = f"{table}, shard {number}", shard_path(self.shape.name, number, len(self.shards))
            if shard.file != path:
                raise ValueError(f"{where} is the file {shard.file!r}, but must be {path!r}")
            if not end <= shard.first <= shard.last <= most:
                raise ValueError(
                    f"{where} has the ids from {shard.first} to {shard.last}, but must have those from {end} to {most}"
                )
            if self.dense and shard.first != end:
                raise ValueError(f"{where} starts at id {shard.first}, but must start at {end}: the table has all ids")
            if not 1 <= shard.rows <= shard.last - shard.first + 1:
                raise ValueError(f"{where} cannot have {shard.rows} rows of ids from {shard.first} to {shard.last}")
            end = shard.last + 1
        if sum(shard.rows for shard in self.shards) != self.rows:
            raise ValueError(f"{table} has {self.rows} rows, which is not the sum of its shards")

    def layout(self, number: int, saved: str) -> ShardLayout:
        """How the file of the shard of this number, from 1 on, must be where this save has written it."""
        return _layout(
            self.shape, self.shards[number - 1], number, len(self.shards), indexed=not self.dense, saved=saved
        )


def shard_path(table: str, number: int, count: int) -> str:
    """The path of a shard below the artifact; numbers begin with 1."""
    stem = file_stem(table)
    if stem in {".", ".."}:
        stem = stem.replace(".", "%2E")
    return f"{TABLES}/{stem}/shard-{number:05d}-of-{count:05d}.safetensors"


def write_shards(
    folder: Path,
    shape: TableShape,
    chunks: Iterable[tuple[Ids, Rows]],
    *,
    rows: int,
    saved: str,
    shard_bytes: int,
) -> tuple[Shard, ...]:
    """Write the rows of a table, and tell the shards.

    It takes the memory of a shard and a chunk.  Nothing is synced to the disk,
    and what an error leaves in `folder` is for the caller to remove.

    Args:
        folder: where the artifact is drafted; it has nothing of this table yet.
        shape: the table.
        chunks: ids, ascending from chunk to chunk, and their rows; an array is kept until its shard is written.
        rows: how many there were before `chunks` began; more may have come since.
        saved: a text that differs from save to save.
        shard_bytes: the most that a file has, but for one of a single row.

    Raises:
        ConfigError: `shard_bytes` is no positive number, or would make too many shards.
        EmbeddingError: ids do not ascend, or rows are gone that were there.
        OSError: a file cannot be written.
    """
    if not isinstance(shard_bytes, int) or shard_bytes < 1:
        raise ConfigError(f"shard_bytes must be a number of bytes of at least 1, got {shard_bytes!r}")
    indexed = shape.size != rows
    most = _rows_of_a_shard(shape, shard_bytes, indexed=indexed, saved=saved)
    drafts: list[Shard] = []
    for number, pieces in enumerate(_filled(_checked(chunks, shape), most), 1):
        if number > MOST_SHARDS:
            raise ConfigError(
                f"table {shape.name!r} has more than {MOST_SHARDS} shards of {shard_bytes} bytes; "
                "choose a greater shard_bytes"
            )
        drafts.append(_write(folder, shape, pieces, number, indexed=indexed, saved=saved))
        pieces.clear()  # else it is in memory until the next shard is
    total = sum(draft.rows for draft in drafts)
    if not indexed and total != shape.size:
        raise EmbeddingError(
            f"table {shape.name!r} had all of its {rows} rows, but {total} were read; a store must not lose a row"
        )
    shards = tuple(
        msgspec.structs.replace(draft, file=shard_path(shape.name, number, len(drafts)))
        for number, draft in enumerate(drafts, 1)
    )
    table = ShardedTable(shape, total, shards)
    for number, draft in enumerate(drafts, 1):
        layout = _layout(shape, draft, number, len(drafts), indexed=indexed, saved=saved)
        _finish(folder / draft.file, folder / shards[number - 1].file, layout, table.layout(number, saved))
    return shards


def _layout(shape: TableShape, shard: Shard, number: int, count: int, *, indexed: bool, saved: str) -> ShardLayout:
    metadata = _metadata(shape, shard.first, shard.last, number, count, saved)
    return _layout_of(metadata, shard.rows, shape.width, indexed=indexed)


def _metadata(shape: TableShape, first: int, last: int, number: int, count: int, saved: str) -> dict[str, str]:
    return {
        "table": shape.name,
        "first": str(first),
        "last": str(last),
        "shard": f"{number:05d}",
        "of": f"{count:05d}",
        "saved": saved,
    }


def _layout_of(metadata: dict[str, str], rows: int, width: int, *, indexed: bool) -> ShardLayout:
    samples = count_of_samples(rows) if indexed else 0
    described: dict[str, object] = {"__metadata__": metadata}
    index_begins = 8 * rows if indexed else 0
    rows_begin = index_begins + 8 * samples
    end = rows_begin + 4 * rows * width
    if indexed:
        described["ids"] = {"dtype": "I64", "shape": [rows], "data_offsets": [0, index_begins]}
        described["index"] = {"dtype": "I64", "shape": [samples], "data_offsets": [index_begins, rows_begin]}
    described["rows"] = {"dtype": "F32", "shape": [rows, width], "data_offsets": [rows_begin, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    rows_at = -(-(_LENGTH + len(text) + rows_begin) // _ALIGNED) * _ALIGNED
    begin = rows_at - rows_begin
    text = text.ljust(begin - _LENGTH)
    return ShardLayout(
        header=len(text).to_bytes(_LENGTH, "little") + text,
        ids_at=begin,
        index_at=begin + index_begins,
        rows_at=rows_at,
        samples=samples,
        size=begin + end,
    )


def _rows_of_a_shard(shape: TableShape, shard_bytes: int, *, indexed: bool, saved: str) -> int:
    metadata = _metadata(shape, _LEAST_ID, _LEAST_ID, 0, 0, saved)  # no id has more characters

    def size(rows: int) -> int:
        return _layout_of(metadata, rows, shape.width, indexed=indexed).size

    most = min(shard_bytes, _MOST_ID) // (4 * shape.width)  # a range has no more numbers
    return max(1, bisect_right(range(1, most + 1), shard_bytes, key=size))


def _checked(chunks: Iterable[tuple[Ids, Rows]], shape: TableShape) -> Iterator[tuple[Ids, Rows]]:
    """The chunks that are not empty."""
    last: int | None = None
    for ids, rows in chunks:
        shape.check_rows(rows, len(shape.check_ids(ids)), "rows")
        if not len(ids):
            continue
        if not (ids[1:] > ids[:-1]).all() or (last is not None and ids[0] <= last):
            raise EmbeddingError(f"table {shape.name!r}: the ids of its rows do not ascend from {ids[0]} on")
        last = int(ids[-1])
        yield ids, rows


def _filled(chunks: Iterable[tuple[Ids, Rows]], most: int) -> Iterator[list[tuple[Ids, Rows]]]:
    """The rows in runs of `most`, each in pieces; the last run has what is left."""
    pieces: list[tuple[Ids, Rows]] = []
    room = most
    for ids, rows in chunks:
        start = 0
        while len(ids) - start >= room:
            pieces.append((ids[start : start + room], rows[start : start + room]))
            yield pieces
            pieces, start, room = [], start + room, most
        if start < len(ids):
            pieces.append((ids[start:], rows[start:]))
            room -= len(ids) - start
    if pieces:
        yield pieces


def _write(
    folder: Path, shape: TableShape, pieces: Sequence[tuple[Ids, Rows]], number: int, *, indexed: bool, saved: str
) -> Shard:
    """Write a shard whose count of shards is not known yet, under a name of its own."""
    ids = np.concatenate([some for some, _ in pieces])
    path = Path(shard_path(shape.name, number, 0))
    shard = Shard(path.as_posix(), int(ids[0]), int(ids[-1]), len(ids))
    if number == 1:
        (folder / path).parent.mkdir(parents=True)
    with (folder / path).open("xb") as file:
        file.write(_layout(shape, shard, number, 0, indexed=indexed, saved=saved).header)
        if indexed:
            file.write(ids.astype("<i8", copy=False).data)
            file.write(samples_of(ids).astype("<i8", copy=False).data)
        file.writelines(np.ascontiguousarray(rows, "<f4").data for _, rows in pieces)
    return shard


def _finish(draft: Path, place: Path, written: ShardLayout, wanted: ShardLayout) -> None:
    """Give a shard its name and its header, and take ids and index away where they turned out to be all there are."""
    if written.samples == wanted.samples:
        with draft.open("r+b") as file:
            file.write(wanted.header)
        draft.rename(place)
        return
    with draft.open("rb") as old, place.open("xb") as new:
        new.write(wanted.header)
        old.seek(written.rows_at)
        shutil.copyfileobj(old, new)
    draft.unlink()
