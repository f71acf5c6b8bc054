"""Tell whether an SQLite file is of the kind that is wanted, and give it the newest schema of that kind.

Contract
--------
* `application_id` says of which kind a file is, `user_version` how many of its steps it has been through.
* A file is brought forward in one transaction: it has its old schema or the newest, never one between.
* A file of a newer version than this program knows, and a file of another kind, is refused and not changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import ConfigError, PenstockError


@dataclass(frozen=True)
class FileKind:
    """One kind of SQLite file: its schema, and the words that errors have for it."""

    what: str
    """What is kept in it, as "queue"."""
    contents: str
    """What is lost with it, as "jobs"."""
    elsewhere: str
    """What to do where it cannot be here, as "put the queue on a disk of this host"."""
    application_id: int
    steps: Sequence[Sequence[str]]
    """The statements that bring a file of version n to version n + 1, at place n."""
    unavailable: type[PenstockError]
    """What is raised where it is locked, or the disk is full or fails."""

    def is_newest(self, connection: sqlite3.Connection, path: str) -> bool:
        """Whether the file has the newest schema; False for an empty file too.

        Raises:
            ConfigError: the file is of another kind, or of a newer version than this program knows.
        """
        application, version, tables = _look(connection)
        if application != self.application_id and (application or version or tables):
            raise ConfigError(
                f"{path} is an SQLite file of another program or purpose; use another file for the {self.what}"
            )
        if version > len(self.steps):
            raise ConfigError(
                f"{path} was written by a newer version of Penstock: it has schema {version}, and this "
                f"version supports up to {len(self.steps)}; upgrade Penstock, or use another file"
            )
        return bool(application == self.application_id and version == len(self.steps))

    def bring_forward(self, connection: sqlite3.Connection, path: str) -> None:
        """Give the file the newest schema, in one transaction that `connection` has begun.

        Raises:
            ConfigError: as `is_newest`.
        """
        if self.is_newest(connection, path):
            return
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in self.steps[version:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {self.application_id}")
        connection.execute(f"PRAGMA user_version = {len(self.steps)}")


def _look(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """What the file says it is, its version, and how many tables and the like it has, all of one moment.

    Another process may be making the file: what is read before and after that fits no kind of file.
    """
    if connection.in_transaction:
        return _read(connection)
    connection.execute("BEGIN")
    try:
        return _read(connection)
    finally:
        with contextlib.suppress(sqlite3.Error):  # SQLite has ended it already after some errors: they are told
            connection.execute("ROLLBACK")


def _read(connection: sqlite3.Connection) -> tuple[int, int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return application, version, tables
