"""The suite of `penstock.testing.stores` over every store there is."""

from __future__ import annotations

from penstock.jobs.rules.waiting_bounds import WaitingBounds
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.testing.stores import StoreSuite


class TestMemoryStore(StoreSuite):
    def open(self):
        self.passed = 0.0
        return MemoryStore(now=lambda: 50.0 + self.passed, wall=lambda: 1.7e9 + self.passed)

    def open_again(self, store):
        return store

    def open_bounded(self, store, *, max_waiting, max_waiting_bytes):
        store.bounds = WaitingBounds(max_waiting, max_waiting_bytes)
        return store

    def pass_time(self, seconds):
        self.passed += seconds


class TestMemoryStoreOnTheMachinesClocks(StoreSuite):
    def open(self):
        return MemoryStore()

    def open_again(self, store):
        return store

    def open_bounded(self, store, *, max_waiting, max_waiting_bytes):
        store.bounds = WaitingBounds(max_waiting, max_waiting_bytes)
        return store
