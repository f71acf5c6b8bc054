"""Read rows from shards that are mapped into memory: the processes of a host share their pages.

Contract
--------
* A shard's size and header are what they must be, or nothing is mapped.  Its other bytes are not read before they are
  asked for, and whatever they are, nothing outside of the shard is read.
* Nothing of a table's size is allocated: the pages belong to the files.
* Files that are replaced or removed stay served.  A file that is cut while it is mapped
  ends the process with SIGBUS.
* Many threads read rows where the last call had to wait for the disk; else the thread that asks copies them.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from resource import RUSAGE_THREAD, getrusage
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.row_store import check_asked, check_table, with_rule
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.sampled_index import SampledIndex, samples_of
from penstock.embeddings.shards import Shard, ShardedTable
from penstock.embeddings.training_store import CHUNK, Fetched, TableShape
from penstock.errors import ArtifactInvalid

THREADS: Final = 16
"""Threads that wait for pages: they read three times as many rows a second as one does."""
LEAST_SPREAD: Final = 256
"""Ids of a table from which on many threads read them."""
FEW_WAITS: Final = 64
"""Pages read from the disk in a call, from which on many threads make the next one: to ask them takes a millisecond."""


class MappedRowStore:
    """Rows in the shards of an artifact, a `RowStore`.

    A page of a file that is not in memory is read where it is touched, and nothing bounds how long that takes, so
    `fetch` takes a `timeout` and cannot keep it.  Every shard that is mapped has a file descriptor.
    """

    def __init__(self, tables: Mapping[str, ShardedTable], open_file: Callable[[str], int], saved: str) -> None:
        """Map the shards.

        Args:
            tables: by name; `ShardedTable.check` has found nothing.
            open_file: gives a descriptor of a shard's file, which is closed here.
            saved: the text of the save that wrote them, as `write_shards` was given it.

        Raises:
            ArtifactInvalid: a file is no regular one, its size or its header is another, or it cannot be mapped.
            OSError: its header cannot be read; or what `open_file` raises.
        """
        self._tables = {name: _Table(table, open_file, saved) for name, table in tables.items()}
        self._readers = _Readers()

    def tables(self) -> dict[str, TableShape]:
        """As `RowStore.tables`."""
        return {name: table.shape for name, table in self._tables.items()}

    def fetch(self, ids: Mapping[str, Ids], timeout: float | None = None) -> dict[str, Fetched]:  # noqa: ARG002  # see the class
        """As `RowStore.fetch`."""
        for name, some in ids.items():
            check_table(self._tables, name, "among the shards")
            check_asked(self._tables[name].shape, some)
        return {name: self._of(self._tables[name], some) for name, some in ids.items()}

    def check_contents(self) -> None:
        """Read the ids and the index of every shard, and hold them to its range and to each other.

        Raises:
            ArtifactInvalid: ids do not ascend from the first to the last of the shard, or the index is not theirs.
        """
        for table in self._tables.values():
            table.check_contents()

    def close(self) -> None:
        """As `RowStore.close`.  The maps end with the last call that reads from them."""
        self._tables.clear()
        self._readers.close()

    def _of(self, table: _Table, ids: Ids) -> Fetched:
        fetched = Fetched(np.empty((len(ids), table.shape.width), np.float32), np.full(len(ids), table.dense))
        if len(ids) < LEAST_SPREAD:
            table.read(ids, *fetched)
        else:
            waits = self._readers.read(table, ids, fetched) if table.from_disk else table.read(ids, *fetched)
            table.from_disk = waits >= FEW_WAITS
        return fetched if table.dense else with_rule(table.shape, ids, fetched)


class _Readers:
    """Threads that read pages, made by the process that needs them first: a fork has none of its parent's.

    Two calls may make a pool at once.  The one that is not kept ends after its call.
    """

    def __init__(self) -> None:
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def read(self, table: _Table, ids: Ids, into: Fetched) -> int:
        """As `_Table.read`, each thread a part."""
        pool = self._pool
        if pool is None or pool[0] != os.getpid():
            self._pool = pool = os.getpid(), ThreadPoolExecutor(THREADS, "penstock-rows")
        parts = [np.array_split(each, THREADS) for each in (ids, into.rows, into.found)]
        return sum(pool[1].map(table.read, *parts))

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and pool[0] == os.getpid():
            pool[1].shutdown()


class _Table:
    """The shards of a table, and where each begins and ends."""

    def __init__(self, table: ShardedTable, open_file: Callable[[str], int], saved: str) -> None:
        self.shape = table.shape
        self.dense = table.dense
        self._shards = [_mapped(table, number, open_file, saved) for number in range(1, len(table.shards) + 1)]
        self._firsts = np.array([shard.first for shard in table.shards], np.int64)
        self._lasts = np.array([shard.last for shard in table.shards], np.int64)
        self.from_disk = True
        """Whether the last call read many pages from the disk; True before the first.  A hint, which nothing locks."""

    def read(self, ids: Ids, rows: Rows, found: NDArray[np.bool_]) -> int:
        """Fill in the rows of `ids` that are there, and that they are; the rows of others mean nothing.

        A dense table has all of them, and `found` says so already.  It gives the number of pages that this thread had
        to read from the disk.
        """
        before = getrusage(RUSAGE_THREAD).ru_majflt
        begins, ends = ids.searchsorted(self._firsts), ids.searchsorted(self._lasts, "right")
        for number in (ends > begins).nonzero()[0].tolist():
            some = slice(begins[number], ends[number])
            self._shards[number].read(ids[some], rows[some], found[some])
        return getrusage(RUSAGE_THREAD).ru_majflt - before

    def check_contents(self) -> None:
        for shard in self._shards:
            shard.check_contents()


class _MappedShard(NamedTuple):
    shard: Shard
    rows: Rows
    by_id: SampledIndex | None
    """Where each id is; None where every id from the first to the last is there."""

    def read(self, ids: Ids, rows: Rows, found: NDArray[np.bool_]) -> None:
        """Copy the rows of ids within the shard's range, and tell which are there unless each is."""
        if self.by_id is None:
            places = ids - self.shard.first
        else:
            places, found[:] = self.by_id.find(ids)
        self.rows.take(places, axis=0, out=rows, mode="clip")  # with "raise" numpy would copy `out`

    def check_contents(self) -> None:
        if self.by_id is None:
            return
        (file, first, last, _), (ids, samples) = msgspec.structs.astuple(self.shard), self.by_id
        if ids[0] != first or ids[-1] != last:
            raise ArtifactInvalid(f"{file} does not have the ids from {first} to {last} of the manifest", file=file)
        for start in range(0, len(ids) - 1, CHUNK):
            some = ids[start : start + CHUNK + 1]
            if not (some[1:] > some[:-1]).all():
                raise ArtifactInvalid(f"{file} has ids that do not ascend, between {some[0]} and {some[-1]}", file=file)
        if not (samples == samples_of(ids)).all():
            raise ArtifactInvalid(f"{file} has an index that does not match its ids", file=file)


def _mapped(table: ShardedTable, number: int, open_file: Callable[[str], int], saved: str) -> _MappedShard:
    shard, layout = table.shards[number - 1], table.layout(number, saved)
    file = shard.file
    descriptor = open_file(file)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactInvalid(f"{file} is not a regular file", file=file)
        if status.st_size != layout.size:
            raise ArtifactInvalid(f"{file} has {status.st_size} bytes, but must have {layout.size}", file=file)
        if os.pread(descriptor, len(layout.header), 0) != layout.header:
            raise ArtifactInvalid(
                f"{file} is not shard {number} of table {table.shape.name!r} as this artifact was saved: its "
                "header differs",
                file=file,
            )
        mapped = _map(file, descriptor, layout.size)
        # Else the kernel reads ahead around every row that is not in memory, which may be megabytes for each.
        mapped.madvise(mmap.MADV_RANDOM)
    finally:
        os.close(descriptor)
    rows = np.frombuffer(mapped, "<f4", shard.rows * table.shape.width, layout.rows_at)
    by_id = None
    if layout.samples:
        by_id = SampledIndex(
            np.frombuffer(mapped, "<i8", shard.rows, layout.ids_at),
            np.frombuffer(mapped, "<i8", layout.samples, layout.index_at),
        )
    return _MappedShard(shard, rows.reshape(shard.rows, -1), by_id)


def _map(file: str, descriptor: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    except OSError as error:
        raise ArtifactInvalid(
            f"{file} cannot be mapped: {error.strerror}; raise `ulimit -v` (bytes) or vm.max_map_count "
            "(number of mappings), or save with a greater shard_bytes",
            file=file,
        ) from error
