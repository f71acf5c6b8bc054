"""numpy arrays and scalars on every wire."""

import contextlib
import io
import struct
import tracemalloc
import warnings
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.formats import Codec
from penstock.codec.pickle_ import dumps
from penstock.errors import InvalidItem
from rows import each


class Query(msgspec.Struct):
    vector: NDArray[np.float32]
    mask: np.ndarray | None = None


def decode(type_: Any, codec: Codec, payload):
    return ItemDecoder(type_).decode(codec, payload)


def refusal(type_: Any, codec: Codec, payload) -> InvalidItem:
    with pytest.raises(InvalidItem) as caught:
        decode(type_, codec, payload)
    return caught.value


def from_json(type_: Any, value: Any):
    return decode(type_, Codec.JSON, msgspec.json.encode(value))


def saved(array: np.ndarray, **options) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def npy(fields: str, data: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(fields))
    return b"\x93NUMPY" + bytes([version, 0]) + length + fields.encode("latin1") + data


@each(
    ("type_", "value", "dtype"),
    [
        (np.ndarray, [1.5, 2], np.float64),
        (np.ndarray, [1, 2], np.int64),
        (np.ndarray, [True, False], np.bool_),
        (np.ndarray, [[1, 2], [3, 4]], np.int64),
        (np.ndarray, [], np.float64),
        (np.ndarray, [[], []], np.float64),
        (NDArray[Any], [1.5], np.float64),
        (NDArray[np.float32], [1.5, 2], np.float32),
        (NDArray[np.float16], [1, 2], np.float16),
        (NDArray[np.complex64], [1.5], np.complex64),
        (NDArray[np.uint8], [[0, 255]], np.uint8),
        (NDArray[np.int64], [-(2**63), 2**63 - 1], np.int64),
        (NDArray[np.uint64], [0, 2**64 - 1], np.uint64),
        (NDArray[np.bool_], [True], np.bool_),
        (NDArray[np.floating], [1], np.float64),
        (NDArray[np.integer], [1], np.int64),
        (NDArray[np.number], [1.5], np.float64),
        (np.ndarray[tuple[int, int], np.dtype[np.float32]], [[1]], np.float32),
    ],
)
def test_arrays_are_read_from_lists_with_the_declared_dtype(type_, value, dtype):
    for codec, encode in ((Codec.JSON, msgspec.json.encode), (Codec.MSGPACK, msgspec.msgpack.encode)):
        array = decode(type_, codec, encode(value))
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, np.array(value, dtype))


@each(
    ("type_", "value", "message"),
    [
        (np.ndarray, 5, "expected `array`, got `int`"),
        (np.ndarray, {"a": 1}, "expected `array`, got `object`"),
        (np.ndarray, [1, "x"], "expected `bool | int | float`, got `str` at `$[1]`"),
        (np.ndarray, [1, None], "expected `bool | int | float`, got `null` at `$[1]`"),
        (np.ndarray, [[1, 2], [3]], "expected rows of equal length"),
        (np.ndarray, [[1], 2], "expected `array`, got `int` at `$[1]`"),
        (np.ndarray, [1, [2]], "expected `bool | int | float`, got `array` at `$[1]`"),
        (np.ndarray, [2**70], "number out of range for an array"),
        (NDArray[np.float32], ["1.5"], "expected `float`, got `str` at `$[0]`"),
        (NDArray[np.float32], [True], "expected `float`, got `bool` at `$[0]`"),
        (NDArray[np.float32], [1, 1e300], "number out of range for `float32`"),
        (NDArray[np.complex64], [1e300], "number out of range for `complex64`"),
        (NDArray[np.int32], [1.5], "expected `int`, got `float` at `$[0]`"),
        (NDArray[np.uint8], [0, 256], "expected `int` <= 255 at `$[1]`"),
        (NDArray[np.uint8], [-1], "expected `int` >= 0 at `$[0]`"),
        (NDArray[np.uint64], [2**64], "number out of range for `uint64`"),
        (NDArray[np.bool_], [1], "expected `bool`, got `int` at `$[0]`"),
        (NDArray[np.object_], [1], "an array of `object` cannot be read from lists"),
        (NDArray[np.str_], ["a"], "an array of `<U0` cannot be read from lists"),
    ],
)
def test_lists_that_are_no_such_array_are_refused_with_reason_and_path(type_, value, message):
    assert str(refusal(type_, Codec.JSON, msgspec.json.encode(value))) == message


def test_nesting_beyond_the_axes_of_an_array_is_refused():
    deep = b"[" * 40 + b"1" + b"]" * 40
    assert refusal(np.ndarray, Codec.JSON, deep).reason == "an array has at most 32 axes"
    assert decode(np.ndarray, Codec.JSON, b"[" * 32 + b"1" + b"]" * 32).shape == (1,) * 32


def test_arrays_inside_structs_are_read_and_refused_with_the_whole_path():
    query = from_json(Query, {"vector": [1, 2], "mask": [[True]]})
    assert query.vector.dtype == np.float32
    assert query.mask.tolist() == [[True]]
    found = refusal(list[Query], Codec.JSON, b'[{"vector": [1, "x"]}]')
    assert str(found) == "expected `float`, got `str` at `$[0].vector[1]`"
    assert refusal(Query, Codec.JSON, b'{"vector": 1}').path == "$.vector"


def test_one_long_string_among_many_elements_takes_no_memory():
    payload = msgspec.json.encode(["x" * 100_000] + ["y"] * 1000)
    tracemalloc.start()
    try:
        refusal(np.ndarray, Codec.JSON, payload)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_infinity_in_messagepack_is_not_an_overflow():
    array = decode(NDArray[np.float32], Codec.MSGPACK, msgspec.msgpack.encode([float("inf"), 1.0]))
    assert array.tolist() == [float("inf"), 1.0]


def test_scalars_of_numpy_are_read_from_numbers():
    value = from_json(np.float32, 1.5)
    assert isinstance(value, np.float32)
    assert ItemDecoder(np.float32, validate=True).decode(Codec.PICKLE, dumps(value)) == value
    assert str(refusal(list[np.int8], Codec.JSON, b"[1, 300]")) == "expected `int` <= 127 at `$[1]`"


@each(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        np.arange(10)[::2],
        np.array(3.5),
        np.zeros((0, 3), np.float32),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(["a", "bc"]),
        np.array([b"a"]),
        np.array(["2024-01-01"], "M8[D]"),
        np.arange(3, dtype=">f4"),
        np.float32(2.5),
    ],
)
def test_npy_is_what_numpy_writes_and_reads(array):
    wire = b"".join(ItemEncoder(np.ndarray).encode(Codec.NPY, array))
    assert wire == saved(array)
    back = decode(np.ndarray, Codec.NPY, wire)
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(np.load(io.BytesIO(wire)), array)


def test_npy_is_read_and_written_without_a_copy():
    array = np.arange(100.0)
    head, data = ItemEncoder(np.ndarray).encode(Codec.NPY, array)
    assert np.shares_memory(np.frombuffer(data), array)
    assert len(head) % 64 == 0
    payload = bytearray(head + data)
    back = decode(NDArray[np.float64], Codec.NPY, payload)
    assert np.shares_memory(back, np.frombuffer(payload, np.uint8))
    assert back.flags.writeable
    assert not decode(np.ndarray, Codec.NPY, bytes(payload)).flags.writeable


@pytest.mark.parametrize("version", [2, 3])
def test_later_versions_of_npy_are_read(version):
    fields = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }\n"
    assert decode(np.ndarray, Codec.NPY, npy(fields, b"\1\0\2\0", version)).tolist() == [1, 2]


def test_the_fields_of_an_npy_header_may_come_in_any_order_and_quotes():
    fields = '{"shape":(1,2),"fortran_order":True,"descr":"|u1"}'
    assert decode(np.ndarray, Codec.NPY, npy(fields, b"\1\2")).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("type_", "array", "expected"),
    [
        (NDArray[np.float32], np.array([1.5]), np.array([1.5], np.float32)),
        (NDArray[np.float32], np.array([1]), np.array([1], np.float32)),
        (NDArray[np.float32], np.array([np.inf]), np.array([np.inf], np.float32)),
        (NDArray[np.uint8], np.array([255]), np.array([255], np.uint8)),
        (NDArray[np.floating], np.array([1], np.float16), np.array([1], np.float16)),
        (NDArray[np.integer], np.array([True]), np.array([1])),
    ],
)
def test_an_npy_of_another_dtype_is_cast_where_it_fits(type_, array, expected):
    found = decode(type_, Codec.NPY, saved(array))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("type_", "array", "message"),
    [
        (NDArray[np.float32], np.array([1e300]), "number out of range for `float32`"),
        (NDArray[np.uint8], np.array([256]), "number out of range for `uint8`"),
        (NDArray[np.uint8], np.array([-1]), "number out of range for `uint8`"),
        (NDArray[np.int32], np.array([1.0]), "expected an array of `int32`, got `float64`"),
        (NDArray[np.float32], np.array(["1"]), "expected an array of `float32`, got `<U1`"),
        (NDArray[np.number], np.array(["1"]), "expected an array of `number`, got `<U1`"),
        (NDArray[np.str_], np.array([1]), "expected an array of `str_`, got `int64`"),
    ],
)
def test_an_npy_that_does_not_fit_the_declared_dtype_is_refused(type_, array, message):
    assert str(refusal(type_, Codec.NPY, saved(array))) == message


def test_an_npy_that_claims_a_terabyte_is_refused_before_anything_is_allocated():
    bomb = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (137438953472,), }\n", b"\0" * 8)
    tracemalloc.start()
    try:
        found = refusal(np.ndarray, Codec.NPY, bomb)
        assert found.reason == "the header announces 1099511627776 bytes of array data, the payload has 8"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((10**18 - 1,) * 400, "the header announces 2**63 or more bytes of array data, the payload has 8"),
        ((2**59,), "the header announces 4611686018427387904 bytes of array data, the payload has 8"),
        ((2**30, 2**30), "the header announces 2**63 or more bytes of array data, the payload has 8"),
        ((0, *(10**17,) * 400), "an array without elements has the shape (0, 100"),
    ],
)
def test_a_shape_beyond_all_bounds_is_refused_in_few_words(shape, message):
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
    found = refusal(np.ndarray, Codec.NPY, npy(head, b"" if 0 in shape else b"\0" * 8))
    assert found.reason.startswith(message)
    assert len(found.reason) < 300


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("point", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
def test_text_in_an_npy_that_is_no_unicode_is_refused(order, point):
    head = f"{{'descr': '{order}U2', 'fortran_order': False, 'shape': (2,), }}"
    data = struct.pack(f"{order}4I", 0x61, 0xD7FF, 0x10FFFF, point)
    assert "has an invalid Unicode character" in refusal(np.ndarray, Codec.NPY, npy(head, data)).reason


@pytest.mark.parametrize("order", "<>")
def test_all_other_text_in_an_npy_is_read_and_can_be_written(order):
    words = ["a\ud7ff", "\ue000\U0010ffff", ""]
    array = decode(np.ndarray, Codec.NPY, saved(np.array([words, words]).astype(f"{order}U2").T))
    assert msgspec.json.decode(ItemEncoder(Any).encode(Codec.JSON, array)) == [[word] * 2 for word in words]


def test_objects_in_an_npy_are_never_unpickled():
    found = refusal(np.ndarray, Codec.NPY, saved(np.array([print], object), allow_pickle=True))
    assert found.reason == "the dtype '|O' is not supported in .npy"


HEAD = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }"


@each(
    ("payload", "reason"),
    [
        (b"", "not an .npy file"),
        (b"\x93NUMPY\x01\x00", "not an .npy file"),
        (b"PK\x03\x04" + b"\0" * 20, "not an .npy file"),
        (npy(HEAD, b"\0" * 7), "announces 8 bytes"),
        (npy(HEAD, b"\0" * 9), "announces 8 bytes"),
        (npy(HEAD)[:30], "longer than the payload or than allowed"),
        (npy(HEAD + " " * 10_000, b"\0" * 8), "longer than the payload or than allowed"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 20, "version 9"),
        (npy(""), "not an .npy file"),
        (npy("     "), "the .npy header does not describe a plain array"),
        (npy(HEAD[1:], b"\0" * 8), "the .npy header does not describe a plain array"),
        (npy("{__import__('os').system('x')}", b"\0" * 8), "the .npy header does not describe a plain array"),
        (npy("{'descr': '<f8', 'shape': (1,)}", b"\0" * 8), "the .npy header does not describe a plain array"),
        (npy("{'descr': '<f8', 'fortran_order': False}", b"\0" * 8), "the .npy header does not describe a plain array"),
        (npy("{'fortran_order': False, 'shape': (1,)}", b"\0" * 8), "the .npy header does not describe a plain array"),
        (npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}", b"\0" * 8), "plain array"),
        (npy(HEAD.replace("(1,)", "(1 1,)"), b"\0" * 8), "no valid shape"),
        (npy(HEAD.replace("(1,)", "(,)"), b"\0" * 8), "no valid shape"),
        (npy(HEAD.replace("(1,)", "(-1,)"), b"\0" * 8), "plain array"),
        (npy(HEAD.replace("(1,)", "(" + "1," * 70 + ")"), b"\0" * 8), "maximum supported dimension"),
        (npy(HEAD.replace("(1,)", "(0, 9000000000)")), "without elements has the shape"),
        (npy(HEAD.replace("<f8", "<f3"), b"\0" * 8), "does not exist"),
        (npy(HEAD.replace("<f8", "<V8"), b"\0" * 8), "is not supported in .npy"),
        (npy(HEAD.replace("<f8", "<U0"), b""), "is not supported in .npy"),
        (npy(HEAD.replace("<f8", "<M8[zz]"), b"\0" * 8), "does not exist"),
    ],
)
def test_damaged_npy_payloads_are_refused(payload, reason):
    assert reason in refusal(np.ndarray, Codec.NPY, payload).reason


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_a_damaged_npy_gives_an_array_or_an_invalid_item_and_no_warning(at, damage):
    wire = bytearray(saved(np.arange(8.0)))
    wire[at : at + len(damage)] = damage
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(InvalidItem):
            assert decode(NDArray[np.float32], Codec.NPY, wire).dtype == np.float32


@pytest.mark.parametrize("value", [[1, 2], "text", None, np.array([None]), np.zeros(1, "f4,i4")])
def test_what_is_no_plain_array_is_not_written_as_npy(value):
    with pytest.raises(EncodeFailed, match="the result cannot be written as NPY"):
        ItemEncoder(np.ndarray).encode(Codec.NPY, value)


@each(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.float64(1.5), 1.5),
        (np.longdouble(1.5), 1.5),
        (np.int64(-3), -3),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(7), 7),
        (np.arange(6.0)[::2], [0, 2, 4]),
        (np.array([1.5], np.longdouble), [1.5]),
        ({"a": [np.int8(1)], "b": np.zeros((0,))}, {"a": [1], "b": []}),
        ([np.datetime64("2024-01-02")], ["2024-01-02"]),
        ({np.int64(3): 1}, {"3": 1}),
        (Query(np.zeros(1, np.float32)), {"vector": [0], "mask": None}),
    ],
)
def test_numpy_is_written_as_plain_json(value, expected):
    assert msgspec.json.decode(ItemEncoder(Any).encode(Codec.JSON, value)) == expected


def test_numpy_is_written_as_plain_messagepack():
    wire = ItemEncoder(Any).encode(Codec.MSGPACK, [np.float32(1.5), np.arange(3)])
    assert msgspec.msgpack.decode(wire) == [1.5, [0, 1, 2]]


@pytest.mark.parametrize("value", [np.clongdouble(1), np.array([1j]), np.complex64(1)])
def test_a_number_json_has_no_word_for_is_refused(value):
    with pytest.raises(EncodeFailed, match="JSON"):
        ItemEncoder(Any).encode(Codec.JSON, value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (np.array([1.0, np.nan]), "$[1]"),
        (np.array([[1.0], [np.inf]]), "$[1][0]"),
        (np.float32("nan"), "$"),
        ({"a": None, "b": [0.5, np.float64("-inf")]}, "$.b[1]"),
        ([None, np.arange(3.0), np.array(np.nan)], "$[2]"),
        (Query(np.array([0, np.nan], np.float32)), "$.vector[1]"),
        (np.array([None, float("nan")], object), "$[1]"),
    ],
)
def test_nan_in_numpy_fails_a_json_result_and_names_its_place(value, path):
    with pytest.raises(EncodeFailed) as caught:
        ItemEncoder(Any).encode(Codec.JSON, value)
    assert f"at `{path}`" in str(caught.value)
    assert ItemEncoder(Any, allow_nan=True).encode(Codec.JSON, value)
