"""Rows of tables outside of the graph: looked up once for a batch, checked, and told where they are missing."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import penstock as ps
from penstock.artifact.manifest import Lookup
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.recorded import Recorded
from penstock.artifact.replaying import replay_ids
from penstock.artifact.row_stores import open_row_store
from penstock.artifact.served_model import open_model
from penstock.embeddings.row_store import MemoryRowStore
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused
from tiny_artifacts import ITEM, TABLE_ROWS, USER, USERS, item_rows, table_model, user_rows, write_tables


@pytest.fixture
def artifact(tmp_path):
    write_tables(tmp_path / "saved")
    return open_artifact(tmp_path / "saved")


@pytest.fixture
def model(artifact):
    opened = open_model(artifact)
    yield opened
    opened.close()


def rows_of(users):
    return [{"user": int(user), "age": float(place)} for place, user in enumerate(users)]


def test_a_model_with_tables_outside_answers_as_one_that_has_them(model):
    found = model.predict_rows(TABLE_ROWS)
    expected = table_model(**model.features.encode(TABLE_ROWS))
    assert found.values["score"].tolist() == expected.tolist()
    assert (found.invalid, found.missing, found.version) == ({}, (), model.version)


def test_each_table_is_asked_once_for_a_batch_and_for_distinct_ids(artifact):
    class Noting(MemoryRowStore):
        asked: list = []

        def fetch(self, ids, timeout=None):
            self.asked.append({name: some.tolist() for name, some in ids.items()})
            return super().fetch(ids, timeout)

    store = Noting([(USER, USERS, user_rows(USERS)), (ITEM, np.arange(4), item_rows())])
    open_model(artifact, rows=store).predict_rows(rows_of([5, 0, 5, 2**31 + 5, 0]))
    assert store.asked == [{"user": [0, 5, 2**31 + 5], "item": [0, 3]}]


def test_an_id_that_is_none_of_its_table_fails_its_row_alone(model):
    users = [5, 9, 2**24 + 1, -1]  # 9 % 5 and -1 % 5 are 4
    found = model.predict_rows(rows_of(users))
    assert found.kept == [0, 2]
    assert found.values["score"].tolist() == table_model(np.array(users)[[0, 2]], np.array([0, 2])).tolist()
    assert [found.invalid[place].reason for place in (1, 3)] == [
        "table 'item' has the ids from 0 to 3, but id 4 was requested"
    ] * 2
    assert found.invalid[1].path == ""


def test_made_ids_that_are_others_where_two_are_looked_up_at_once_fail_the_proof(model):
    class Halved:
        """The graph of the ids, which keeps the lower half of each where there are several."""

        def __init__(self, graph):
            self.outputs, self.close, self._graph = graph.outputs, graph.close, graph

        def run(self, inputs):
            user, item = self._graph.run(inputs)
            return [user if len(user) == 1 else user % 2**32, item]

    rows = rows_of([2**40 + 7])
    inputs = model.features.encode(rows)
    far = Recorded(rows, inputs, {}, {"ids_0_0": inputs["user"], "ids_1_0": inputs["user"] % 5})
    replay_ids(model, model.lookups, far)
    model.lookups.graph = Halved(model.lookups.graph)
    with pytest.raises(ExportRefused, match=r'"user":1099511627783.*has the ids int64\[3\] \[7, 7, 7\]'):
        replay_ids(model, model.lookups, far)


def with_table(model, **changes):
    """The model with another entry of its table `user`."""
    tables = model.lookups.tables
    model.lookups.tables = (msgspec.structs.replace(tables[0], **changes), *tables[1:])
    return model


def test_an_id_that_is_an_input_is_told_with_its_column(model):
    found = with_table(model, ids="dense", size=10).predict_rows(rows_of([3, 70]))
    assert (found.kept, found.invalid[1].path) == ([0], "$.user")
    assert found.invalid[1].reason == "table 'user' has the ids from 0 to 9, but id 70 was requested"


def test_an_id_of_which_nobody_knows_the_row_fails_the_whole_call(model):
    flat = with_table(model, ids="dense", size=10, lookups=(Lookup("ids_0_0", "places_0_0", by_row=False),))
    with pytest.raises(ps.InvalidItem, match="table 'user' has the ids from 0 to 9, but id 70 was requested"):
        flat.predict_rows(rows_of([5, 70]))


def test_ids_that_were_not_found_are_counted_for_each_row(model):
    found = model.predict_rows(rows_of([5, 2, 9, 3, 2**40 + 7]), explain=True)
    assert (found.kept, found.missing) == ([0, 1, 3, 4], [{}, {"user": 1}, {"user": 1}, {}])


def test_an_id_counts_once_for_a_row_that_looks_it_up_twice(model):
    looked_up = model.lookups.look_up(model.features.encode(rows_of([7, 5])))
    looked_up.inputs["again"] = np.stack([looked_up.inputs["places_0_0"]] * 2, axis=1)
    lookups = (*model.lookups.tables[0].lookups, Lookup("ids_0_0", "again", by_row=True))
    assert with_table(model, lookups=lookups).lookups.missing(looked_up, 2) == [{"user": 1}, {}]


def test_a_batch_without_ids_has_a_row_for_the_graph(model):
    found = model.lookups.look_up({"user": np.empty(0, np.int64)})
    assert {name: array.shape for name, array in found.inputs.items()} == {
        "rows_0": (1, 2),
        "places_0_0": (0,),
        "rows_1": (1, 2),
        "places_1_0": (0,),
    }


def test_a_store_is_opened_by_the_url_of_an_artifact(tmp_path, artifact):
    store = open_row_store(f"mmap:{artifact.path}")
    asked = np.unique(np.append(USERS, [1, 77]))
    found = store.fetch({"user": asked, "item": np.arange(4)})
    assert found["user"].rows.tolist() == user_rows(asked).tolist()
    assert found["user"].found.tolist() == np.isin(asked, USERS).tolist()
    assert found["item"].rows.tolist() == item_rows().tolist()
    store.close()
    for url in ("mmap:", "mmap://x", "redis://x", 3):
        with pytest.raises(ConfigError, match="is not a store of rows"):
            open_row_store(url)
    with pytest.raises(ArtifactInvalid, match="the directory does not exist"):
        open_row_store(f"mmap:{tmp_path / 'none'}")
