"""Results to bytes, and results that have none."""

import threading
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder, ResultMismatch
from penstock.codec.formats import Codec
from penstock.codec.pickle_ import dumps
from penstock.errors import ConfigError, InvalidItem
from rows import each

NAN, INF = float("nan"), float("inf")


class Score(msgspec.Struct):
    label: str
    value: float


class Tensor:
    def tolist(self): ...

    def numpy(self): ...


class Series:
    def tolist(self): ...


class Lazy:
    def __array__(self): ...


class Listed(msgspec.Struct, array_like=True, tag="listed"):
    x: int


class Tagged(msgspec.Struct, tag=7, tag_field="kind", rename="upper"):
    x: int
    y: int | msgspec.UnsetType = msgspec.UNSET


class Vector(msgspec.Struct):
    values: NDArray[np.float32]
    names: list[str] = []


class Loose(msgspec.Struct):
    anything: Any


class Level(Enum):
    LOW = 1


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Box:
    width: int


class Plain:
    pass


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("do not pickle me")


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_an_error_calls_what_is_written_as_it_was_told(value):
    assert str(failure(Codec.JSON, value)).startswith("the result ")
    with pytest.raises(EncodeFailed, match=r"^the input "):
        ItemEncoder(Any, subject="the input").encode(Codec.JSON, value)


def failure(codec: Codec, value: Any, result_type: Any = Any, **options) -> EncodeFailed:
    with pytest.raises(EncodeFailed) as caught:
        ItemEncoder(result_type, **options).encode(codec, value)
    return caught.value


def test_results_are_written_in_each_format():
    encoder = ItemEncoder(Any)
    assert encoder.encode(Codec.JSON, Score("a", 1.5)) == b'{"label":"a","value":1.5}'
    assert msgspec.msgpack.decode(encoder.encode(Codec.MSGPACK, {"a": b"x"})) == {"a": b"x"}
    assert ItemDecoder(Any).decode(Codec.PICKLE, encoder.encode(Codec.PICKLE, {1, 2})) == {1, 2}


def test_raw_results_are_the_bytes_themselves():
    encoder = ItemEncoder(bytes)
    value = b"raw"
    assert encoder.encode(Codec.RAW, value) is value
    assert b"".join(encoder.encode(Codec.RAW, bytearray(value))) == value
    (view,) = encoder.encode(Codec.RAW, memoryview(value))
    assert view.obj is value


@pytest.mark.parametrize(
    "value", [np.arange(4, dtype=np.int32), np.arange(8, dtype=np.int16)[::2], np.zeros((0, 2)), np.array(1.5)]
)
def test_a_raw_view_counts_in_bytes_whatever_it_views(value):
    segments = ItemEncoder(memoryview).encode(Codec.RAW, value.data)
    assert sum(map(len, segments)) == value.nbytes
    assert b"".join(segments) == value.tobytes()


@pytest.mark.parametrize("value", ["text", 5, None, [b"a"]])
def test_what_is_not_bytes_is_not_written_raw(value):
    assert "cannot be written as RAW: expected bytes" in str(failure(Codec.RAW, value))


@pytest.mark.parametrize(
    ("codec", "value"),
    [(Codec.JSON, "\ud800"), (Codec.MSGPACK, 2**64), (Codec.JSON, {(1, 2): 3}), (Codec.JSON, iter([1]))],
)
def test_values_outside_a_format_are_refused(codec, value):
    assert f"cannot be written as {codec.name}" in str(failure(codec, value))


def test_a_format_may_be_given_by_its_number_as_frames_carry_it():
    assert ItemEncoder(Any).encode(1, [1]) == b"[1]"
    assert ItemDecoder(Any).decode(1, b"[1]") == [1]
    assert "written as JSON" in str(failure(1, {1, object()}))


@pytest.mark.parametrize("codec", [Codec.JSON, Codec.MSGPACK])
def test_a_result_that_holds_itself_is_refused(codec):
    loop: list[Any] = []
    loop.append(loop)
    assert "contains itself" in str(failure(codec, loop))


def test_an_unpicklable_result_says_why():
    found = failure(Codec.PICKLE, Unpicklable())
    assert str(found) == ("the result cannot be written as PICKLE: `Unpicklable` cannot be pickled: do not pickle me")
    failure(Codec.PICKLE, lambda: None)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (NAN, "$"),
        ([1.0, 2.0, 3.0, INF], "$[3]"),
        ({"a": {"b": (1, -INF)}}, "$.a.b[1]"),
        (Score("x", NAN), "$.value"),
        ([None, "null", [NAN]], "$[2][0]"),
        ([10**400, NAN], "$[1]"),
        ({"a": 1, "b": None, "c": NAN}, "$.c"),
    ],
)
def test_nan_fails_a_json_result_and_names_its_place(value, path):
    assert f"at `{path}`, which JSON does not support" in str(failure(Codec.JSON, value))


def test_nan_becomes_null_when_allowed():
    assert ItemEncoder(Any, allow_nan=True).encode(Codec.JSON, [NAN, INF, 1.0]) == b"[null,null,1.0]"


def test_nan_is_a_number_in_messagepack_results():
    assert ItemEncoder(Any).encode(Codec.MSGPACK, NAN) == msgspec.msgpack.encode(NAN)


@pytest.mark.parametrize(
    "value",
    [None, [None, 1.5], "null", {"null": 1}, [[None], [1.0, 2.0]], {"a": msgspec.Raw(b"null")}, {NAN: None}],
)
def test_an_honest_null_is_no_nan(value):
    assert b"null" in ItemEncoder(Any).encode(Codec.JSON, value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
)
def test_json_is_written_exactly_when_there_is_no_nan(value):
    def holds_nan(value: Any) -> bool:
        if isinstance(value, float):
            return value != value or value in (INF, -INF)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return any(map(holds_nan, inner))

    if holds_nan(value):
        failure(Codec.JSON, value)
    else:
        assert ItemDecoder(Any).decode(Codec.JSON, ItemEncoder(Any).encode(Codec.JSON, value)) == value


GOOD = [
    (Any, object),
    (float, 1.5),
    (float, 1),
    (float, np.float32(1.5)),
    (int, np.int64(3)),
    (bool, np.bool_(True)),
    (list[float], [np.float32(1), 2.0]),
    (list[float], (1.0, 2.0)),
    (list[float], np.arange(3.0)),
    (list[list[int]], np.zeros((2, 2), np.int64)),
    (list[list[float]], [np.zeros(2), [1.0]]),
    (dict[int, str], {np.int64(1): "a"}),
    (Score, Score("a", np.float64(1))),
    (Score, {"label": "a", "value": 1.0}),
    (Listed, Listed(1)),
    (Tagged, Tagged(1)),
    (Tagged | None, Tagged(1, 2)),
    (Box, Box(1)),
    (Pair, Pair(1, "r")),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (dict[Level, list[Level]], {Level.LOW: [Level.LOW]}),
    (set[int], {1, 2}),
    (bytes, b"x"),
    (str | None, None),
    (np.ndarray, np.zeros(2)),
    (NDArray[np.float32], np.zeros(2, np.float32)),
    (NDArray[np.floating], np.zeros(2, np.float16)),
    (list[NDArray[np.float32]], [np.zeros(2, np.float32)]),
    (Vector, Vector(np.zeros(2, np.float32))),
    (dict[str, Any], {"a": np.zeros(2), "b": Unpicklable}),
    (float, np.array(1.5)),
    (list[np.float32], [np.float32(1), 2.0]),
    (list[Plain], [Plain()]),
    (dict[str, Any], {"a": Box}),
]


@each(("type_", "value"), GOOD)
def test_a_result_of_its_declared_type_passes_the_check(type_, value):
    encoder = ItemEncoder(type_, validate=True)
    encoder.encode(Codec.PICKLE, value)


BAD = [
    (float, "x", "expected `float`, got `str`"),
    (list[float], [1.0, "x"], "expected `float`, got `str` at `$[1]`"),
    (list[int], np.arange(2.0), "expected `int`, got `float` at `$[0]`"),
    (Score, Score("a", "b"), "expected `float`, got `str` at `$.value`"),
    (list[Score], [Score(1, 2.0)], "expected `str`, got `int` at `$[0].label`"),
    (Listed, Listed("x"), "expected `int`, got `str` at `$[1]`"),
    (Tagged, Tagged("x"), "expected `int`, got `str` at `$.X`"),
    (Box, Box("x"), "expected `int`, got `str` at `$.width`"),
    (np.ndarray, [1.0], "expected `ndarray`, got `list`"),
    (NDArray[np.float32], np.zeros(2), "expected an array of `float32`, got `float64`"),
    (Vector, Vector(np.zeros(1)), "expected an array of `float32`, got `float64` at `$.values`"),
    (Vector, Vector([1.0]), "expected `ndarray`, got `list` at `$.values`"),
    (Annotated[int, msgspec.Meta(ge=1)], 0, "expected `int` >= 1"),
    (Colour, "blue", "invalid enum value 'blue'"),
]


@each("codec", [Codec.JSON, Codec.PICKLE])
@each(("type_", "value", "message"), BAD)
def test_a_result_of_another_type_fails_and_says_where(type_, value, message, codec):
    with pytest.raises(ResultMismatch) as caught:
        ItemEncoder(type_, validate=True).encode(codec, value)
    assert str(caught.value).endswith(message)
    assert str(caught.value).startswith("the result is not `")
    assert caught.value.path == (message.split("`")[-2] if " at `" in message else "")
    ItemEncoder(type_).encode(codec, value)  # nothing is checked unless asked


def test_the_check_does_not_change_what_is_sent():
    value = {"label": "a", "value": 1, "more": 2}
    assert ItemEncoder(Score, validate=True).encode(Codec.JSON, value) == ItemEncoder(Any).encode(Codec.JSON, value)


def checked(type_: Any, value: Any) -> Any:
    return ItemDecoder(type_, validate=True).decode(Codec.PICKLE, dumps(value))


def test_a_checked_item_becomes_what_it_would_be_over_http():
    assert checked(Score, {"label": "a", "value": 1}) == Score("a", 1.0)
    assert checked(list[float], [np.float32(1.5)]) == [1.5]
    array = checked(NDArray[np.float32], [1, 2])
    assert array.dtype == np.float32
    assert checked(NDArray[np.float32], np.zeros(2)).dtype == np.float32


def test_a_checked_item_that_is_right_is_left_as_it_is():
    assert checked(list[Level], [Level.LOW]) == [Level.LOW]
    value = Loose({"box": Box(1), "score": Score("a", 1.0)})
    assert checked(Loose, value) == value
    assert checked(dict[str, Any], {"b": Box(1)}) == {"b": Box(1)}
    assert checked(Any, Box("x")) == Box("x")


# an array of another dtype is cast when it is an item, and lists are read as one
BAD_ITEMS = [case for case in BAD if not isinstance(case[1], (np.ndarray, Vector)) and case[0] is not np.ndarray]


@pytest.mark.parametrize(("type_", "value", "message"), BAD_ITEMS)
def test_a_checked_item_of_another_type_is_refused(type_, value, message):
    with pytest.raises(InvalidItem) as caught:
        checked(type_, value)
    assert str(caught.value) == message


def test_a_type_nothing_can_be_checked_against_is_refused_when_the_check_is_asked_for():
    type_ = list[int] | list[str]
    with pytest.raises(ConfigError, match=r"check values against `list\[int\] \| list\[str\]`"):
        ItemEncoder(type_, validate=True)
    with pytest.raises(ConfigError):
        ItemDecoder(type_, validate=True)
    assert ItemEncoder(type_).encode(Codec.JSON, [1]) == b"[1]"


def test_an_array_is_not_a_list_for_an_item():
    with pytest.raises(InvalidItem, match="expected `array`"):
        checked(list[float], np.arange(2.0))


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (Tensor, "; let the stage return its `.tolist()` or `.numpy()`"),
        (Series, "; let the stage return its `.tolist()`"),
        (Lazy, "; let the stage return `numpy.asarray` of it"),
        (threading.Event, ""),
    ],
)
def test_the_refusal_of_an_object_names_its_type_and_what_to_return_instead(kind, instead):
    name = f"{kind.__module__}.{kind.__qualname__}"
    for codec in (Codec.JSON, Codec.MSGPACK):
        with pytest.raises(EncodeFailed) as refused:
            ItemEncoder(Any).encode(codec, {"scores": kind()})
        assert str(refused.value) == (
            f"the result cannot be written as {codec.name}: "
            f"an object of type `{name}` cannot be written as JSON or MessagePack{instead}"
        )


class Buggy(msgspec.Struct):
    x: int

    def __post_init__(self):
        if self.x == 2:
            raise KeyError("two")


def test_a_fault_in_a_check_of_the_results_type_is_told_with_its_class():
    result = Buggy(1)
    result.x = 2
    with pytest.raises(ResultMismatch, match="the result is not `Buggy`: KeyError: 'two'"):
        ItemEncoder(Buggy, validate=True).encode(Codec.JSON, result)
