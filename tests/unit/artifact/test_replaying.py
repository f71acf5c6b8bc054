"""Graphs that answer otherwise than their model did: each is refused with what is known of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock import features as f
from penstock.artifact import replaying
from penstock.artifact.recorded import Recorded
from penstock.artifact.replaying import refuse_outside, replay
from penstock.artifact.served_model import ServedModel
from penstock.codec.decode import ItemDecoder
from penstock.errors import ExportRefused
from penstock.features.tensors import TensorSpec
from penstock.graphs.graph import MemoryGraph

ROWS = [{"age": age, "town": town} for age, town in zip(range(7), "abcabca", strict=True)]
SPEC = f.Features({"age": f.Numeric(), "town": f.Vocabulary(values=("a", "b", "c"))})
OUTPUTS = (TensorSpec("double", "float32"), TensorSpec("town", "int64"))


def model(inputs):
    return [inputs["age"] * 2, inputs["town"].copy()]


def recorded(rows=ROWS):
    inputs = SPEC.encode(rows)
    return Recorded(rows, inputs, dict(zip(("double", "town"), model(inputs), strict=True)))


def replayed(function=model, record=None, **options):
    graph = MemoryGraph(function, SPEC.inputs, OUTPUTS)
    options = {"tolerance": (1e-5, 1e-5), **options}
    return replay(ServedModel(SPEC, graph, format="onnx"), record or recorded(), **options)


def refusal(function=model, record=None, **options) -> ExportRefused:
    with pytest.raises(ExportRefused) as caught:
        refuse_outside(replayed(function, record, **options), format="onnx")
    return caught.value


def test_a_graph_that_answers_as_its_model_did_is_not_refused():
    deviations = replayed()
    assert [(one.output, one.difference, one.problem) for one in deviations] == [("double", 0, ""), ("town", 0, "")]
    refuse_outside(deviations, format="onnx")


def test_all_rows_are_replayed_one_by_one_by_threes_and_all_at_once():
    sizes = []

    def count(inputs):
        sizes.append(len(inputs["age"]))
        return model(inputs)

    replayed(count)
    assert sizes == [1] * 7 + [3, 3, 1] + [7]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1, 1, 1, 3]), (2, [1, 1, 1, 3, 2, 1]), (3, [1, 1, 1, 3]), (4, [1, 1, 1, 1, 3, 1, 4])]
)
def test_fewer_than_three_rows_are_repeated_for_a_batch_of_three(count, expected):
    sizes = []

    def note(inputs):
        sizes.append(len(inputs["age"]))
        return model(inputs)

    replayed(note, recorded(ROWS[:count]))
    assert sizes == expected


@pytest.mark.parametrize("count", [1, 2])
def test_a_graph_that_answers_otherwise_in_a_batch_is_refused_by_one_row_which_is_counted_once(count):
    def beside(inputs):
        double, town = model(inputs)
        return [double + np.float32(len(double) == 3), town]

    error = refusal(beside, recorded(ROWS[:count]), first_row=5)
    assert error.row in range(5, 5 + count)
    assert f"(rows outside of the tolerance: {count})" in str(error)


def test_a_wrong_answer_is_refused_with_format_output_row_and_both_values():
    def wrong(inputs):
        double, town = model(inputs)
        return [np.where(inputs["age"] == 4, np.float32(8.5), double), town]

    error = refusal(wrong, first_row=100)
    assert (error.format, error.output, error.row, error.expected, error.got) == ("onnx", "double", 104, 8.0, 8.5)
    assert str(error) == (
        "format 'onnx', output 'double', row 104: the graph returned 8.5, the model returned 8.0: they differ by "
        "0.5, and the tolerance allows 9e-05 (rows outside of the tolerance: 1)"
    )


def test_the_output_that_is_farthest_outside_is_named():
    def wrong(inputs):
        return [model(inputs)[0] + np.float32(0.5), inputs["town"] + 100]

    assert refusal(wrong).output == "town"


def test_a_shape_that_is_wrong_in_some_batches_only_is_refused_with_its_row():
    def wrong(inputs):
        double, town = model(inputs)
        return [double if inputs["age"][0] != 6 else double.repeat(2), town]

    assert refusal(wrong, first_row=10).row == 16


def test_a_graph_of_a_fixed_batch_size_is_refused_in_its_own_words():
    def fixed(inputs):
        if len(inputs["age"]) != 7:
            raise ValueError("Got: 1 Expected: 7")
        return model(inputs)

    error = refusal(fixed)
    assert (error.format, error.row) == ("onnx", 0)
    assert str(error) == (
        "format 'onnx': the graph fails on a batch of 1, starting with row 0: ValueError: Got: 1 Expected: 7"
    )


def test_a_graph_whose_answer_depends_on_the_rows_beside_it_is_refused():
    def centred(inputs):
        return [inputs["age"] * 2 - inputs["age"].mean(), inputs["town"]]

    inputs = SPEC.encode(ROWS)
    record = Recorded(ROWS, inputs, dict(zip(("double", "town"), centred(inputs), strict=True)))
    error = refusal(centred, record)
    assert error.output == "double"
    words = f"; only in batches of 1 and 3, and not of {len(ROWS)}: the output must not depend on the batch size"
    assert words in str(error)


def test_a_graph_that_is_wrong_in_batches_of_every_size_is_told_of_none():
    assert "batches" not in str(refusal(lambda inputs: [inputs["age"] * 3, inputs["town"]]))


def test_an_input_that_is_not_the_recorded_one_is_refused_bit_for_bit():
    record = recorded([{"age": 0.0, "town": "a"}, {"age": 1.0, "town": "a"}])
    other = replace(record, inputs={**record.inputs, "age": np.array([-0.0, 1.0], dtype=np.float32)})
    error = refusal(record=other)
    assert str(error) == "input 'age', row 0: it is encoded as 0.0, and was -0.0 in training"
    assert (error.row, error.expected, error.got) == (0, -0.0, 0.0)


def test_rows_are_read_from_the_text_that_clients_in_python_and_in_javascript_write(monkeypatch):
    spec = f.Features({"age": f.Numeric(), "town": f.Vocabulary(values=("2", "c")), "more": f.Ids(9, max_length=2)})
    rows = [{"age": 25_000_001.0, "town": 2.0, "more": [3.0, 4]}, {"age": -0.0, "town": "c", "more": []}] * 2
    inputs = spec.encode(rows)
    record = Recorded(rows, inputs, dict(zip(("double", "town"), model(inputs), strict=True)))
    seen = []
    monkeypatch.setattr(replaying, "ItemDecoder", lambda kind: Heard(ItemDecoder(kind), seen))
    graph = MemoryGraph(model, spec.inputs, OUTPUTS)
    replay(ServedModel(spec, graph, format="onnx"), record, tolerance=(0.0, 0.0))
    assert seen[0] == b'{"age": 25000001.0, "town": 2.0, "more": [3.0, 4]}'
    assert seen[4] == b'{"age": 25000001, "town": 2, "more": [3, 4]}'
    assert seen[1] == seen[5] == b'{"age": -0.0, "town": "c", "more": []}'


class Heard:
    """A decoder that keeps what it is given."""

    def __init__(self, decoder, seen):
        self.decoder, self.seen = decoder, seen

    def decode(self, codec, payload):
        self.seen.append(payload)
        return self.decoder.decode(codec, payload)


def test_a_row_that_is_encoded_otherwise_as_javascript_writes_it_is_refused():
    class Cut(f.Features):
        def encode_rows(self, rows):
            return super().encode_rows([{"age": row.age + isinstance(row.age, int), "town": row.town} for row in rows])

    rows = [{"age": float(row["age"]), "town": row["town"]} for row in ROWS]
    with pytest.raises(ExportRefused, match=r"input 'age', row 1: it is encoded as 2\.0, and was 1\.0 in training"):
        replay(
            ServedModel(Cut(SPEC.features), MemoryGraph(model, SPEC.inputs, OUTPUTS), format="onnx"),
            recorded(rows),
            tolerance=(1, 1),
        )


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_an_input_of_another_dtype_than_the_recorded_one_is_refused(dtype):
    record = recorded()
    other = replace(record, inputs={**record.inputs, "town": record.inputs["town"].astype(dtype)})
    assert f"input 'town' is encoded as int64 (1,) in batches of 1, and was {dtype} (1,)" in str(refusal(record=other))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"age": "old", "town": "a"}, "would be rejected as a request"),
        ({"age": 2**53 + 1, "town": "a"}, "row 12 would be rejected as a request"),
        ({"age": 1, "town": "a", "more": 1}, "would be rejected as a request"),
    ],
)
def test_a_recorded_row_that_serving_would_refuse_is_refused(row, said):
    record = recorded()
    rows = [*ROWS[:2], row, *ROWS[3:]]
    assert said in str(refusal(record=replace(record, rows=rows), first_row=10))
