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
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.embeddings.held_file import BEHIND_PID, held_file
from penstock.embeddings.id_index import MOST, Entries, Places
from penstock.embeddings.row_table import Change, Records, record_width
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.training_store import Fetched, TableSpec
from penstock.errors import EmbeddingError, RowsUnavailable
from penstock.hosting.fault_points import hit

_MAGIC: Final = b"penrows1"
_HEADER: Final = "<8sqqqq"
_UNDO_AT: Final = 4096
_FIRST_CAPACITY: Final = 64
_LARGEST_GROWTH: Final = 65536
"""Records beyond which a file grows by a quarter of itself, and not by all of it."""


class _Header(NamedTuple):
    width: int
    """Numbers of a record."""
    rows: int
    """Rows that are there."""
    capacity: int
    """Records that the files have room for."""
    undo: int
    """Records that an update is changing; 0: there is no such update."""


class Partition:
    """The files `PREFIX.head`, `PREFIX.ids` and `PREFIX.rows`, which `make_partition` has made."""

    def __init__(self, prefix: str, spec: TableSpec, direct: Entries | None) -> None:
        self.prefix = prefix
        self._spec = spec
        self._width = record_width(spec)
        self._records = Records(spec, direct)
        self._file: tuple[int, int] | None = None

    # All that a process has in memory of the files is changed by who holds them.

    def check(self) -> None:
        """Look at the files, and put back what a killed process has left half done.

        Raises:
            EmbeddingError: they are cut or damaged, or none of ours.
        """
        with self._held() as (_, header):
            try:
                self._spec.check_ids(self._records.ids[: header.rows])
            except IndexError as error:
                raise EmbeddingError(
                    f"{self.prefix}.ids is damaged ({error}): use a copy that `save` has made"
                ) from error

    def count(self) -> int:
        """As `Part.count`."""
        with self._held() as (_, header):
            return header.rows

    def known_ids(self) -> Ids:
        """As `Part.known_ids`."""
        with self._held() as (_, header):
            return self._records.ids[: header.rows].copy()

    def fetch(self, ids: Ids) -> Fetched:
        """As `Part.fetch`."""
        with self._held() as (_, header):
            return self._records.rows(ids, header.rows)

    def make_room(self, ids: Ids) -> None:
        """As `Part.make_room`: a full disk is met here."""
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
                new = np.count_nonzero(self._records.find(ids, header.rows) < 0)
                self._grow(head, header, header.rows + int(new))

    def change(self, ids: Ids, change: Change, *, whole: bool) -> None:
        """As `Part.change`.

        Raises:
            OSError: the disk is full; nothing is changed.
        """
        with self._held() as (head, before):
            places = self._records.find(ids, before.rows)
            old = places >= 0
            count = before.rows + int(np.count_nonzero(~old))
            header = self._grow(head, before, count)
            records = self._records.begin(ids, places, whole=whole)
            kept = places[old]
            if len(kept):
                _write(head, kept, records if len(kept) == len(ids) else records[old])
                hit("rows_noted")
            change(records)
            if len(kept):
                _write_header(head, header._replace(undo=len(kept)))
                hit("rows_marked")
            places[~old] = np.arange(header.rows, count)
            half = len(ids) // 2
            self._records.write(places[:half], records[:half])
            hit("rows_half_written")
            self._records.write(places[half:], records[half:])
            self._records.ids[header.rows : count] = ids[~old]
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
                raise EmbeddingError(f"{self._head} has records of {header.width} numbers, not {self._width}")
            self._check_not_replaced()
            self._map(header.capacity)
            if header.undo:
                header = self._undo(head, header)
            yield head, header

    def _check_not_replaced(self) -> None:
        # The file that is mapped keeps its number, so no other has it.
        found = os.stat(self.prefix + ".rows")  # noqa: PTH116  # a Path takes as long again
        file = (found.st_dev, found.st_ino)
        if self._file not in {None, file}:
            raise RowsUnavailable(f"{self.prefix}.rows was replaced since this process opened it: open the store again")
        self._file = file

    def _map(self, capacity: int) -> None:
        known = len(self._records.ids)
        if capacity > known:
            records = _mapped(self.prefix + ".rows", known, capacity, 4 * self._width)
            ids = _mapped(self.prefix + ".ids", known, capacity, 8)
            self._records.place(np.frombuffer(ids, np.int64), np.frombuffer(records, np.float32))

    def _undo(self, head: int, header: _Header) -> _Header:
        behind = _UNDO_AT + 8 * header.undo
        places = np.frombuffer(_read_bytes(self._head, head, 8 * header.undo, _UNDO_AT), np.int64)
        kept = np.frombuffer(_read_bytes(self._head, head, 4 * header.undo * self._width, behind), np.float32)
        if not ((places >= 0) & (places < header.rows)).all():
            raise EmbeddingError(f"{self._head} is damaged: use a copy that `save` has made")
        self._records.write(places, kept.reshape(header.undo, self._width))
        hit("rows_put_back")
        header = header._replace(undo=0)
        _write_header(head, header)
        return header

    def _grow(self, head: int, header: _Header, count: int) -> _Header:
        """Make room for so many rows, and more where the disk has it."""
        if count <= header.capacity:
            return header
        if count > MOST:
            raise EmbeddingError(f"{self.prefix} has {header.rows} rows, but the maximum is {MOST}")
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


def make_partition(prefix: str, spec: TableSpec, capacity: int = _FIRST_CAPACITY) -> None:
    """Make the files of a partition without rows.  OSError where they are there, or the disk is full."""
    width = record_width(spec)
    header = struct.pack(_HEADER, _MAGIC, *_Header(width=width, rows=0, capacity=capacity, undo=0))
    for end, size in ((".rows", 4 * width * capacity), (".ids", 8 * capacity), (".head", _UNDO_AT)):
        with _opened(prefix + end, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
            os.posix_fallocate(file, 0, size)
            if end == ".head":
                os.pwrite(file, header, BEHIND_PID)


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
        raise EmbeddingError(f"{path} is truncated, or not a file of a store of rows: use a copy that `save` has made")
    header = _Header(*struct.unpack(_HEADER, said)[1:])
    if not 0 <= header.undo <= header.rows <= header.capacity:
        raise EmbeddingError(f"{path} is damaged: use a copy that `save` has made")
    return header


def _write_header(head: int, header: _Header) -> None:
    os.pwrite(head, struct.pack(_HEADER, _MAGIC, *header), BEHIND_PID)


def _write(head: int, places: Places, kept: Rows) -> None:
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
            raise EmbeddingError(f"{path} is truncated: use a copy that `save` has made")
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)


def _mapped(path: str, known: int, capacity: int, width: int) -> Any:
    """Map a file of so many records, of which `known` were mapped before."""
    with _opened(path, os.O_RDWR) as file:
        size = os.fstat(file).st_size
        if size < capacity * width:
            raise EmbeddingError(
                f"{path} is truncated: it has {size} of {capacity * width} bytes; use a copy that `save` has made"
            )
        # A copy of a file can have holes where the file had none.
        os.posix_fallocate(file, known * width, (capacity - known) * width)
        return mmap.mmap(file, capacity * width)


def _copy(old: str, new: str, size: int) -> None:
    with _opened(old, os.O_RDONLY) as source, _opened(new, os.O_WRONLY) as target:
        while size:
            sent = os.sendfile(target, source, None, min(size, 2**30))
            if not sent:
                raise EmbeddingError(f"{old} was truncated while it was copied")
            size -= sent
