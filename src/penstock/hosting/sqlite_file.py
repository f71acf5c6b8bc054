"""Open an SQLite file of one kind, or say why it cannot be one.

Contract
--------
* What is opened is a file of that kind with the newest schema, in a folder of this host, and is not damaged as far as a
  look of `CHECK_SECONDS` tells.  Anything else is refused with a sentence, and not changed.
* Who makes the file has it for himself: it is 0600, and so is what SQLite puts beside it.
* A fork of this process neither uses the connections of its parent nor closes them, and does not open the file again.
  It opens other files: a fork waits, for at most `FORK_SECONDS`, while another thread opens one, or is inside a
  `fork_guard`.
* A signal that comes while a file is opened is raised as ever, at most `CHECK_SECONDS` later.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import sqlite3
import stat
import threading
import time
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError, PenstockError
from penstock.hosting.file_kind import FileKind
from penstock.hosting.mounts import MOUNTINFO, file_system, is_shared

BUSY_SECONDS: Final = 5.0
"""For how long somebody waits while other processes keep the file locked."""
CHECK_SECONDS: Final = 1.0
"""For how long a file is examined when it is opened."""
LOG_BYTES: Final = 16 * 1024 * 1024
"""To what the log beside the file is cut back after it was larger."""

FORK_SECONDS: Final = 10.0
"""For how long a fork waits for another thread; that takes longer only where a disk hangs."""

_opening = threading.RLock()
"""Two threads never make one file: who closes a plain descriptor drops the locks that SQLite has on the same file.

A fork takes it too.  SQLite has locks of its own in memory; one that another thread had at the fork would never be let
go in the child, and to examine a large file takes and gives them for a second.
"""
_held_by_fork = False

_open_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()
"""Those that may have connections; in a fork, those of its parent too."""

OUR_FAULTS: Final = frozenset(("SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISUSE", "SQLITE_MISMATCH", "SQLITE_RANGE"))
"""The codes of wrong statements: no state of the file or the disk explains them."""
REASONS: Final = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "the disk failed to read or write, or is full",
    "SQLITE_BUSY": f"other processes held its lock for {BUSY_SECONDS:g} s",
    "SQLITE_CORRUPT": "the file is damaged",
    "SQLITE_NOTADB": "the file is damaged",
}


def fork_guard() -> AbstractContextManager[Any]:
    """No other thread forks inside: for who uses a connection in a thread of its own, beside code that may fork.

    It keeps out who opens a file, too, and others in a guard.
    """
    return _opening


def code_of(error: sqlite3.Error) -> str:
    """The primary result code of SQLite, as ``SQLITE_FULL``, or "" where the error is not SQLite's own."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk has no room; what was to be written was not."""
    return getattr(error, "sqlite_errorname", "") in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")


def begin_writing(connection: sqlite3.Connection) -> None:
    """Begin a transaction that writes, once nobody else does; for at most `BUSY_SECONDS`.

    SQLite itself would ask ever more seldom, up to ten times a second: set ``busy_timeout`` to 0.
    """
    limit = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if code_of(error) != "SQLITE_BUSY" or time.monotonic() > limit:
                raise
            time.sleep(random.uniform(0.0005, 0.004))
        else:
            return


class _Connection(sqlite3.Connection):
    """One that weak references can refer to."""


class SqliteFile:
    """One file of the kind `kind`, which processes of this host share."""

    def __init__(self, path: str, kind: FileKind, *, synchronous: str = "FULL", mountinfo: Path = MOUNTINFO) -> None:
        self.path = str(Path(path).absolute())
        self._kind = kind
        self._synchronous = synchronous
        self._mountinfo = mountinfo
        self._identity: tuple[int, int] | None = None
        self._process = os.getpid()
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()

    def open_for_writing(self) -> sqlite3.Connection:
        """A connection to the file, which is made where there is none.

        Raises:
            ConfigError: it can be no file of this kind; the sentence says why, and what to do.
            PenstockError: it is locked, or the disk is full or fails; of the type that the kind names.
        """
        with _opening:
            if not _can_open_more():
                raise self._no_more_files()
            self._check_place()
            self._make()
            try:
                connection = self._connect("rw")
                try:
                    self._prepare(connection)
                except BaseException:
                    connection.close()
                    raise
            except sqlite3.Error as error:
                raise self._refusal(error) from error
            found = os.stat(self.path)  # noqa: PTH116  # asked before every transaction, see `check_there`
            self._identity = found.st_dev, found.st_ino
            return connection

    def open_for_reading(self) -> sqlite3.Connection:
        """A connection that cannot write, to a file that `open_for_writing` has opened."""
        try:
            connection = self._connect("rw")  # SQLite's own "ro" cannot restore a log that a dead process has left
            connection.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        return connection

    def check_there(self) -> None:
        """Raise what the kind names where the file that was opened is no longer the one at its path.

        SQLite goes on with a removed file, and nobody would ever see what is written there.
        """
        try:
            found = os.stat(self.path)  # noqa: PTH116  # Path.stat takes three times as long
        except OSError as error:
            raise self._kind.unavailable(f"{self.path} does not exist any more: {error.strerror}") from error
        if (found.st_dev, found.st_ino) != self._identity:
            what = "was replaced by another file while it was open"
            raise self._kind.unavailable(
                f"{self.path} {what}: open the {self._kind.what} again, or restart this process"
            )

    def unavailable(self, error: sqlite3.Error) -> PenstockError | None:
        """What a caller is told of an error while the file is open; None if only we can have caused it."""
        code = code_of(error)
        if not code or code in OUR_FAULTS:
            return None
        reason = REASONS["SQLITE_FULL"] if is_full(error) else REASONS.get(code, "SQLite failed")
        return self._kind.unavailable(f"{self.path}: {reason} ({error.sqlite_errorname}: {error})")

    def growth(self, connection: sqlite3.Connection) -> int:
        """How many bytes the file will grow by when what lies in its log is written to it."""
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        return max(0, int(pages * size) - os.stat(self.path).st_size)  # noqa: PTH116  # as in `check_there`

    @staticmethod
    def inside(connection: sqlite3.Connection) -> int:
        """How many bytes of the file are free: what was removed has left them, and they are used before it grows."""
        (pages,) = connection.execute("PRAGMA freelist_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    def extend_log(self, nbytes: int) -> None:
        """Have the log beside the file take room for so many bytes, before others do; harmless where that fails.

        SQLite writes over what lies behind its last frame, and reads nothing of it.
        """
        with contextlib.suppress(OSError):
            log = os.open(f"{self.path}-wal", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.posix_fallocate(log, 0, nbytes)
            finally:
                os.close(log)

    def leave(self) -> None:
        """Take note that the connections were closed."""
        _open_files.discard(self)

    def keep_for_ever(self) -> None:
        """Never close the connections: called in a fork.

        SQLite would take a closed copy for the last connection where the parent has none any more, and remove a log
        that others have written since.
        """
        for connection in self._connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    def file_system(self) -> str:
        """The type of the file system that it lies on, or "" where nobody tells."""
        return file_system(str(Path(self.path).parent), self._read_mounts())

    def _check_place(self) -> None:
        path, what = Path(self.path), self._kind.what
        try:
            if not path.parent.is_dir():
                raise ConfigError(
                    f"directory {path.parent} does not exist; make it, or use another file for the {what}"
                )
            if path.is_dir():
                raise ConfigError(f"{path} is a directory; name a file in it for the {what}, as {path / 'q.db'}")
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                raise ConfigError(f"{path} is not a regular file; use another one for the {what}")
            self.path = str(path.resolve())
        except OSError as error:
            raise ConfigError(f"cannot open {path} as a {what}: {error.strerror}") from error
        for other in _files():
            if other.path == self.path and other._process != os.getpid():
                raise ConfigError(
                    f"{self.path} was open in process {other._process} when this process was forked, so "
                    f"SQLite cannot open it here; open the {what} only after the fork"
                )
        found = self.file_system()
        if is_shared(found):
            raise ConfigError(
                f"{self.path} is on a network file system ({found}), which does not support SQLite's "
                f"locks; {self._kind.elsewhere}"
            )

    def _read_mounts(self) -> str:
        try:
            return self._mountinfo.read_text(errors="surrogateescape")
        except FileNotFoundError:  # no Linux
            return ""

    def _make(self) -> None:
        path, log = Path(self.path), Path(f"{self.path}-wal")
        if (not path.exists() or path.stat().st_size == 0) and log.exists() and log.stat().st_size:
            raise ConfigError(
                f"{path} is missing or empty, but its log {log} exists; restore the file, or remove the "
                f"log: the {self._kind.contents} in it are lost then"
            )
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigError(f"cannot create {path}: {error.strerror}") from error

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=_Connection,
        )
        self._connections.add(connection)
        _open_files.add(self)
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._kind.is_newest(connection, self.path):
            _examine(connection, self.path)
            self._write_ahead(connection)
        else:
            Path(self.path).chmod(0o600)  # it may be an empty file that somebody made
            self._write_ahead(connection)
            connection.execute("BEGIN IMMEDIATE")
            self._kind.bring_forward(connection, self.path)
            connection.execute("COMMIT")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")

    def _refusal(self, error: sqlite3.Error) -> PenstockError:
        if code_of(error) in ("SQLITE_CORRUPT", "SQLITE_NOTADB"):
            return ConfigError(
                f"{self.path} is damaged or not an SQLite file ({error}); restore a backup, or use another file"
            )
        if code_of(error) == "SQLITE_CANTOPEN" and not _can_open_more():
            return self._no_more_files()
        if code_of(error) in ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH"):
            return ConfigError(
                f"cannot read and write {self.path} ({error}); this user needs both permissions for it "
                "and its directory"
            )
        return self.unavailable(error) or PenstockError(f"{self.path}: {error}")

    def _no_more_files(self) -> PenstockError:
        return self._kind.unavailable(f"{self.path}: this process has reached its limit of open files (ulimit -n)")

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Have the file use a log.  SQLite does not wait by itself where somebody else has the file in use."""
        limit = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if code_of(error) != "SQLITE_BUSY" or time.monotonic() > limit:
                    raise
                time.sleep(0.01)
            else:
                if mode != "wal":
                    raise self._kind.unavailable(f"SQLite has no write-ahead log here: its journal mode is {mode!r}")
                return


def _examine(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a damaged file.  A large one is examined for `CHECK_SECONDS` only."""
    limit = time.monotonic() + CHECK_SECONDS
    # What is called here is C throughout.  In a function of Python the KeyboardInterrupt of a signal would be raised,
    # and SQLite takes whatever the handler raises for a yes: the Ctrl-C would be lost.
    too_late = map(limit.__lt__, iter(time.monotonic, None)).__next__
    connection.set_progress_handler(too_late, 10_000)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if code_of(error) != "SQLITE_INTERRUPT":
            raise
        return
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        raise ConfigError(f"{path} is damaged ({found}); restore a backup, or use another file")


def _can_open_more() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True


def _files() -> list[SqliteFile]:
    """Those in `_open_files`, while other threads may open and leave some."""
    while True:
        try:
            return list(_open_files)
        except RuntimeError:  # it was changed meanwhile
            continue


def _before_fork() -> None:
    global _held_by_fork  # noqa: PLW0603  # a hook is given nothing to keep
    _held_by_fork = _opening.acquire(timeout=FORK_SECONDS)


def _after_fork() -> None:
    if _held_by_fork:
        _opening.release()


def _begin_anew() -> None:
    """What a fork does first: the thread that may have had `_opening` is not there any more."""
    global _opening  # noqa: PLW0603
    _opening = threading.RLock()
    for file in _files():
        file.keep_for_ever()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_anew)
