"""Random calls of both stores against a dict of rows, and every answer compared."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from night import NIGHT, examples
from penstock.embeddings import row_table
from penstock.embeddings.memory_store import MemoryTrainingStore
from penstock.embeddings.row_optimizers import SGD, Adagrad, SparseAdam
from penstock.embeddings.rules import constant, init, zeros
from penstock.embeddings.shared_store import SharedTrainingStore
from penstock.embeddings.training_store import TableSpec

IDS = st.lists(st.one_of(st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1)), max_size=40)
EVERYTHING = np.arange(-12, 12)
SIZE = 500
"""Rows of the table with dense ids."""


class DictTable:
    """A dict of rows and their state."""

    def __init__(self, spec):
        self.spec = spec
        self.rows = {}
        self.step = 0

    def row(self, id_):
        return self.spec.missing.rows(np.array([id_]), self.spec.width, self.spec.name)

    def apply(self, ids, grads, lr):
        self.step += bool(len(ids))
        for id_ in dict.fromkeys(ids.tolist()):
            row, state = self.rows.setdefault(id_, (self.row(id_), self.spec.optimizer.first_state(1, self.spec.width)))
            total = grads[ids == id_].sum(axis=0, dtype=np.float32)[None]
            self.spec.optimizer.update(row, state, total, self.spec.optimizer.lr if lr is None else lr, self.step)

    def load(self, ids, rows):
        for id_, row in zip(ids.tolist(), rows, strict=True):
            self.rows[id_] = (row[None].copy(), self.spec.optimizer.first_state(1, self.spec.width))

    def fetch(self, ids):
        there = [self.rows[id_][0] if id_ in self.rows else self.row(id_) for id_ in ids.tolist()]
        return np.concatenate(there) if there else np.empty((0, self.spec.width), np.float32)


class Machine(RuleBasedStateMachine):
    kind = ""

    @initialize(
        optimizers=st.lists(
            st.sampled_from([SGD(lr=0.5), Adagrad(lr=0.5, lr_decay=0.5), SparseAdam(lr=0.1)]), min_size=2, max_size=2
        ),
        missing=st.sampled_from([zeros(), constant([3, 1, 2]), init(5)]),
    )
    def make(self, optimizers, missing):
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.opened("rows")
        self.saves = 0
        self.tables = {}
        for (name, size), optimizer in zip((("any", None), ("dense", SIZE)), optimizers, strict=True):
            ids = "any" if size is None else "dense"
            spec = TableSpec(name, 3, ids, size, missing=missing, optimizer=optimizer)
            self.store.create(spec)
            self.tables[name] = DictTable(spec)

    def opened(self, name):
        return MemoryTrainingStore() if self.kind == "memory" else SharedTrainingStore(Path(self.folder.name) / name)

    def ids(self, name, ids):
        given = np.array(ids, np.int64)
        return given % SIZE if name == "dense" else given

    def numbers(self, count, seed):
        """Small integers, which add up alike in every order."""
        return np.random.default_rng(seed).integers(-8, 9, (count, 3)).astype(np.float32)

    @rule(
        name=st.sampled_from(["any", "dense"]), ids=IDS, seed=st.integers(0, 99), lr=st.sampled_from([None, 0.0, 0.25])
    )
    def apply(self, name, ids, seed, lr):
        ids = self.ids(name, ids)
        grads = self.numbers(len(ids), seed)
        self.store.apply(name, ids, grads, lr)
        self.tables[name].apply(ids, grads, lr)

    @rule(name=st.sampled_from(["any", "dense"]), ids=IDS, seed=st.integers(0, 99))
    def load(self, name, ids, seed):
        ids = self.ids(name, ids)
        rows = self.numbers(len(ids), seed)
        self.store.load(name, ids, rows)
        self.tables[name].load(ids, rows)

    @rule(name=st.sampled_from(["any", "dense"]), start=st.integers(-(2**40), 2**40), count=st.integers(1, 150))
    def apply_to_many(self, name, start, count):
        ids = self.ids(name, np.arange(start, start + count))
        grads = self.numbers(count, count)
        self.store.apply(name, ids, grads)
        self.tables[name].apply(ids, grads, None)

    @rule(name=st.sampled_from(["any", "dense"]), ids=IDS)
    def fetch(self, name, ids):
        ids = self.ids(name, ids)
        rows, found = self.store.fetch(name, ids)
        assert found.tolist() == [id_ in self.tables[name].rows for id_ in ids.tolist()]
        np.testing.assert_allclose(rows, self.tables[name].fetch(ids), rtol=1e-6, atol=1e-7)

    @rule(name=st.sampled_from(["any", "dense"]), chunk=st.integers(1, 100))
    def scan(self, name, chunk):
        found = list(self.store.scan(name, chunk))
        assert all(0 < len(ids) <= chunk for ids, _ in found)
        ids = [id_ for ids, _ in found for id_ in ids.tolist()]
        assert ids == sorted(self.tables[name].rows)
        for some, rows in found:
            np.testing.assert_allclose(rows, self.tables[name].fetch(some), rtol=1e-6, atol=1e-7)

    @precondition(lambda self: self.saves < 2)  # each waits for the disk
    @rule()
    def go_on_from_a_save(self):
        """The shared store goes on from its copy, or is opened again."""
        self.saves += 1
        path = Path(self.folder.name) / f"{self.saves}"
        self.store.save(path)
        if self.kind == "shared":
            self.store.close()
            self.store = SharedTrainingStore(path)

    @rule()
    def open_again(self):
        if self.kind == "shared":
            self.store = SharedTrainingStore(self.store.folder)

    @invariant()
    def counts_and_near_rows_are_those_of_the_dict(self):
        for name, table in self.tables.items():
            assert self.store.count(name) == len(table.rows)
            near = self.ids(name, EVERYTHING)
            np.testing.assert_allclose(self.store.fetch(name, near).rows, table.fetch(near), rtol=1e-6, atol=1e-7)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_random_calls_answer_as_a_dict_of_rows(kind, monkeypatch):
    monkeypatch.setattr(row_table, "_CACHED", 200)  # so that many calls have more than that
    machine = type(f"{kind.title()}Machine", (Machine,), {"kind": kind})
    hypothesis.stateful.run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            max_examples=examples(20), stateful_step_count=25, deadline=None, derandomize=not NIGHT
        ),
    )
