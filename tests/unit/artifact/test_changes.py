"""What differs between two artifacts, where the second refuses probes of the first or answers otherwise."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from penstock import features as f
from penstock.artifact.changes import find_changes
from penstock.artifact.drafting import new_artifact
from penstock.artifact.manifest import GraphEntry
from penstock.artifact.opened_artifact import Artifact, open_artifact
from penstock.artifact.recorded import Recorded
from penstock.artifact.served_model import ServedModel, open_model
from penstock.features.tensors import TensorSpec
from penstock.graphs.graph import MemoryGraph
from saved_artifacts import finish
from tiny_artifacts import write_tables

ROWS = [{"id": 0}, {"id": 1}, {"id": 2}]
OUTPUTS = (TensorSpec("same", "float32"),)


def saved(path, kinds=None, rows=ROWS, answers=(0, 1, 2), **options) -> Artifact:
    """An artifact of a model that answered `answers` to `rows`; its graph is none."""
    spec = f.Features(kinds or {"id": f.Ids(3)})
    with new_artifact(path, name="same") as draft:
        (draft.folder / "model.onnx").write_bytes(b"no graph")
        finish(
            draft,
            features=spec,
            probes=Recorded(rows, spec.encode(rows), {"same": np.array(answers, np.float32)}),
            graphs=[GraphEntry("onnx", "model.onnx", spec.inputs, OUTPUTS)],
            **options,
        )
        draft.publish()
    return open_artifact(path)


def changes(before, after, answer=lambda ids: ids.astype(np.float32), outputs=OUTPUTS):
    graph = MemoryGraph(lambda inputs: [answer(inputs["id"])], after.features.inputs, outputs)
    return find_changes(before, after, ServedModel(after.features, graph, format="onnx"))


def test_a_probe_that_the_second_refuses_is_told_and_the_others_are_compared(tmp_path):
    found = changes(saved(tmp_path / "a"), saved(tmp_path / "b", {"id": f.Ids(2)}, ROWS[:2], (0, 1)))
    assert dict(found.refused) == {2: "2 is not an id of 0 to 1 at `$.id`"}
    assert [(output.rows, output.differing) for output in found.outputs] == [(2, 0)]
    assert not found.same_answers


def test_the_probe_that_differs_most_has_its_number_among_all(tmp_path):
    after = saved(tmp_path / "b", {"id": f.Ids(3, missing_values=[0])}, ROWS[1:], (1, 2))
    found = changes(saved(tmp_path / "a"), after, lambda ids: np.where(ids == 2, 7, ids).astype(np.float32))
    (output,) = found.outputs
    assert list(found.refused) == [0]
    assert (output.row, output.before, output.after) == (2, 2.0, 7.0)


def test_a_table_outside_that_differs_is_told(tmp_path):
    for name, size in (("a", 500), ("b", 2**20)):
        write_tables(tmp_path / name, shard_bytes=size)
    before, after = (open_artifact(tmp_path / name) for name in "ab")
    told = {one.what: one for one in find_changes(before, after, open_model(after)).descriptions}
    assert told.keys() == {"table user", "table item"}
    assert msgspec.json.decode(told["table item"].after)["shards"] == [{"file": "", "first": 0, "last": 3, "rows": 4}]


def test_where_every_probe_is_refused_no_output_is_said_to_be_missing(tmp_path):
    other = saved(tmp_path / "b", {"word": f.Hashed(3)}, [{"word": "a"}], (0,))
    found = changes(saved(tmp_path / "a"), other)
    assert list(found.refused) == [0, 1, 2]
    assert (list(found.outputs), list(found.missing), found.same_answers) == ([], [], False)


@pytest.mark.parametrize(("absolute", "differing"), [(0.5, 0), (0.25, 1)])
def test_the_tolerance_is_that_of_the_first(tmp_path, absolute, differing):
    before = saved(tmp_path / "a", answers=(0, 1.5, 2), tolerance=(absolute, 0.0))
    (output,) = changes(before, saved(tmp_path / "b")).outputs
    assert (output.differing, output.largest, output.row) == (differing, 0.5, 1)
    assert (output.before, output.after) == (1.5, 1.0)


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [((TensorSpec("other", "float32"),), lambda ids: ids.astype(np.float32)), (OUTPUTS, lambda ids: ids)],
    ids=["another name", "another dtype"],
)
def test_an_output_that_cannot_be_compared_is_missing(tmp_path, outputs, answer):
    found = changes(saved(tmp_path / "a"), saved(tmp_path / "b"), answer, outputs)
    assert (list(found.missing), list(found.outputs), found.same_answers) == (["same"], [], False)


def test_what_they_say_of_themselves_is_told_where_it_differs(tmp_path):
    before, after = saved(tmp_path / "a"), saved(tmp_path / "b", {"id": f.Ids(5)}, git="0123abc")
    told = {one.what: (one.before, one.after) for one in changes(before, after).descriptions}
    assert told.keys() == {"feature id", "git"}
    assert told["git"] == ("null", "0123abc")
    assert '"size":3' in told["feature id"][0]
    assert '"size":5' in told["feature id"][1]
