import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.export.exporter import ModelAnswer
from penstock.export.naming import describe_outputs, name_outputs, split_outputs
from penstock.features.tensors import TensorSpec

ONE = np.zeros((4, 2), np.float32)


def answer(count=1, **options):
    return ModelAnswer([ONE] * count, **options)


@dataclasses.dataclass
class Fields:
    loss: object
    logits: object


class Pair(NamedTuple):
    low: object
    high: object


@pytest.mark.parametrize(
    ("value", "parts", "names"),
    [
        (1, [1], None),
        ((1, 2), [1, 2], None),
        ([1], [1], None),
        ({"b": 1, "a": 2}, [1, 2], ("b", "a")),
        ({"b": 1, "a": None}, [1], ("b",)),
        (Fields(None, 2), [2], ("logits",)),
        (Pair(1, 2), [1, 2], ("low", "high")),
        (Fields, [Fields], None),
    ],
)
def test_a_model_s_value_is_split_into_its_outputs(value, parts, names):
    assert split_outputs(value) == (parts, names)


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="a dict with the key 3; the name of an output must be a string"):
        split_outputs({3: 1})


@pytest.mark.parametrize(
    ("answered", "given", "names"),
    [
        (answer(), None, ("output",)),
        (answer(2), None, ("output_0", "output_1")),
        (answer(2), ["a", "b"], ("a", "b")),
        (answer(2, names=("b", "a")), None, ("b", "a")),
        (answer(2, names=("b", "a")), ["b", "a"], ("b", "a")),
        (answer(2, defaults=("label", "probabilities")), None, ("label", "probabilities")),
        (answer(2, defaults=("label", "probabilities")), ["class", "of"], ("class", "of")),
    ],
)
def test_an_output_has_its_own_name_or_the_given_one_or_a_default(answered, given, names):
    assert name_outputs(answered, given) == names


@pytest.mark.parametrize(
    ("answered", "given", "reason"),
    [
        (answer(0), None, "returns nothing"),
        (answer(2), ["a"], "has 1 names, but the model has 2 outputs"),
        (answer(2, names=("b", "a")), ["a", "b"], "the model names its outputs itself: b, a; leave outputs= out"),
        (answer(names=("_a",)), None, "'_a': names that start with `_` are reserved"),
        (answer(), [""], "not empty, got ''"),
        (answer(), ["a\n"], "must be printable"),
        (answer(), [1], "must be printable .*, got 1"),
        (answer(2), ["a", "a"], "two outputs have the name 'a'"),
    ],
)
def test_names_that_cannot_be_are_refused(answered, given, reason):
    with pytest.raises(ConfigError, match=reason):
        name_outputs(answered, given)


def test_outputs_are_described_without_their_batch_axis():
    text = np.array(["a", "b", "c", "d"], dtype=object)
    arrays = [ONE, np.zeros(4, np.int64), np.zeros((4, 1, 3), bool), text, text.astype("U1")]
    assert describe_outputs("abcde", arrays, 4) == (
        TensorSpec("a", "float32", (2,)),
        TensorSpec("b", "int64", ()),
        TensorSpec("c", "bool", (1, 3)),
        TensorSpec("d", "str", ()),
        TensorSpec("e", "str", ()),
    )


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.float32(1), r"'a' has the shape \[\] for 4 rows: its first axis must be the batch"),
        (np.zeros(3), r"'a' has the shape \[3\] for 4 rows"),
        (np.zeros(4, np.complex64), "'a' has the dtype complex64, which JSON does not support"),
    ],
)
def test_outputs_without_a_row_for_each_row_are_refused(array, reason):
    with pytest.raises(ConfigError, match=reason):
        describe_outputs(["a"], [np.asarray(array)], 4)
