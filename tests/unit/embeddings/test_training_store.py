"""Specs of tables, what is summed before a step, and URLs."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.embeddings.memory_store import MemoryTrainingStore
from penstock.embeddings.opening import open_training_store
from penstock.embeddings.row_optimizers import Adagrad, SparseAdam
from penstock.embeddings.rules import constant
from penstock.embeddings.shared_store import SharedTrainingStore
from penstock.embeddings.training_store import TableSpec, last_of_each, summed
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "the name of a table must be 1 to 200 printable ASCII characters, got ''"),
        ({"name": "x" * 201}, "1 to 200"),
        ({"name": "a b"}, "printable"),
        ({"name": "é"}, "ASCII"),
        ({"width": 0}, "table 't': width must be from 1 to 65536, got 0"),
        ({"width": 65537}, "got 65537"),
        ({"size": None}, "got ids='dense', size=None"),
        ({"size": 0}, "got ids='dense', size=0"),
        ({"size": 1.5}, "got ids='dense', size=1.5"),
        ({"size": 2**63 + 1}, "got ids='dense', size=9223372036854775809"),
        ({"ids": "any"}, "got ids='any', size=9"),
        ({"ids": "hashed"}, "ids must be 'dense' or 'any', got 'hashed'"),
        ({"missing": constant([1])}, "constant has 1 values, but a row has 2"),
        ({"width": "2"}, "width must be from 1 to 65536, got '2'"),
        ({"missing": 0.0}, r"missing must be zeros\(\), constant\(\) or init\(\), got 0\.0"),
        ({"optimizer": 0.1}, r"optimizer must be SGD, Adagrad or SparseAdam of penstock\.embeddings, got 0\.1"),
        ({"ids": "some", "size": None}, "ids must be 'dense' or 'any', got 'some'"),
    ],
)
def test_a_table_that_cannot_be_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        TableSpec(**{"name": "t", "width": 2, "size": 9} | fields)


def test_a_table_of_numbers_of_numpy_is_that_of_python_once_it_was_written(tmp_path):
    adam = SparseAdam(lr=np.float32(0.5), betas=[np.float32(0.5), np.float64(0.75)])
    spec = TableSpec("t", np.int32(2), size=np.int64(9), optimizer=adam)
    for _ in range(2):
        store = SharedTrainingStore(tmp_path)
        store.create(spec)
        assert store.tables() == {"t": spec}


@pytest.mark.parametrize("ids", [[], [3], [5, 1, 9], [4, 4, 4], [7, -2, 7, 0, -2, 7]])
def test_gradients_are_summed_and_of_rows_the_last_counts(ids):
    ids = np.array(ids, np.int64)
    rows = np.arange(2 * len(ids), dtype=np.float32).reshape(-1, 2)
    totals, last = {}, {}
    for id_, row in zip(ids.tolist(), rows, strict=True):
        totals[id_] = totals.get(id_, 0) + row
        last[id_] = row
    for found, expected in ((summed(ids, rows), totals), (last_of_each(ids, rows), last)):
        assert found[0].tolist() == sorted(expected)
        assert found[1].tolist() == [expected[id_].tolist() for id_ in sorted(expected)]


def test_a_url_names_a_store_in_memory_or_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_training_store("memory:"), MemoryTrainingStore)
    for url, folder in ((f"shared:{tmp_path}/one", "one"), ("shared:two/rows", "two/rows")):
        store = open_training_store(url)
        assert isinstance(store, SharedTrainingStore)
        assert store.folder == tmp_path / folder


@pytest.mark.parametrize(
    "url", ["", "memory", "memory:x", "shared:", "shared://host/x", "redis:x", "rows", 7, "shared:\0"]
)
def test_another_url_is_refused_with_those_that_there_are(url):
    with pytest.raises(ConfigError, match="write memory: or shared:DIR"):
        open_training_store(url)


def test_a_run_that_lost_its_store_goes_on_from_a_copy_of_its_checkpoint(tmp_path):
    run, ids = ps.training.Run(tmp_path / "run"), np.arange(3)
    rows, grads = f"shared:{tmp_path}/run/rows", np.ones((3, 2), np.float32)
    spec = TableSpec("t", 2, size=3, optimizer=Adagrad(lr=0.5))
    store, expected = open_training_store(rows), open_training_store("memory:")
    for each in (store, expected):
        each.create(spec)
        each.apply("t", ids, grads)
    run.checkpoint(lambda path: store.save(path / "rows"))
    store.apply("t", ids, grads)
    store.close()
    shutil.rmtree(tmp_path / "run" / "rows")
    shutil.copytree(run.latest_checkpoint() / "rows", tmp_path / "run" / "rows")
    again = open_training_store(rows)
    for _ in range(2):
        assert (again.fetch("t", ids).rows == expected.fetch("t", ids).rows).all()
        for each in (again, expected):
            each.apply("t", ids, grads)


def test_neither_the_package_nor_its_server_loads_stores_of_rows():
    loaded = "import sys, penstock, penstock.cli.main, penstock.server.app; print('penstock.embeddings' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], stdout=subprocess.PIPE, check=True).stdout == b"False\n"
