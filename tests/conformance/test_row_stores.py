"""The suite of `penstock.testing.row_stores` over every store of trained rows there is, and over broken ones."""

from __future__ import annotations

import numpy as np
import pytest

from mapped_tables import map_tables, write_table
from penstock.embeddings import mapped_rows
from penstock.embeddings.row_store import MemoryRowStore, with_rule
from penstock.embeddings.training_store import Fetched
from penstock.testing.row_stores import RowStoreSuite


class TestMemoryRowStore(RowStoreSuite):
    def open(self, tables):
        return MemoryRowStore((table.shape, table.ids, table.rows) for table in tables)


class TestMappedRowStore(RowStoreSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def open(self, tables):
        written = [write_table(self.folder, table.shape, table.ids, table.rows) for table in tables]
        assert max(len(table.shards) for table in written) > 1
        return map_tables(self.folder, written)


class TestMappedRowStoreWithItsThreads(TestMappedRowStore):
    """Every call with enough ids is made by many threads."""

    @pytest.fixture(autouse=True)
    def _from_disk(self, monkeypatch):
        monkeypatch.setattr(mapped_rows, "FEW_WAITS", 0)


class WithoutWideIds(MemoryRowStore):
    """Ids are compared as floats."""

    def _of(self, name, asked):
        shape, known, rows = self._tables[name]
        places = np.searchsorted(known.astype(float), asked.astype(float)).clip(max=max(len(known) - 1, 0))
        if not len(known):
            return super()._of(name, asked)
        found = known[places].astype(float) == asked.astype(float)
        return with_rule(shape, asked, Fetched(rows[places], found))


class WithoutRules(MemoryRowStore):
    """Rows that are not there are those of a neighbour."""

    def _of(self, name, asked):
        _, known, rows = self._tables[name]
        if not len(known):
            return super()._of(name, asked)
        places = np.searchsorted(known, asked).clip(max=len(known) - 1)
        return Fetched(rows[places], known[places] == asked)


class WithViews(MemoryRowStore):
    """All rows of a table are given as they are."""

    def _of(self, name, asked):
        fetched = super()._of(name, asked)
        rows = self._tables[name][2]
        return Fetched(rows, fetched.found) if len(asked) == len(rows) and fetched.found.all() else fetched


class WithoutOrder(MemoryRowStore):
    """Ids may come in any order."""

    def fetch(self, ids, timeout=None):
        try:
            return super().fetch(ids, timeout)
        except ValueError:
            return {name: self._of(name, some) for name, some in ids.items()}


BROKEN = {
    WithoutWideIds: "test_ids_that_a_float_or_32_bits_cannot_hold_are_themselves",
    WithoutRules: "test_a_row_that_is_not_there_is_the_rules",
    WithViews: "test_rows_are_copies",
    WithoutOrder: "test_wrong_calls_are_refused",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_the_suite_notices_a_store_that_breaks_the_contract(broken):
    class Suite(RowStoreSuite):
        def open(self, tables):
            return broken((table.shape, table.ids, table.rows) for table in tables)

    with pytest.raises(AssertionError):
        getattr(Suite(), BROKEN[broken])()
