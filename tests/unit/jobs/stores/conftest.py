"""SQLite stores on clocks that stand still until a test moves them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.hosting.host_clock import HostClock
from penstock.jobs.stores.sqlite_store import SqliteStore


class SetClocks:
    """The clocks of a host, which a test sets."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.boottime = 500.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.boottime += seconds

    def of_boot(self, boot_id: str) -> HostClock:
        return HostClock(lambda: self.wall, lambda: self.boottime, boot_id)


@pytest.fixture
def clocks() -> SetClocks:
    return SetClocks()


@pytest.fixture
def open_store(tmp_path, clocks):
    """Opens stores of one file, and closes them in the end."""
    opened = []

    def open_(queue="default", *, boot="one", path="q.db", **options) -> SqliteStore:
        store = SqliteStore(str(tmp_path / path), queue, clock=clocks.of_boot(boot), **options)
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store) -> SqliteStore:
    return open_store()


@pytest.fixture
def file(tmp_path):
    """The paths of the file and of what SQLite puts beside it."""
    return SimpleNamespace(db=tmp_path / "q.db", wal=tmp_path / "q.db-wal", shm=tmp_path / "q.db-shm")
