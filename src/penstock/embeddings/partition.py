"""A part of a table in files: the rows of some of its ids, for any number of processes.

Contract
--------
* Three files.  `.ids` has the ids in the order in which they came; `.rows` has a record for each, its row and its
  optimizer's state side by side; `.head` has a header, and behind it what the last update has changed, as it was.
* Readers and writers hold `.head`.
* A header is written by one call of the system, within one page: a process that is killed has written it or not.
* An update first copies the records that it will change behind the header, and marks that in the header.  It writes
  the records, and ids and records of new rows behind the last one.  Then one header has the new count and no mark.
* A process that finds the mark puts the records back first.  It may die in that: the next one does so again.
* Files grow by `posix_fallocate` before they are mapped, so a full disk is an error and never a signal.
* Which id lies where is an index in the memory of each process.  It follows from the ids up to the count, which only
  grows.

Nothing is written to the disk at once: a power cut can leave anything.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.embeddings.held_file import BEHIND_PID, held_file
from penstock.embeddings.id_index import LEAST, entries_for, find, insert
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.training_store import TableSpec
from penstock.errors import EmbeddingError
from penstock.hosting.fault_points import hit

Change = Callable[[Rows, Rows], None]
"""Changes rows and their state in place."""

_MAGIC: Final = b"penrows1"
_HEADER: Final = "<8sqqqq"
_UNDO_AT: Final = 4096
_FIRST_CAPACITY: Final = 64
_LARGEST_GROWTH: Final = 65536
"""Records beyond which a file grows by a quarter of itself, and not by all of it."""
_MOST: Final = 2**31 - 1
"""Rows that an index of 32 bits can tell apart."""


class _Header(NamedTuple):
    width: int
    """Numbers of a record."""
    rows: int
    """Rows that are there."""
    capacity: int
    """Records that the files have room for."""
    undo: int
    """Records that an update is changing; 0: there is no such update."""


@dataclass
class _Mapped:
    """The files in memory, as far as they have been looked at."""

    ids: Ids
    records: Rows


class Partition:
    """The files `PREFIX.head`, `PREFIX.ids` and `PREFIX.rows`, which `make_partition` has made."""

    def __init__(self, prefix: str, spec: TableSpec) -> None:
        self.prefix = prefix
        self._spec = spec
        self._width = _record_width(spec)
        self._mapped = _Mapped(np.empty(0, np.int64), np.empty((0, self._width), np.float32))
        self._index: NDArray[np.int32] = np.zeros(LEAST, np.int32)
        self._known = 0

    # All that a process has in memory of the files is changed by who holds them.

    def check(self) -> None:
        """Look at the files, and put back what a killed process has left half done.

        Raises:
            EmbeddingError: they are cut, or none of ours.
        """
        with self._held():
            pass

    def count(self) -> int:
        """How many rows are there."""
        with self._held() as (_, header):
            return header.rows

    def ids(self) -> Ids:
        """The ids of all rows that are there, in the order in which they came."""
        with self._held() as (_, header):
            return self._mapped.ids[: header.rows].copy()

    def fetch(self, ids: Ids) -> tuple[NDArray[np.bool_], Rows]:
        """Whether each id has a row, and the rows of those that have one."""
        with self._held():
            places = find(self._index, self._mapped.ids, ids)
            found = places >= 0
            return found, self._mapped.records[:, : self._spec.width][places[found]]

    def make_room(self, ids: Ids) -> None:
        """Have room for an update of these distinct ids, so that a full disk fails it before anything is changed."""
        undo = _UNDO_AT + len(ids) * (8 + 4 * self._width)
        with _opened(self._head, os.O_RDONLY) as file:
            header, size = _read_header(file, self._head), os.fstat(file).st_size
        if size >= undo and header.rows + len(ids) <= header.capacity:
            return
        with self._held() as (head, header):
            os.posix_fallocate(head, 0, undo)
            try:
                self._grow(head, header, header.rows + len(ids))
            except OSError:  # it may be enough for those that are new
                new = np.count_nonzero(find(self._index, self._mapped.ids, ids) < 0)
                self._grow(head, header, header.rows + int(new))

    def change(self, ids: Ids, change: Change) -> None:
        """Change the rows of distinct ids, and their state; those that are not there begin with the table's rule.

        Raises:
            OSError: the disk is full; nothing is changed.
        """
        with self._held() as (head, before):
            places = find(self._index, self._mapped.ids, ids)
            old = places >= 0
            added = len(ids) - int(np.count_nonzero(old))
            count = before.rows + added
            header = self._grow(head, before, count)
            mapped = self._mapped
            records = kept = mapped.records[places if not added else places[old]]
            if len(kept):
                _write(head, places[old], kept)
                hit("rows_noted")
            if added:
                places[~old] = np.arange(header.rows, count)
                records = self._with_new(ids, old, kept)
            change(records[:, : self._spec.width], records[:, self._spec.width :])
            if len(kept):
                _write_header(head, header._replace(undo=len(kept)))
                hit("rows_marked")
            half = len(ids) // 2
            mapped.records[places[:half]] = records[:half]
            hit("rows_half_written")
            mapped.records[places[half:]] = records[half:]
            if added:
                mapped.ids[header.rows : count] = ids[~old]
            hit("rows_written")
            _write_header(head, header._replace(rows=count, undo=0))
            hit("rows_unmarked")

    def copy_to(self, prefix: str) -> None:
        """Copy what is there to new files.  The caller sees to it that nobody changes anything meanwhile."""
        with self._held() as (_, header):
            pass
        capacity = max(header.rows, _FIRST_CAPACITY)
        make_partition(prefix, self._spec, capacity)
        for end, width in ((".ids", 8), (".rows", 4 * self._width)):
            _copy(self.prefix + end, prefix + end, header.rows * width)
        with held_file(prefix + ".head") as head:
            _write_header(head, header._replace(capacity=capacity))

    @property
    def _head(self) -> str:
        return self.prefix + ".head"

    @contextlib.contextmanager
    def _held(self) -> Iterator[tuple[int, _Header]]:
        with held_file(self._head) as head:
            header = _read_header(head, self._head)
            if header.width != self._width:
                raise EmbeddingError(f"{self._head} is of records of {header.width} numbers, not {self._width}")
            self._map(header.capacity)
            if header.undo:
                header = self._undo(head, header)
            self._catch_up(header.rows)
            yield head, header

    def _map(self, capacity: int) -> None:
        known = len(self._mapped.ids)
        if capacity > known:
            records = _mapped(self.prefix + ".rows", known, capacity, 4 * self._width)
            ids = _mapped(self.prefix + ".ids", known, capacity, 8)
            self._mapped = _Mapped(
                np.frombuffer(ids, np.int64, capacity),
                np.frombuffer(records, np.float32, capacity * self._width).reshape(capacity, self._width),
            )

    def _undo(self, head: int, header: _Header) -> _Header:
        behind = _UNDO_AT + 8 * header.undo
        places = np.frombuffer(_read_bytes(self._head, head, 8 * header.undo, _UNDO_AT), np.int64)
        kept = np.frombuffer(_read_bytes(self._head, head, 4 * header.undo * self._width, behind), np.float32)
        self._mapped.records[places] = kept.reshape(header.undo, self._width)
        hit("rows_put_back")
        header = header._replace(undo=0)
        _write_header(head, header)
        return header

    def _catch_up(self, count: int) -> None:
        """Take the ids into the index that were added since the last time."""
        if count == self._known:
            return
        start, self._known = self._known, 0  # an index that is left in the middle is made anew
        index = self._index
        if start == 0 or entries_for(count) > len(index):
            start, index = 0, np.zeros(entries_for(count), np.int32)
        insert(index, self._mapped.ids[start:count], np.arange(start, count))
        self._index, self._known = index, count

    def _grow(self, head: int, header: _Header, count: int) -> _Header:
        """Make room for so many rows, and more where the disk has it."""
        if count <= header.capacity:
            return header
        if count > _MOST:
            raise EmbeddingError(f"{self.prefix} has {header.rows} rows, and cannot have more than {_MOST}")
        more = header.capacity + min(header.capacity, max(header.capacity // 4, _LARGEST_GROWTH))
        for capacity in (max(count, more), count):
            try:
                self._lengthen(header.capacity, capacity)
            except OSError:
                if capacity == count:
                    raise
                continue
            break
        hit("rows_grown")
        header = header._replace(capacity=capacity)
        _write_header(head, header)
        self._map(capacity)
        return header

    def _lengthen(self, old: int, capacity: int) -> None:
        sizes = ((self.prefix + ".rows", 4 * self._width), (self.prefix + ".ids", 8))
        try:
            for path, width in sizes:
                with _opened(path, os.O_RDWR) as file:
                    os.posix_fallocate(file, old * width, (capacity - old) * width)
                hit("rows_growing")
        except OSError:
            for path, width in sizes:  # or they would keep all that was left of the disk
                os.truncate(path, old * width)
            raise

    def _with_new(self, ids: Ids, old: NDArray[np.bool_], kept: Rows) -> Rows:
        records = np.empty((len(ids), self._width), np.float32)
        records[old] = kept
        new, width = ids[~old], self._spec.width
        records[~old, :width] = self._spec.missing.rows(new, width, self._spec.name)
        records[~old, width:] = self._spec.optimizer.first_state(len(new), width)
        return records


def make_partition(prefix: str, spec: TableSpec, capacity: int = _FIRST_CAPACITY) -> None:
    """Make the files of a partition without rows.  OSError where they are there, or the disk is full."""
    width = _record_width(spec)
    header = struct.pack(_HEADER, _MAGIC, *_Header(width=width, rows=0, capacity=capacity, undo=0))
    for end, size in ((".rows", 4 * width * capacity), (".ids", 8 * capacity), (".head", _UNDO_AT)):
        with _opened(prefix + end, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
            os.posix_fallocate(file, 0, size)
            if end == ".head":
                os.pwrite(file, header, BEHIND_PID)


def _record_width(spec: TableSpec) -> int:
    return spec.width + spec.optimizer.state_width(spec.width)


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _read_header(head: int, path: str) -> _Header:
    said = os.pread(head, struct.calcsize(_HEADER), BEHIND_PID)
    if len(said) < struct.calcsize(_HEADER) or not said.startswith(_MAGIC):
        raise EmbeddingError(f"{path} is cut, or no file of a store of rows: use a copy that `save` has made")
    header = _Header(*struct.unpack(_HEADER, said)[1:])
    if not (0 <= header.rows <= header.capacity and header.undo >= 0):
        raise EmbeddingError(f"{path} is damaged: use a copy that `save` has made")
    return header


def _write_header(head: int, header: _Header) -> None:
    os.pwrite(head, struct.pack(_HEADER, _MAGIC, *header), BEHIND_PID)


def _write(head: int, places: Ids, kept: Rows) -> None:
    """Write places and records behind the header, or raise OSError."""
    at = _UNDO_AT
    for array in (places, kept):
        left = array.reshape(-1).view(np.uint8).data
        while left:
            written = os.pwrite(head, left, at)
            at, left = at + written, left[written:]


def _read_bytes(path: str, file: int, size: int, at: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.pread(file, size, at)
        if not part:
            raise EmbeddingError(f"{path} is cut: use a copy that `save` has made")
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)


def _mapped(path: str, known: int, capacity: int, width: int) -> Any:
    """Map a file of so many records, of which `known` were mapped before."""
    with _opened(path, os.O_RDWR) as file:
        size = os.fstat(file).st_size
        if size < capacity * width:
            raise EmbeddingError(
                f"{path} is cut: it has {size} of {capacity * width} bytes; use a copy that `save` has made"
            )
        # A copy of a file can have holes where the file had none.
        os.posix_fallocate(file, known * width, (capacity - known) * width)
        return mmap.mmap(file, capacity * width)


def _copy(old: str, new: str, size: int) -> None:
    with _opened(old, os.O_RDONLY) as source, _opened(new, os.O_WRONLY) as target:
        while size:
            sent = os.sendfile(target, source, None, min(size, 2**30))
            if not sent:
                raise EmbeddingError(f"{old} is cut while it is copied")
            size -= sent
