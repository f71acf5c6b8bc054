"""Items as bodies of requests, and bodies of answers as results."""

from __future__ import annotations

import importlib.util
import io

import msgspec
import numpy as np
import pytest

from penstock.client import call_bodies
from penstock.client.call_bodies import (
    UnreadableBody,
    join_items,
    read_outcomes,
    read_result_body,
    write_item,
    write_item_of_batch,
)
from penstock.codec.formats import Codec
from penstock.codec.listing import join_outcomes, split_list
from penstock.errors import ConfigError, InvalidItem

JSON, MSGPACK = Codec.JSON, Codec.MSGPACK


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_an_item_is_written_in_the_clients_format_and_the_answer_is_left_to_the_server():
    assert write_item({"x": [1, None]}, JSON) == (b'{"x":[1,null]}', "application/json", "")
    assert write_item([1, "a"], MSGPACK) == (b"\x92\x01\xa1a", "application/msgpack", "")


@pytest.mark.parametrize("item", [b"\0\1", bytearray(b"\0\1"), memoryview(b"\0\1")])
def test_bytes_travel_as_they_are(item):
    assert write_item(item, MSGPACK) == (b"\0\1", "application/octet-stream", "")


def test_an_array_is_a_npy_and_an_array_is_wanted_back():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    body, content_type, accept = write_item(array, MSGPACK)
    assert (content_type, accept) == ("application/x-npy", "application/x-npy, */*;q=0.9")
    assert np.array_equal(np.load(io.BytesIO(body)), array)


def test_numbers_of_numpy_inside_of_an_item_are_numbers():
    assert write_item({"x": np.float32(1.5), "y": np.arange(2)}, JSON).body == b'{"x":1.5,"y":[0,1]}'


@pytest.mark.parametrize(("item", "path"), [({"x": [1, object()]}, "$.x[1]"), ({"x": float("nan")}, "$.x")])
def test_what_cannot_be_written_says_where(item, path):
    with pytest.raises(InvalidItem) as caught:
        write_item(item, JSON)
    assert caught.value.path == path
    with pytest.raises(InvalidItem):
        write_item_of_batch(item, JSON)


@pytest.mark.parametrize("codec", [JSON, MSGPACK])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 70_000])
def test_a_client_batch_is_a_list_that_the_server_splits_into_the_same_items(codec, count):
    items = [write_item_of_batch({"n": number}, codec) for number in range(count)]
    body, content_type, accept = join_items(items, codec)
    assert [bytes(item) for item in split_list(codec, body)] == items
    assert (content_type, accept) == ({JSON: "application/json", MSGPACK: "application/msgpack"}[codec], "")


def test_bytes_and_arrays_in_a_client_batch_are_what_their_format_has():
    assert write_item_of_batch(b"\0\1", JSON) == b'"AAE="'
    assert write_item_of_batch(memoryview(b"\0\1"), MSGPACK) == b"\xc4\x02\0\1"
    assert write_item_of_batch(np.arange(2), JSON) == b"[0,1]"


@pytest.mark.parametrize(
    ("body", "content_type", "result"),
    [
        (b"[1.5]", "application/json", [1.5]),
        (b"5", "Application/JSON; charset=utf-8", 5),
        (b"\x92\x01\xa1a", "application/msgpack", [1, "a"]),
        (b"\x92\x01\xa1a", "application/x-msgpack", [1, "a"]),
        (b"\0\1", "application/octet-stream", b"\0\1"),
    ],
)
def test_a_result_is_read_by_its_media_type(body, content_type, result):
    assert read_result_body(body, content_type) == result


def test_an_array_is_read():
    assert np.array_equal(read_result_body(npy(np.arange(3)), "application/x-npy"), np.arange(3))


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<h1>", "text/html"),
        (b"5", ""),
        (b"5", " "),
        (b"5", "application/json; charset=latin-1"),
        (b"5", "application/j\u00f6son"),
        (b"{", "application/json"),
        (b'"\xff"', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"\xc1", "application/msgpack"),
        (b"\x93NUMPY", "application/x-npy"),
        (b"", "application/x-npy"),
    ],
)
def test_what_is_no_result_is_told(body, content_type):
    with pytest.raises(UnreadableBody):
        read_result_body(body, content_type)


def test_other_media_types_are_bytes_where_anything_may_come():
    assert read_result_body(b"RIFF", "audio/wav", otherwise_bytes=True) == b"RIFF"
    assert read_result_body(b"x", "", otherwise_bytes=True) == b"x"
    with pytest.raises(UnreadableBody):
        read_result_body(b"{", "application/json", otherwise_bytes=True)


def test_an_array_without_numpy_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert call_bodies.importlib.util is importlib.util
    with pytest.raises(ConfigError, match=r"penstock\[numpy\]"):
        read_result_body(npy(np.arange(3)), "application/x-npy")


@pytest.mark.parametrize("codec", [JSON, MSGPACK])
def test_the_outcomes_of_the_server_are_read(codec):
    encode = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}[codec]
    body = join_outcomes(codec, [(encode(5), None), (None, {"status": 422})])
    media = {JSON: "application/json", MSGPACK: "application/msgpack"}[codec]
    assert list(read_outcomes(body, media, 2)) == [{"result": 5}, {"error": {"status": 422}}]


@pytest.mark.parametrize(
    "body", [b"5", b"{}", b'{"outcomes": 5}', b'{"outcomes": [{"result": 1}]}', b'{"outcomes": [{"result": 1}, {}]}',
             b'{"outcomes": [{"result": 1}, {"error": "x"}]}', b'{"outcomes": [{"result": 1}, 5]}', b"{"],
)  # fmt: skip
def test_other_outcomes_are_told(body):
    with pytest.raises(UnreadableBody):
        read_outcomes(body, "application/json", 2)
