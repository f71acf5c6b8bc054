"""The suite of `penstock.testing.stores` over stores in files: on clocks that a test moves, and on this host's."""

from __future__ import annotations

from itertools import count

import pytest

from penstock.hosting.host_clock import HostClock
from penstock.jobs.rules.waiting_bounds import WaitingBounds
from penstock.jobs.stores.sqlite_store import SqliteStore
from penstock.testing.stores import StoreSuite


class TestSqliteStoreOnTheHostsClocks(StoreSuite):
    synchronous = "FULL"

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.paths = (str(tmp_path / f"{number}.db") for number in count())

    def clock(self):
        return None

    def open(self):
        self.path = next(self.paths)
        return self.open_again(None)

    def open_again(self, store):
        return SqliteStore(self.path, synchronous=self.synchronous, clock=self.clock())

    def open_bounded(self, store, *, max_waiting, max_waiting_bytes):
        bounds = WaitingBounds(max_waiting, max_waiting_bytes)
        return SqliteStore(self.path, synchronous=self.synchronous, clock=self.clock(), bounds=bounds)


class TestSqliteStore(TestSqliteStoreOnTheHostsClocks):
    passed = 0.0

    def clock(self):
        return HostClock(lambda: 1.7e9 + self.passed, lambda: 50.0 + self.passed, "this boot")

    def pass_time(self, seconds):
        self.passed += seconds


class TestSqliteStoreThatMayLoseTheLastMoments(TestSqliteStore):
    synchronous = "NORMAL"
