"""The suite of `penstock.testing.training_stores` over every training store there is."""

from __future__ import annotations

import pytest

from penstock.embeddings.memory_store import MemoryTrainingStore
from penstock.embeddings.shared_store import SharedTrainingStore
from penstock.testing.training_stores import TrainingStoreSuite


class TestMemoryTrainingStore(TrainingStoreSuite):
    def open(self):
        return MemoryTrainingStore()

    def open_again(self, store):
        return store


class TestSharedTrainingStore(TrainingStoreSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path / "store"

    def open(self):
        return SharedTrainingStore(self.folder)

    def open_again(self, store):
        return SharedTrainingStore(store.folder)
