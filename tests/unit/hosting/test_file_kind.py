"""Of which kind an SQLite file is, also while somebody else makes it."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from penstock.errors import StoreUnavailable
from penstock.hosting.file_kind import FileKind

KIND = FileKind("queue", "jobs", "put it elsewhere", 7, (("CREATE TABLE jobs (id)",),), StoreUnavailable)


def opened(path):
    return contextlib.closing(sqlite3.connect(path, isolation_level=None))


@pytest.mark.parametrize("statement", ["PRAGMA application_id", "PRAGMA user_version", "SELECT count(*)"])
def test_a_file_that_another_process_makes_meanwhile_is_empty_or_the_newest(tmp_path, statement):
    with opened(tmp_path / "q.db") as ours, opened(tmp_path / "q.db") as maker:
        maker.execute("PRAGMA journal_mode = WAL")
        made = []

        def make_it(asked):
            if asked.startswith(statement) and not made:
                made.append(asked)
                maker.execute("BEGIN IMMEDIATE")
                KIND.bring_forward(maker, "q.db")
                maker.execute("COMMIT")

        ours.set_trace_callback(make_it)
        assert KIND.is_newest(ours, "q.db") in (False, True)
        assert made
        assert KIND.is_newest(ours, "q.db")
        assert not ours.in_transaction
