"""A training store in the files of a folder, for any number of processes and threads of one host: `shared:DIR`.

Contract
--------
* There is no daemon: each process maps the files, and mends first what one that died has left.
* The folder has `store.json`, with the version of its format, and a folder for each table, which is there whole or
  not at all. Only the user who made it has rights to its files.
* A table has a few partitions, by a mix of the id; how many stands in its `table.json`.  Each is locked by itself.
* An update takes the number of its step under `step`, and holds `updates` shared until it is done.  `save` holds
  `step`, so that no further one begins, and waits for `updates`.
* A process that dies in an update may leave its rows changed in some partitions and not in others, and never half a
  row.  Its number of a step stays taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.embeddings.held_file import BEHIND_PID, held_file
from penstock.embeddings.id_index import direct_entries
from penstock.embeddings.partition import Partition, make_partition
from penstock.embeddings.row_table import RowTable, StoreOfTables
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.training_store import TableSpec
from penstock.errors import ConfigError, EmbeddingError, RowsUnavailable
from penstock.hosting.held_folder import held_folder
from penstock.hosting.mounts import MOUNTINFO, file_system, is_shared
from penstock.hosting.synced_files import sync_folder, sync_tree

FORMAT: Final = 1
PARTITIONS: Final = 4
"""Partitions of a new table."""
_MOST_PARTITIONS: Final = 256
_LOCK: Final = ".lock"
_STORE: Final = "store.json"
_TABLE: Final = "table.json"
_FOLDER: Final = "table-"
_DRAFT: Final = ".draft-"
_STAGE: Final = ".rows-"


class _StoreFile(msgspec.Struct, frozen=True):
    """`store.json`: of a newer format only this much has to be understood."""

    format: int


class _TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`table.json`."""

    partitions: int
    spec: TableSpec


class SharedTrainingStore(StoreOfTables):
    """Tables in the files of a folder."""

    def __init__(self, folder: Path, *, mountinfo: Path = MOUNTINFO) -> None:
        """Open the store in `folder`; it is made where it is not there.

        Raises:
            ConfigError: it is no folder, has other files in it, lies on a network file system, or is of another format.
            EmbeddingError: a file in it is cut or damaged.
            RowsUnavailable: the disk is full or fails, or a process that is stopped holds a part of it.
        """
        self.folder = _checked_folder(folder, mountinfo)
        self._tables: dict[str, _Table] = {}
        with _told(str(self.folder)):
            _make_store(self.folder)
            for table in self._found().values():
                table.check()

    def create(self, spec: TableSpec) -> None:
        """As `TrainingStore.create`."""
        with _told(f"table {spec.name!r}"), held_file(str(self.folder / _LOCK)):
            there = self._look_up(spec.name)
            if there is not None:
                spec.check_same(there.spec)
                return
            for left in self.folder.glob(f"{_DRAFT}*"):
                shutil.rmtree(left)
            draft = self.folder / f"{_DRAFT}{secrets.token_hex(8)}"
            try:
                _make_table(draft, _TableFile(PARTITIONS, spec))
                draft.rename(self.folder / _folder_of(spec.name))
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def tables(self) -> dict[str, TableSpec]:
        """As `TrainingStore.tables`."""
        with _told(str(self.folder)):
            return {name: table.spec for name, table in self._found().items()}

    @contextlib.contextmanager
    def using(self, table: str) -> Iterator[RowTable]:
        """As `StoreOfTables.using`."""
        with _told(f"table {table!r}"):
            yield self._table(table)

    @contextlib.contextmanager
    def filling(self, table: str) -> Iterator[bool]:
        """As `TrainingStore.filling`."""
        path = self._table(table).path("filling")
        with contextlib.ExitStack() as at_end:
            with _told(f"table {table!r}"):
                file = at_end.enter_context(held_file(path, wait=math.inf))
                filled = bool(os.pread(file, 1, BEHIND_PID))
            yield not filled
            with _told(f"table {table!r}"):
                os.pwrite(file, b"1", BEHIND_PID)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As `TrainingStore.save`.  Updates wait for as long as it copies; they are read meanwhile."""
        if self.folder in Path(path).resolve().parents:
            raise ConfigError(
                f"{path} is inside of the store itself, {self.folder}: save the rows to a path outside of it"
            )
        with whole_folder(path) as made:
            tables = self._found()
            with contextlib.ExitStack() as held:
                for _, table in sorted(tables.items()):
                    held.enter_context(table.without_updates())
                _make_store(made)
                for name, table in tables.items():
                    table.copy_to(made / _folder_of(name))

    def put_records(self, table: str, ids: Ids, records: Rows) -> None:
        """Put records of distinct ids, into a store that nobody else has."""
        with self.using(table) as of:
            of.put(ids, records)

    def put_counters(self, table: str, step: int, *, filled: bool) -> None:
        """Put the number of steps so far, and whether the table was filled."""
        self._table(table).put_counters(step, filled=filled)

    def close(self) -> None:
        """As `TrainingStore.close`."""
        self._tables.clear()

    def _table(self, name: str) -> _Table:
        table = self._look_up(name)
        if table is None:
            raise KeyError(f"there is no table {name!r} in {self.folder}")
        return table

    def _look_up(self, name: str) -> _Table | None:
        table = self._tables.get(name)
        if table is None and (self.folder / _folder_of(name)).is_dir():
            table = self._tables.setdefault(name, _Table(self.folder / _folder_of(name)))
        return table

    def _found(self) -> dict[str, _Table]:
        """All tables; another process may have made some."""
        known = {table.folder.name for table in list(self._tables.values())}
        for folder in self.folder.glob(f"{_FOLDER}*"):
            if folder.name not in known:
                table = _Table(folder)
                self._tables.setdefault(table.spec.name, table)
        return dict(self._tables)


class _Table(RowTable):
    """A table, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = _read_table(folder / _TABLE)
        if folder.name != _folder_of(found.spec.name):
            raise EmbeddingError(f"{folder} is the directory of another table than {found.spec.name!r}")
        direct = direct_entries(found.spec.size)
        self.partitions = [Partition(self.path(str(n)), found.spec, direct) for n in range(found.partitions)]
        super().__init__(found.spec, self.partitions)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def check(self) -> None:
        with held_file(self.path("step")) as file:
            self._read_step(file)
        for each in self.partitions:
            each.check()

    def put_counters(self, step: int, *, filled: bool) -> None:
        with held_file(self.path("step")) as file:
            _write_step(file, step)
        if filled:
            with held_file(self.path("filling")) as file:
                os.pwrite(file, b"1", BEHIND_PID)

    @contextlib.contextmanager
    def without_updates(self) -> Iterator[None]:
        """Hold off updates that have not begun, and wait for those that have."""
        with held_file(self.path("step")), held_file(self.path("updates")):
            yield

    def copy_to(self, folder: Path) -> None:
        """Copy the table to a new folder, without updates."""
        folder.mkdir(mode=0o700)
        for name in (_TABLE, "step", "updates", "filling"):
            _write_new(folder / name, Path(self.path(name)).read_bytes())
        for number, each in enumerate(self.partitions):
            each.copy_to(str(folder / str(number)))

    @contextlib.contextmanager
    def updating(self, steps: int) -> Iterator[int]:
        with contextlib.ExitStack() as at_end:
            with held_file(self.path("step")) as file:
                step = self._read_step(file) + steps
                _write_step(file, step)
                at_end.enter_context(held_file(self.path("updates"), shared=True))
            yield step

    def _read_step(self, file: int) -> int:
        said = os.pread(file, 8, BEHIND_PID)
        if len(said) < 8:
            raise EmbeddingError(f"{self.path('step')} is truncated: use a copy that `save` has made")
        return int(struct.unpack("<q", said)[0])


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into, which is renamed to `path` at the end, on the disk; it is removed after an error.

    Raises:
        ConfigError: there is something at `path`, or no folder to make it in.
        RowsUnavailable: the disk is full or fails.
    """
    path = Path(path).absolute()
    if not path.parent.is_dir():
        raise ConfigError(f"cannot save the rows to {path}: {path.parent} is not a directory")
    _check_absent(path)
    with _told(f"{path} was not saved"), held_folder(path.parent, _STAGE) as stage:
        made = stage / "rows"
        made.mkdir(mode=0o700)
        yield made
        sync_tree(made)
        _check_absent(path)
        made.rename(path)
        sync_folder(path.parent)


def _check_absent(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path} exists already: save the rows to a new path")


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Raise what the system refuses as an error of the rows."""
    try:
        yield
    except OSError as error:
        raise RowsUnavailable(f"{what}: {error}") from error


def _checked_folder(folder: Path, mountinfo: Path) -> Path:
    try:
        folder = folder.resolve()
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is not a directory: use a directory of its own for the rows")
        kind = file_system(str(folder), mountinfo.read_text(errors="surrogateescape")) if mountinfo.exists() else ""
        if is_shared(kind):
            raise ConfigError(
                f"{folder} is on a network file system ({kind}), where locks and shared memory do not work: "
                "put the rows on a disk of this host"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = [path.name for path in folder.iterdir() if path.name != _LOCK and not path.name.startswith(_STORE)]
        if others and not (folder / _STORE).exists():
            raise ConfigError(
                f"{folder} has other files in it, such as {others[0]}: use a directory of its own for the rows"
            )
    except OSError as error:
        raise ConfigError(f"{folder} cannot be opened as a store of rows: {error.strerror}") from error
    return folder


def _make_store(folder: Path) -> None:
    """Make `store.json` where there is none; ConfigError where it is of another format."""
    path = folder / _STORE
    with held_file(str(folder / _LOCK), make=True):
        if not path.exists():
            draft = path.with_name(f"{_STORE}-draft")
            draft.unlink(missing_ok=True)
            _write_new(draft, msgspec.json.encode(_StoreFile(FORMAT)))
            draft.rename(path)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_StoreFile).format
        except msgspec.MsgspecError as error:
            raise EmbeddingError(f"{path} is damaged ({error}): use a copy that `save` has made") from error
    if found != FORMAT:
        raise ConfigError(
            f"{folder} is a store of rows of format {found}, but this version of Penstock requires "
            f"{FORMAT}: use the version that wrote it, or another directory"
        )


def _make_table(folder: Path, table: _TableFile) -> None:
    folder.mkdir(mode=0o700)
    for number in range(table.partitions):
        make_partition(str(folder / str(number)), table.spec)
    for name in ("step", "updates", "filling"):
        _write_new(folder / name, b"")
    with held_file(str(folder / "step")) as file:
        _write_step(file, 0)
    _write_new(folder / _TABLE, msgspec.json.format(msgspec.json.encode(table)))


def _read_table(path: Path) -> _TableFile:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_TableFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
        raise EmbeddingError(f"{path} is damaged ({error}): use a copy that `save` has made") from error
    if not 1 <= found.partitions <= _MOST_PARTITIONS:
        raise EmbeddingError(f"{path} is damaged: it has {found.partitions} partitions")
    return found


def _write_new(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(file, "wb") as opened:  # noqa: PTH123  # a descriptor
        opened.write(content)


def _write_step(file: int, step: int) -> None:
    os.pwrite(file, struct.pack("<q", step), BEHIND_PID)


def _folder_of(name: str) -> str:
    """A folder's name for every name of a table, which may have a slash in it."""
    return _FOLDER + hashlib.sha256(name.encode()).hexdigest()[:32]
