from __future__ import annotations

import dataclasses
import io
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, InvalidItem
from penstock.jobs.inputs import encode_input, encode_job_input, is_same_input


class Point(msgspec.Struct):
    x: object


class Fixed(msgspec.Struct, frozen=True):
    y: int
    x: int


@dataclasses.dataclass
class Pair:
    left: object


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"x": 1}, b'{"x":1}'),
        (None, b"null"),
        ([None, "null"], b'[null,"null"]'),
        (np.float32(1.5), b"1.5"),
        ({"a": np.float32(0.3), "b": [np.float16(0.7)]}, b'{"a":0.3,"b":[0.7]}'),
        (np.longdouble(0.3), b"0.3"),
        ({"x": np.arange(3)}, b'{"x":[0,1,2]}'),
        (Point(Pair(2)), b'{"x":{"left":2}}'),
    ],
)
def test_an_object_is_written_as_json(value, body):
    assert encode_input(value, None) == (body, "application/json")


def test_an_object_may_be_written_as_messagepack():
    assert encode_input([1], "application/x-msgpack") == (b"\x91\x01", "application/x-msgpack")


@pytest.mark.parametrize("value", [b"\0a", bytearray(b"\0a"), memoryview(b"\0a")])
def test_bytes_stay_as_they_are(value):
    assert encode_input(value, None) == (b"\0a", "application/octet-stream")
    assert encode_input(value, "application/x-npy") == (b"\0a", "application/x-npy")


def test_an_array_is_npy_and_may_have_nan():
    array = np.array([[1.0, np.nan]])
    body, content_type = encode_input(array, None)
    assert content_type == "application/x-npy"
    assert np.array_equal(np.load(io.BytesIO(body)), array, equal_nan=True)


def test_an_array_may_be_written_as_json():
    assert encode_input(np.arange(2), "application/json; charset=utf-8").body == b"[0,1]"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"a": [None, {"b": float("inf")}], "c": float("nan")}, "$.a[1].b"),
        ([np.array([1.0, -np.inf])], "$[0][1]"),
        (Point(float("nan")), "$.x"),
    ],
)
def test_a_nan_is_told_with_its_place(value, path):
    with pytest.raises(InvalidItem, match="a NaN or an infinity") as caught:
        encode_input(value, None)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "$"),
        ({"a": [1, {"b": object()}]}, "$.a[1].b"),
        ({"a": {1j: 2}}, "$.a"),
        (Point((1, Pair(object()))), "$.x[1].left"),
    ],
)
def test_what_cannot_be_written_is_told_with_its_place(value, path):
    with pytest.raises(InvalidItem, match="cannot encode the input") as caught:
        encode_input(value, None)
    assert caught.value.path == path


def test_what_holds_itself_is_told():
    value: list = []
    value.append(value)
    with pytest.raises(InvalidItem, match="nested too deeply, or contains itself"):
        encode_input(value, None)


def test_an_array_of_objects_is_no_input():
    with pytest.raises(InvalidItem, match=r"has no `\.npy` form without pickle"):
        encode_input(np.array([object()]), None)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{", "application/json"),
        (b"NaN", "application/json"),
        (b"", "application/json"),
        (b"\x91", "application/msgpack"),
    ],
)
def test_bytes_that_are_not_what_they_are_called_are_told(body, content_type):
    with pytest.raises(InvalidItem, match=f"the input is not valid {content_type}"):
        encode_input(body, content_type)


def test_an_input_that_begins_with_a_byte_order_mark_is_told_so():
    with pytest.raises(InvalidItem, match="the input is not valid application/json: the body begins with a UTF-8"):
        encode_input(b"\xef\xbb\xbf{}", "application/json")


def test_an_object_is_not_written_as_any_other_type():
    for content_type in ("application/octet-stream", "application/x-npy"):
        with pytest.raises(ConfigError, match=f"give bytes for '{content_type}'"):
            encode_input({"x": 1}, content_type)


SAME = [
    ({"b": 1, "a": [2.5, "x"]}, b'{"a": [2.50, "\\u0078"], "b": 1}', None),
    ({10: 1, 2: 2}, b'{"2":2,"10":1}', None),
    (Point(Pair(None)), b'{ "x": {"left": null} }', None),
    ({0, 8}, b"[0,8]", None),
    ({"x": {"a"}, 1: "y"}, b'{"1":"y","x":["a"]}', None),
    ({"b": 1, "a": 2}, b"\x82\xa1a\x02\xa1b\xcc\x01", "application/msgpack"),
    ({3: 1, "a": 2}, b"\x82\xa1a\x02\x03\x01", "application/msgpack"),
    (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), None),
]
"""Two inputs that stand for the same value, and their media type."""


@pytest.mark.parametrize(("one", "other", "content_type"), SAME)
def test_inputs_that_stand_for_the_same_value_have_the_same_canonical_form(one, other, content_type):
    first = encode_job_input(one, content_type)
    second = encode_job_input(other, first.content_type)
    assert first.canonical == second.canonical
    assert is_same_input(one, first.body, second.body, first.content_type)


@pytest.mark.parametrize(
    ("one", "other"),
    [({0, 8}, {8, 0}), ({"a", 1, None}, {None, 1, "a"}), ({(1, "a"), (1, None)}, {(1, None), (1, "a")})],
)
def test_the_order_in_which_a_set_was_filled_makes_no_difference(one, other):
    first, second = encode_job_input({"x": one}, None), encode_job_input({"x": other}, None)
    assert first == second
    turned = b'{"x":' + msgspec.json.encode(list(reversed(msgspec.json.decode(first.body)["x"]))) + b"}"
    assert is_same_input({"x": one}, first.body, turned, "application/json")


def test_names_stay_in_their_order_where_a_set_beside_them_is_put_in_order():
    value = {"b": {8, 0}, "a": [{"d": {frozenset("x")}, "c": 1}], "Z": {Fixed(2, 1)}}
    assert encode_job_input(value, None).body == b'{"b":[0,8],"a":[{"d":[["x"]],"c":1}],"Z":[{"y":2,"x":1}]}'


@pytest.mark.parametrize(
    ("one", "other", "content_type"),
    [
        ([1, 2], [2, 1], None),
        (1, 1.0, None),
        (1, True, None),
        ({"x": 1}, {"x": None}, None),
        ({1: 2}, {"1": 2}, "application/msgpack"),
        ({"x": {1, "a"}}, {"x": {1, "b"}}, None),
        (np.arange(2), np.arange(2.0), None),
        (np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2).T, None),
        (b"\0", b"\1", "application/octet-stream"),
    ],
)
def test_inputs_of_different_values_have_different_canonical_forms(one, other, content_type):
    first, second = encode_job_input(one, content_type), encode_job_input(other, content_type)
    assert first.canonical != second.canonical
    assert not is_same_input(one, first.body, second.body, first.content_type)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=plain)
def test_an_object_and_any_text_of_it_have_the_same_canonical_form(value):
    def turned(part):
        if isinstance(part, dict):
            return {name: turned(part[name]) for name in reversed(list(part))}
        return [turned(each) for each in part] if isinstance(part, list) else part

    canonical = encode_job_input(value, None).canonical
    text = json.dumps(turned(value), indent=1).encode()
    assert encode_job_input(text, "application/json").canonical == canonical
    assert encode_job_input(canonical, "application/json") == (canonical, "application/json", canonical)


def test_what_is_no_array_and_what_is_nested_too_deeply_to_be_put_in_order_is_compared_as_bytes():
    array = b"\x93NUMPY\x01\x00\x76\x00{'fortran_order': True"
    assert encode_job_input(array, "application/x-npy").canonical == array
    deep: object = {1, "a"}
    for _ in range(600):
        deep = [deep]
    body, _, canonical = encode_job_input(deep, None)
    assert canonical == body
    deep = {8, 0}
    for _ in range(600):
        deep = [deep]
    assert encode_job_input(deep, None).canonical == b"[" * 600 + b"[0,8]" + b"]" * 600
