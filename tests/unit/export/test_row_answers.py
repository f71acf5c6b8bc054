"""Answers as objects of outputs, and their type."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from penstock.codec.schema import json_schema
from penstock.errors import ArtifactInvalid
from penstock.export.row_answers import answer_type, row_answers
from penstock.features.tensors import TensorSpec


def test_an_answer_has_every_output_without_its_batch_axis():
    found = row_answers(
        {
            "score": np.array([0.5, 0.25], np.float32),
            "top-2": np.array([[1, 2], [2**62 + 1, 4]]),
            "label": np.array(["a", "é"], object),
            "sure": np.array([True, False]),
        },
        rows=2,
    )
    assert found == [
        {"score": 0.5, "top-2": [1, 2], "label": "a", "sure": True},
        {"score": 0.25, "top-2": [2**62 + 1, 4], "label": "é", "sure": False},
    ]
    assert type(found[0]["sure"]) is bool


@pytest.mark.parametrize("array", [np.zeros((3, 2)), np.zeros(()), np.zeros((0, 2))])
def test_an_output_without_a_row_for_each_row_of_the_batch_is_told_by_name(array):
    with pytest.raises(ArtifactInvalid, match=r"output 'score' of the graph has the shape \(.*\) for a batch of 2"):
        row_answers({"label": np.zeros(2), "score": array}, rows=2)


@pytest.mark.parametrize(
    ("dtype", "shape", "schema"),
    [
        ("float32", (), {"type": "number"}),
        ("float16", (3,), {"type": "array", "items": {"type": "number"}}),
        ("int64", (2, None), {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        ("uint8", (), {"type": "integer"}),
        ("bool", (), {"type": "boolean"}),
        ("str", (), {"type": "string"}),
    ],
)
def test_the_type_of_an_output_follows_its_dtype_and_its_axes(dtype, shape, schema):
    kind = answer_type("my-model", [TensorSpec("top-2", dtype, shape)], None)
    _, components = json_schema(kind)
    told = components["MyModelAnswer"]["properties"]["top-2"]
    assert told.pop("description").startswith(dtype)
    assert told == schema


def test_the_type_tells_the_classes():
    kind = answer_type("1", [TensorSpec("probabilities", "float32", (2,))], ["no", "yes"])
    _, components = json_schema(kind)
    (told,) = [component["properties"]["probabilities"]["description"] for component in components.values()]
    assert told == "float32, shape [2]; the classes are 'no', 'yes'"


def test_an_explained_answer_may_tell_what_was_not_found_and_its_type_says_so():
    found = row_answers({"y": np.array([1.0, 2.0])}, rows=2, missing=[{}, {"user": 1}])
    assert found == [{"y": 1.0}, {"y": 2.0, "_missing": {"user": 1}}]
    kind = answer_type("m", [TensorSpec("y", "float64")], None, explained=True)
    assert msgspec.to_builtins([msgspec.convert(answer, kind) for answer in found]) == found
    _, components = json_schema(kind)
    told = components["MAnswer"]
    assert told["required"] == ["y"]
    assert told["properties"]["_missing"] == {
        "description": "how many distinct ids of this item are not in a table, by the table's name; absent where all "
        "are there",
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }


def test_an_answer_is_of_its_type():
    kind = answer_type("m", [TensorSpec("a b", "float32"), TensorSpec("c", "int64", (1,))], None)
    assert msgspec.convert({"a b": 1.5, "c": [2]}, kind)
