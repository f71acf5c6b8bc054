"""The suite that every store of trained rows passes: subclass `RowStoreSuite`, override `open`.

    class TestMyRowStore(RowStoreSuite):
        def open(self, tables):
            return MyRowStore(written(tables))

Each test opens a store of its own, and closes it.  Answers are compared with numpy's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.embeddings.row_store import RowStore
from penstock.embeddings.rules import Ids, Rows, constant, init, zeros
from penstock.embeddings.training_store import Fetched, TableShape
from penstock.errors import ConfigError
from penstock.testing.stores import at_once

WIDTH = 5
THREADS = 6
ROUNDS = 20
FAR = (-(2**63), -(2**63) + 1, -1, 0, 2**24 + 1, 2**31 + 5, 2**40 + 7, 2**63 - 2, 2**63 - 1)


@dataclass(frozen=True, eq=False)
class GivenTable:
    """A table that a store is opened with."""

    shape: TableShape
    ids: Ids
    """The ids of the rows that are there, ascending."""
    rows: Rows

    def expected(self, ids: Ids) -> Fetched:
        """The answer that a store must give."""
        found = np.isin(ids, self.ids)
        rows = np.empty((len(ids), self.shape.width), np.float32)
        if not found.all():
            rows[~found] = self.shape.missing.rows(ids[~found], self.shape.width, self.shape.name)
        rows[found] = self.rows[np.flatnonzero(np.isin(self.ids, ids))]
        return Fetched(rows, found)


def given(shape: TableShape, ids: Any) -> GivenTable:
    """A table with a row for each of these ids; every bit pattern may be in one, that of NaN too."""
    distinct = np.unique(np.asarray(ids, np.int64))
    bits = np.random.default_rng(len(distinct)).integers(2**32, size=(len(distinct), shape.width), dtype=np.uint32)
    return GivenTable(shape, distinct, bits.view(np.float32))


DENSE = given(TableShape("dense", WIDTH, size=3000), np.arange(3000))
SPARSE = given(TableShape("a/sparse", 1, size=3000, missing=constant([7])), np.arange(0, 2999, 3))
CLOSE = given(TableShape("close", WIDTH, ids="any", missing=init(7)), np.arange(-500, 1500))
SPREAD = given(
    TableShape("spread", WIDTH, ids="any", missing=zeros()),
    [*FAR, *np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 3000)],
)
CROWDED = given(
    TableShape("crowded", WIDTH, ids="any", missing=init(8)),
    [*(2**40 + np.arange(700)), *(2**60 + 3 * np.arange(700)), -(2**63), 2**63 - 1],
)
EMPTY = given(TableShape("empty", WIDTH, ids="any", missing=init(9)), [])
LONE = given(TableShape("lone", WIDTH, ids="any"), [-1])
TABLES = (DENSE, SPARSE, CLOSE, SPREAD, CROWDED, EMPTY, LONE)


class RowStoreSuite:
    """Its tests: each is a behaviour of the Protocol."""

    def open(self, tables: Sequence[GivenTable]) -> RowStore:
        """A store with these tables, of several parts where it has parts: a few hundred rows in each."""
        raise NotImplementedError

    def test_it_tells_its_tables(self) -> None:
        """By name, each as it was given."""
        with closing(self.open(TABLES)) as store:
            assert store.tables() == {table.shape.name: table.shape for table in TABLES}

    def test_every_row_that_is_there_comes_back(self) -> None:
        """All of a table in a call, and each half of its ids."""
        with closing(self.open(TABLES)) as store:
            for table in TABLES:
                for ids in (table.ids, table.ids[::2], table.ids[1::2]):
                    _check(store, {table: ids})

    def test_a_row_that_is_not_there_is_the_rules(self) -> None:
        """Between rows that are there, before the first and behind the last."""
        with closing(self.open(TABLES)) as store:
            _check(store, {SPARSE: np.arange(3000)})
            for table in (CLOSE, SPREAD, CROWDED, EMPTY, LONE):
                near = [table.ids + step for step in (-1, 0, 1)]  # past an end of int64 it is the other end
                _check(store, {table: np.unique(np.concatenate([*near, np.array(FAR)]))})

    def test_ids_that_a_float_or_32_bits_cannot_hold_are_themselves(self) -> None:
        """Also each alone, so that no neighbour helps."""
        with closing(self.open([SPREAD, EMPTY])) as store:
            for ids in (np.array(FAR), *np.array(FAR)[:, None]):
                _check(store, {SPREAD: ids, EMPTY: ids})

    def test_a_few_rows_are_those_that_come_with_all(self) -> None:
        """At the borders of parts too, wherever these are."""
        with closing(self.open([DENSE, CROWDED])) as store:
            for table in (DENSE, CROWDED):
                for first in range(0, len(table.ids), 4):
                    _check(store, {table: table.ids[first : first + 5]})

    def test_no_ids_are_asked_like_any_other(self) -> None:
        """And no tables."""
        none = np.empty(0, np.int64)
        with closing(self.open(TABLES)) as store:
            assert store.fetch({}, timeout=60.0) == {}
            _check(store, dict.fromkeys(TABLES, none))
            _check(store, {DENSE: none, CLOSE: np.arange(-1000, 1000)})

    def test_a_call_may_ask_several_tables(self) -> None:
        """Each table is answered for itself."""
        with closing(self.open(TABLES)) as store:
            for _ in range(3):
                _check(store, {DENSE: np.arange(0, 3000, 2), CLOSE: np.arange(-1000, 1000), SPREAD: SPREAD.ids[::2]})

    def test_rows_are_copies(self) -> None:
        """To change them changes nothing in the store."""
        with closing(self.open([DENSE, CLOSE])) as store:
            for table in (DENSE, CLOSE):
                for ids in (table.ids, table.ids[:1]):
                    fetched = store.fetch({table.shape.name: ids})[table.shape.name]
                    fetched.rows[:] = 0
                    fetched.found[:] = False
                    _check(store, {table: ids})

    def test_wrong_calls_are_refused(self) -> None:
        """Nothing is cast, sorted or left out, and the message names the table."""
        right = np.array([3, 5])
        with closing(self.open([DENSE, CLOSE])) as store:
            wrong: list[tuple[type[Exception], Any]] = [
                (ConfigError, right.astype(np.int32)),
                (ConfigError, right.astype(np.uint64)),
                (ConfigError, right.astype(np.float64)),
                (ConfigError, [3, 5]),
                (ConfigError, right[None]),
                (ConfigError, right[::-1]),
                (ConfigError, np.array([3, 3])),
                (ConfigError, np.array([3, 2**63 - 1, -(2**63)])),
                (IndexError, np.array([-1, 5])),
                (IndexError, np.array([5, 3000])),
            ]
            for kind, ids in wrong:
                _refused(kind, store, {CLOSE.shape.name: right, DENSE.shape.name: ids}, DENSE.shape.name)
            _refused(KeyError, store, {DENSE.shape.name: right, "nothing": right}, "nothing")

    def test_many_threads_read_at_once(self) -> None:
        """Each is answered what it asked."""
        with closing(self.open(TABLES)) as store:

            def work(seed: int) -> None:
                draw = np.random.default_rng(seed)
                for _ in range(ROUNDS):
                    asked = np.unique(draw.integers(3000, size=1 + seed * 400))
                    _check(store, {DENSE: asked, SPARSE: asked, CLOSE: asked - 1000})

            at_once([partial(work, seed) for seed in range(THREADS)])


def _check(store: RowStore, asked: Mapping[GivenTable, Ids]) -> None:
    """Fail unless the store answers as numpy, in every bit."""
    got = store.fetch({table.shape.name: ids for table, ids in asked.items()})
    assert list(got) == [table.shape.name for table in asked]
    for table, ids in asked.items():
        rows, found = got[table.shape.name]
        expected = table.expected(ids)
        assert rows.dtype == np.float32
        assert found.dtype == np.bool_
        assert rows.shape == expected.rows.shape
        assert found.tolist() == expected.found.tolist()
        assert (rows.view(np.uint32) == expected.rows.view(np.uint32)).all(), f"table {table.shape.name!r}"


def _refused(kind: type[Exception], store: RowStore, ids: Mapping[str, Any], name: str) -> None:
    try:
        store.fetch(ids)
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"{kind.__name__} was expected for {ids[name]!r}")
    assert name in said, said
