from __future__ import annotations

import dataclasses
import io

import msgspec
import numpy as np
import pytest

from penstock.errors import ConfigError, InvalidItem
from penstock.jobs.inputs import encode_input


class Point(msgspec.Struct):
    x: object


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
    with pytest.raises(InvalidItem, match="the input cannot be submitted") as caught:
        encode_input(value, None)
    assert caught.value.path == path


def test_what_holds_itself_is_told():
    value: list = []
    value.append(value)
    with pytest.raises(InvalidItem, match="nested too deeply, or holds itself"):
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
    with pytest.raises(InvalidItem, match=f"the input is not {content_type}"):
        encode_input(body, content_type)


def test_an_object_is_not_written_as_any_other_type():
    for content_type in ("application/octet-stream", "application/x-npy"):
        with pytest.raises(ConfigError, match=f"give bytes for '{content_type}'"):
            encode_input({"x": 1}, content_type)
