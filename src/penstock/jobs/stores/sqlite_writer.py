"""Write to a queue's file from one thread: what waits together is committed together.

Contract
--------
* A unit of work is a function of the connection.  Its caller waits, and gets what it returned once that is durable, or
  what it raised, and then nothing of it is done.
* A unit that raises does not fail the others of its transaction.  Where the disk fails a transaction, each of its units
  is tried once more by itself: a large one does not fail the small ones.  So a unit may run twice, and must have no
  effect but on the connection.
* Where the disk is full, a unit that is no newcomer is tried once more after `room` has made some.
* After a transaction the file will grow by at most `LOG_GROWTH` when its log is written to it, and by nothing where the
  disk is nearly full: its room is taken while there is some, and that of the log can be used again.
* Nobody waits for ever: for `BUSY_SECONDS` until the file is free, for `ANSWER_SECONDS` in all.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from penstock.config import MIB
from penstock.errors import StoreUnavailable
from penstock.hosting.disk_room import DiskRoom
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.sqlite_file import SqliteFile, begin_writing, is_full
from penstock.jobs.store import StoreFull

log = guarded_logger("penstock.jobs")

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

ANSWER_SECONDS: Final = 15.0
"""How long a caller waits for its unit."""
LOG_GROWTH: Final = MIB
"""Half of the spare file: when that is given up, the log can be written to the file, and there is room beside it."""
_TAKE_PAGES: Final = f"CREATE TABLE IF NOT EXISTS spare_pages AS SELECT zeroblob({LOG_GROWTH // 2}) AS bytes"
_FREE_PAGES: Final = "DROP TABLE spare_pages"
MOST_UNITS: Final = 256
"""The most units in one transaction."""


class _Unit:
    """A function that waits for its turn."""

    __slots__ = ("_done", "error", "given_up", "result", "takes", "work")

    def __init__(self, work: Work[Any], *, takes: bool = False) -> None:
        self.work = work
        self.takes = takes
        """Whether it only brings something in, and so is refused where there is no room."""
        self.result: Any = None
        self.error: Exception | None = None
        self.given_up = False
        self._done = threading.Lock()
        self._done.acquire()

    def settle(self) -> None:
        self._done.release()

    def wait(self) -> bool:
        return self._done.acquire(timeout=ANSWER_SECONDS)


class SqliteWriter:
    """The one thread of a store that writes."""

    def __init__(self, file: SqliteFile, room: DiskRoom) -> None:
        self._file = file
        self._room = room
        self.transactions = 0
        """How many were begun: what is counted for one of them is of no other."""
        self._connection = self._open()
        self._connection.execute("PRAGMA busy_timeout = 0")  # `begin_writing` waits, and asks more often
        self._units: SimpleQueue[_Unit | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="penstock-sqlite-writer", daemon=True)
        self._thread.start()

    def run(self, work: Work[T], *, takes: bool = False) -> T:
        """What `work` returns, once it is durable.  `takes`: whether it only brings something in.

        Raises:
            StoreFull: the disk is full.
            StoreUnavailable: the file is locked, the disk fails, or the writer has ended.
        """
        unit = _Unit(work, takes=takes)
        with self._closing:
            if self._closed:
                raise StoreUnavailable(f"{self._file.path}: the store is closed")
            self._units.put(unit)
        if not unit.wait():
            unit.given_up = True  # if it has not begun, it never does
            raise StoreUnavailable(f"{self._file.path}: no write finished within {ANSWER_SECONDS:g} s")
        error, unit.error = unit.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it leads to this frame: only the cycle collector would free both, and the job's input
        result: T = unit.result
        return result

    def close(self) -> None:
        """Do what waits already, close the connection, and end the thread."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._units.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(ANSWER_SECONDS)

    def _run(self) -> None:
        while not self._ending:
            units = [unit for unit in self._waiting() if not unit.given_up]
            if units:
                self._write(units)
                for unit in units:
                    unit.settle()
                del unit, units  # nothing of a unit is kept while the next one is awaited
        self._connection.close()

    def _waiting(self) -> list[_Unit]:
        """All units that wait, at least one; none only at the end."""
        units: list[_Unit] = []
        unit = self._units.get()
        try:
            while unit is not None:
                units.append(unit)
                if len(units) == MOST_UNITS:
                    return units
                unit = self._units.get_nowait()
        except Empty:
            return units
        self._ending = True
        return units

    def _write(self, units: list[_Unit], *, again: bool = False) -> None:
        """Give each of `units` its result or its error.  `again`: room was made for the one that there is."""
        try:
            self._file.check_there()
            begin_writing(self._connection)
            self.transactions += 1
        except (StoreUnavailable, sqlite3.Error) as error:
            for unit in units:
                unit.error = self._told(error)
            return
        try:
            for unit in units:
                self._do(unit, alone=len(units) == 1)
            self._connection.execute("COMMIT")
            with contextlib.suppress(sqlite3.Error, OSError):  # what was committed is; the next one tells
                growth = self._file.growth(self._connection)
                if growth > LOG_GROWTH or (growth and self._room.free() < self._room.reserve):
                    self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            self._roll_back()
            if len(units) == 1 and is_full(error) and not again and not units[0].takes:
                self._make_room()
                self._write(units, again=True)
            elif len(units) == 1:
                units[0].error = self._told(error)
            else:
                for unit in units:
                    unit.error = None
                    self._write([unit])

    def _do(self, unit: _Unit, *, alone: bool) -> None:
        """Run a unit so that it is done whole or not at all; errors of SQLite fail the transaction."""
        connection = self._connection
        if not alone:
            connection.execute("SAVEPOINT unit")
        try:
            unit.result = unit.work(connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  # it is raised where the unit came from
            unit.error = error
            connection.execute("ROLLBACK" if alone else "ROLLBACK TO unit")
            if alone:
                connection.execute("BEGIN")
        if not alone:
            connection.execute("RELEASE unit")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite has rolled back already after some errors
            with contextlib.suppress(sqlite3.Error):  # then the next BEGIN fails, and tells
                self._connection.execute("ROLLBACK")

    def _open(self) -> sqlite3.Connection:
        try:
            return self._file.open_for_writing()
        except StoreUnavailable:
            if not self._room.give_up_spare():  # what SQLite makes beside the file needs some room
                raise
            return self._file.open_for_writing()

    def _make_room(self) -> None:
        """Write the log to the file, so that its room can be used again; give up the spare file, if it is there.

        The log and the file take what that leaves, before others do: a table that was there for a moment leaves pages
        in the file, which SQLite uses before the file grows.
        """
        given_up = self._room.give_up_spare()
        steps = ("PRAGMA wal_checkpoint(PASSIVE)", _TAKE_PAGES, "PRAGMA wal_checkpoint(PASSIVE)", _FREE_PAGES)
        try:
            if given_up:
                log.warning("%s: the disk is full; released the reserve so that jobs can finish", self._file.path)
                self._file.extend_log(LOG_GROWTH)
            if self._file.growth(self._connection) <= self._room.free():
                for step in steps if given_up else steps[:1]:
                    self._connection.execute(step)
        except (sqlite3.Error, OSError):  # the next try tells
            self._roll_back()

    def _told(self, error: StoreUnavailable | sqlite3.Error) -> Exception:
        if not isinstance(error, sqlite3.Error):
            return error
        told = self._file.unavailable(error)
        return StoreFull(str(told)) if is_full(error) else told or error
