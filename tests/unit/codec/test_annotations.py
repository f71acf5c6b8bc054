"""Which types a stage's annotations mean for one item."""

import functools
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NewType

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from penstock.codec.annotations import (
    alternatives,
    array_kind,
    bytes_kind,
    is_array,
    is_numpy_scalar,
    is_pydantic,
    mentioned,
)
from penstock.codec.numpy_ import declared_dtype
from penstock.codec.schema import Signature, signature, type_name
from penstock.errors import ConfigError, InvalidItem
from rows import each

Celsius = NewType("Celsius", float)


class Single:
    def predict(self, x: float) -> str: ...


class Batched:
    def predict(self, xs: list[float]) -> list[str]: ...


class Whole:
    def preprocess(self, raw: bytes) -> float: ...

    def predict(self, xs: list[float]) -> list[int]: ...

    def postprocess(self, y: int, pre: float) -> str: ...


class Later:
    def predict(self, x: "list[Annotated[int, 'unit']]") -> "Single": ...


class Statics:
    @staticmethod
    def preprocess(x: bytes) -> int: ...

    @classmethod
    def predict(cls, x: int) -> float: ...


class Model(pydantic.BaseModel):
    a: int


def test_a_single_stage_takes_and_gives_what_predict_says():
    assert signature(Single, batched=False) == Signature(float, str)


def test_a_batched_predict_is_read_by_the_element_of_its_lists():
    assert signature(Batched, batched=True) == Signature(float, str)


def test_a_list_stays_a_list_without_a_batch_policy():
    assert signature(Batched, batched=False) == Signature(list[float], list[str])


@pytest.mark.parametrize("batched", [True, False])
def test_the_first_and_last_method_of_the_chain_decide_and_are_per_item(batched):
    assert signature(Whole, batched=batched) == Signature(bytes, str)


def test_annotations_may_be_strings_and_keep_their_extras():
    assert signature(Later, batched=False) == Signature(list[Annotated[int, "unit"]], Single)


def test_static_and_class_methods_have_no_self_to_skip():
    assert signature(Statics, batched=False) == Signature(bytes, float)


def test_a_plain_function_is_a_stage_too():
    def double(x: int) -> int: ...

    def double_all(xs: tuple[int, ...]) -> Sequence[int]: ...

    assert signature(double, batched=False) == Signature(int, int)
    assert signature(double_all, batched=True) == Signature(int, int)


def test_what_is_not_annotated_is_any():
    def bare(x): ...

    assert signature(bare, batched=False) == Signature(Any, Any)
    assert signature(bare, batched=True) == Signature(Any, Any)


def test_a_function_that_hides_its_parameters_takes_anything():
    assert signature(dict.fromkeys, batched=False).result is Any
    assert signature(max, batched=False) == Signature(Any, Any)


def test_a_decorated_method_is_read_through_functools_wraps():
    def traced(function):
        @functools.wraps(function)
        def inner(*args): ...

        return inner

    @traced
    def work(x: int) -> str: ...

    assert signature(work, batched=False) == Signature(int, str)


@pytest.mark.parametrize(
    ("batch", "item"),
    [
        (list, Any),
        (tuple, Any),
        (Any, Any),
        (typing.List[int], int),  # noqa: UP006
        (Iterable[str], str),
        (tuple[int, ...], int),
        (Annotated[list[int], "rows"], int),
        (list[int] | tuple[str, ...], int | str),
        (list[NDArray[np.int8]], NDArray[np.int8]),
        (msgspec.Raw, Any),
    ],
)
def test_the_element_of_a_batch(batch, item):
    def predict(xs: batch) -> batch: ...

    assert signature(predict, batched=True) == Signature(item, item)


@pytest.mark.parametrize("batch", [int, str, bytes, dict[str, int], set[int], None, list[int] | None])
def test_a_batched_predict_annotated_with_one_item_is_refused(batch):
    def predict(xs: batch): ...

    with pytest.raises(ConfigError, match=r"predict takes a batch: annotate it as list\[T\]"):
        signature(predict, batched=True)


@pytest.mark.parametrize("array", [np.ndarray, NDArray[np.float32]])
def test_an_array_of_results_has_arrays_in_it(array):
    def predict(xs: list[int]) -> array: ...

    assert signature(predict, batched=True) == Signature(int, *alternatives(array))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (np.ndarray, "list[np.ndarray], got `ndarray`"),
        (NDArray[np.float32], "list[np.ndarray], got `ndarray[float32]`"),
        (list[NDArray[np.int8]] | NDArray[np.int8], "list[np.ndarray], got `ndarray[int8]`"),
    ],
)
def test_a_batch_of_items_annotated_as_one_array_is_refused_for_it_comes_as_a_list(batch, words):
    def predict(xs: batch): ...

    told = f"predict receives a batch as a list: annotate it as {words}; use np.stack to make one array of the list"
    with pytest.raises(ConfigError, match=re.escape(told)):
        signature(predict, batched=True)


def test_a_batched_result_that_is_no_batch_is_refused():
    class Stage:
        def predict(self, xs: list[int]) -> float: ...

    with pytest.raises(ConfigError, match=r"Stage.predict returns a batch: .* got `float`"):
        signature(Stage, batched=True)


def test_a_tuple_of_fixed_length_is_no_batch():
    def predict(xs: tuple[int, str]): ...

    with pytest.raises(ConfigError, match=r"`tuple\[int, str\]` cannot be: write tuple\[T, ...\]"):
        signature(predict, batched=True)


def test_invalid_item_in_a_results_place_is_not_part_of_its_type():
    class TooLong(InvalidItem): ...

    def one(x) -> str | InvalidItem: ...

    def many(xs) -> list[str | TooLong | None]: ...

    def never(x) -> InvalidItem | TooLong: ...

    def either(xs) -> list[int] | InvalidItem: ...

    assert signature(one, batched=False).result is str
    assert signature(many, batched=True).result == str | None
    assert signature(never, batched=False).result is Any
    assert signature(either, batched=True).result is int


def test_a_class_without_predict_is_refused_by_name():
    class Empty: ...

    with pytest.raises(ConfigError, match="Empty has no method `predict`"):
        signature(Empty, batched=False)


def test_a_predict_without_a_parameter_is_refused():
    class NoItem:
        def predict(self, *, x: int): ...

    with pytest.raises(ConfigError, match=r"NoItem\.predict needs a parameter for the item"):
        signature(NoItem, batched=False)


def test_an_annotation_that_cannot_be_resolved_is_named_with_its_class_and_method():
    class Torn:
        def predict(self, x: "Tensor") -> int: ...  # noqa: F821

    with pytest.raises(ConfigError, match=r"Torn\.predict: cannot resolve the annotation 'Tensor' of 'x'"):
        signature(Torn, batched=False)


def test_an_annotation_that_raises_is_a_config_error_too():
    class Odd:
        def predict(self, x: "1 / 0"): ...

    with pytest.raises(ConfigError, match="division by zero"):
        signature(Odd, batched=False)


def test_annotations_that_are_not_asked_for_need_not_resolve():
    class Late:
        def predict(self, xs: list[int], extra: "Unknown" = None) -> "Unknown": ...  # noqa: F821

        def postprocess(self, y: "Unknown", pre: "Unknown") -> int: ...  # noqa: F821

    assert signature(Late, batched=True) == Signature(int, int)


@each(
    ("type_", "name"),
    [
        (Any, "Any"),
        (None, "None"),
        (int, "int"),
        (list[float], "list[float]"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (int | None, "int | None"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Literal["a", 1], "Literal['a', 1]"),
        (Annotated[int, "x"], "int"),
        (Celsius, "float"),
        (np.ndarray, "ndarray"),
        (NDArray[np.float32], "ndarray[float32]"),
        (NDArray[Any], "ndarray"),
        (np.float32, "float32"),
        (Single, "Single"),
        ("Later", "'Later'"),
    ],
)
def test_type_names_are_what_a_user_would_write(type_, name):
    assert type_name(type_) == name


def test_a_local_class_is_named_without_its_function():
    class Local: ...

    assert type_name(Local) == "Local"


def test_unions_new_types_and_annotated_are_looked_through():
    assert alternatives(Annotated[int | Annotated[Celsius, 1], 2]) == (int, float)
    assert list(mentioned(list[Annotated[Celsius, 1]])) == [list[Annotated[Celsius, 1]], float]


def test_type_aliases_are_looked_through():
    assert alternatives(TypeAliasType("Alias", int | Annotated[str, 1])) == (int, str)


def test_the_arguments_of_an_alias_take_their_places_in_what_it_stands_for():
    # From Python 3.12 on the NDArray of numpy 2.5 is one like Array.
    Key, Value, Number = typing.TypeVar("Key"), typing.TypeVar("Value"), typing.TypeVar("Number", bound=np.generic)
    Turned = TypeAliasType("Turned", dict[Value, list[Key]], type_params=(Key, Value))
    Array = TypeAliasType("Array", np.ndarray[Any, np.dtype[Number]], type_params=(Number,))
    assert alternatives(Turned[int, str] | None) == (dict[str, list[int]], type(None))
    assert is_array(Array[np.float32])
    assert type_name(Array[np.float32]) == "ndarray[float32]"
    assert declared_dtype(Array[np.float32]).name == "float32"


def test_an_alias_of_any_number_of_types_is_left_as_it_is():
    Many = typing.TypeVarTuple("Many")
    Row = TypeAliasType("Row", tuple[*Many], type_params=(Many,))
    assert alternatives(Row[int, str]) == (Row[int, str],)


def test_kinds_of_types_are_told_apart():
    assert bytes_kind(bytes | None) is bytes
    assert bytes_kind(Annotated[memoryview, 1]) is memoryview
    assert bytes_kind(str) is None
    assert type_name(array_kind(NDArray[np.int8] | None)) == "ndarray[int8]"
    assert array_kind(list[np.ndarray]) is None
    assert is_array(np.ndarray)
    assert not is_array(np.float32)
    assert is_numpy_scalar(np.float32)
    assert not is_numpy_scalar(float)
    assert is_pydantic(Model)
    assert not is_pydantic(Model(a=1))
    assert not is_pydantic(dict)
