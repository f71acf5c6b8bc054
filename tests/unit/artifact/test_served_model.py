"""Rows that a graph refuses, alone and beside others, with the column and its value."""

import numpy as np
import pytest

import penstock as ps
from penstock import features as f
from penstock.artifact.recorded import RefusedRow
from penstock.artifact.replaying import replay_refused
from penstock.artifact.served_model import ServedModel
from penstock.errors import ArtifactInvalid, ExportRefused
from penstock.features.tensors import TensorSpec
from penstock.graphs.graph import MemoryGraph
from penstock.graphs.refusals import Refusal, RowsRefused, check_rows, refusals_from_text, refusals_to_text

ROWS = [{"age": float(age), "town": town, "note": "x"} for age, town in zip(range(6), "abcabc", strict=True)]
SPEC = f.Features(
    {
        "age": f.Numeric(),
        "height": f.Numeric(column="note", fill_value=0, missing_values=("x",)),
        "home": f.Vocabulary(values=("a", "b", "c"), column="town"),
    },
    concat_into="x",
)
UNKNOWN = Refusal("is unknown to the model", "home")


def refusing(inputs, where, why):
    places = np.flatnonzero(where(inputs)).tolist()
    if places:
        raise RowsRefused(dict.fromkeys(places, why))
    return [inputs["x"][:, 0] * 2]


def graph(where=lambda inputs: inputs["home"] == 2, why=UNKNOWN):
    return MemoryGraph(lambda inputs: refusing(inputs, where, why), SPEC.inputs, (TensorSpec("double", "float32"),))


def served(graph, features=SPEC):
    return ServedModel(features, graph, format="onnx")


def test_a_row_that_the_graph_refuses_stands_alone_with_its_column_and_value():
    found = served(graph()).predict_rows([*ROWS[:3], {"age": "old"}, ROWS[3]])
    assert list(found.kept) == [0, 1, 4]
    assert found.values["double"].tolist() == [0, 2, 6]
    assert sorted(found.invalid) == [2, 3]
    assert (found.invalid[2].path, found.invalid[2].reason) == ("$.town", "'c' is unknown to the model")


def test_a_batch_of_which_every_row_is_refused_has_no_outputs():
    found = served(graph()).predict_rows([ROWS[2], ROWS[5]])
    assert (found.values, list(found.kept), sorted(found.invalid)) == ({}, [], [0, 1])


@pytest.mark.parametrize(("place", "column"), [(0, "age"), (1, "note")])
def test_a_value_of_a_joined_input_is_told_by_its_place(place, column):
    found = served(graph(why=Refusal("is no number", "x", place))).predict_rows(ROWS[2:3])
    assert found.invalid[0].path == f"$.{column}"


def test_without_a_column_the_greatest_number_is_told():
    found = served(graph(lambda inputs: inputs["x"][:, 0] > 4, Refusal("is too large"))).predict_rows(ROWS)
    assert (found.invalid[5].path, found.invalid[5].reason) == ("$.age", "5.0 is too large")


def test_a_cross_has_no_column_of_its_own():
    spec = f.Features({"a": f.Hashed(9), "b": f.Hashed(9), "both": f.Crossed(["a", "b"], 7)})
    crossed = MemoryGraph(lambda inputs: refusing(inputs, lambda _: [True], Refusal("is odd", "both")), spec.inputs, ())
    found = served(crossed, spec).predict_rows([{"a": "x", "b": "y"}])
    assert (found.invalid[0].path, found.invalid[0].reason) == ("", "the model rejects the row: it is odd")


def test_the_numbers_of_reasons_count_from_one():
    check_rows(np.zeros(3, np.int64), [UNKNOWN])
    with pytest.raises(RowsRefused) as caught:
        check_rows(np.array([0, 2, 1]), [UNKNOWN, Refusal("is odd")])
    assert caught.value.refusals == {1: Refusal("is odd"), 2: UNKNOWN}
    assert refusals_from_text(refusals_to_text([UNKNOWN])) == [UNKNOWN]
    with pytest.raises(ArtifactInvalid, match="_refused"):
        refusals_from_text("[1]")


REFUSED = [RefusedRow(ROWS[2], "ValueError: unknown"), RefusedRow(ROWS[5], "ValueError: unknown")]


def test_a_proof_passes_where_the_graph_refuses_what_the_model_refused():
    replay_refused(served(graph()), REFUSED, ROWS[0])
    replay_refused(served(graph()), [], ROWS[0])


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            lambda inputs: inputs["home"] == 9,
            r"accepts a row that the model rejects, {\"age\":2.0,.* unknown; have the",
        ),
        (lambda inputs: (inputs["home"] == 2) & (len(inputs["home"]) < 3), "accepts a row that the model rejects"),
        (lambda inputs: inputs["home"] >= 0, "rejects a row that the model accepts: 'a' is unknown to the model"),
    ],
    ids=["each", "in a batch", "too many"],
)
def test_a_proof_fails_where_the_graph_answers_or_refuses_others(where, said):
    with pytest.raises(ExportRefused, match=said):
        replay_refused(served(graph(where)), REFUSED, ROWS[0])


def test_a_graph_that_raises_itself_fails_the_proof():
    def broken(inputs):
        raise RuntimeError("zeros = 0")

    with pytest.raises(
        ExportRefused, match="the graph fails on a batch of 2, starting with row 0: RuntimeError: zeros = 0"
    ):
        replay_refused(served(MemoryGraph(broken, SPEC.inputs, ())), REFUSED, ROWS[0])


def test_an_invalid_item_is_the_caller_s():
    assert isinstance(served(graph()).predict_rows(ROWS).invalid[2], ps.InvalidItem)
