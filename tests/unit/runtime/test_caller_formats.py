"""What callers in process send to workers from outside, and what they make of the results."""

from __future__ import annotations

import math
import threading

import msgspec
import numpy as np
import pytest

from penstock.codec import numpy_, pickle_
from penstock.codec.formats import Codec
from penstock.errors import InvalidItem, StageFailed
from penstock.runtime.caller_formats import CallerFormats, pack_item
from penstock.runtime.external_spec import remote
from penstock.runtime.spec import stage


class Point(msgspec.Struct):
    x: float


def formats(*accepts, allow_nan=False, **types):
    return CallerFormats.of([remote("out", accepts=accepts or ("json", "msgpack"), **types)], allow_nan=allow_nan)


def test_a_service_of_stages_of_ours_speaks_pickle():
    found = CallerFormats.of([stage(math.sqrt)], allow_nan=False)
    assert (found.codec_in, found.codec_out) == (Codec.PICKLE, Codec.PICKLE)
    assert found.pack is pack_item
    assert found.unpack(pickle_.dumps({1j})) == {1j}


def test_each_end_speaks_what_its_own_stage_does():
    outside, inside = remote("out", accepts=("json",)), stage(math.sqrt)
    first = CallerFormats.of([outside, inside], allow_nan=False)
    assert (first.codec_in, first.codec_out) == (Codec.JSON, Codec.PICKLE)
    assert (first.pack(4), first.unpack(pickle_.dumps(2.0))) == (b"4", 2.0)
    last = CallerFormats.of([inside, outside], allow_nan=False)
    assert (last.codec_in, last.codec_out) == (Codec.PICKLE, Codec.JSON)
    assert (pickle_.loads(last.pack({1j})), last.unpack(b"[1]")) == ({1j}, [1])


def test_items_are_written_and_results_are_read_as_their_types():
    found = formats(item=Point, result=Point)
    assert msgspec.msgpack.decode(found.pack(Point(1.5))) == {"x": 1.5}
    assert found.unpack(memoryview(msgspec.msgpack.encode({"x": 2.5}))) == Point(2.5)
    assert found.unpack([b"\x81\xa1x", b"\x07"]) == Point(7.0)


def test_raw_items_are_bytes_and_npy_ones_are_arrays():
    raw, npy = formats("raw"), formats("npy")
    assert (raw.pack(b"ab"), raw.pack(bytearray(b"ab")), raw.pack(memoryview(b"ab"))) == (b"ab",) * 3
    assert raw.unpack(memoryview(b"ab")) == b"ab"
    array = np.arange(6.0).reshape(2, 3)
    packed = npy.pack(array)
    array[:] = 0
    assert npy.unpack(packed).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert packed == b"".join(numpy_.write_npy(np.arange(6.0).reshape(2, 3)))


@pytest.mark.parametrize(
    ("accepts", "x", "reason"),
    [
        ("json", {1j}, "the input cannot be written as JSON: "),
        ("msgpack", threading.Lock(), "the input cannot be written as MSGPACK: "),
        ("raw", 3, "the input cannot be written as RAW: expected bytes, got `int`"),
        ("npy", [1], "the input cannot be written as NPY: "),
        ("json", [math.nan], "the input has NaN or infinity at `$[0]`"),
    ],
)
def test_an_input_that_cannot_be_written_is_invalid_and_says_why(accepts, x, reason):
    packed = formats(accepts).pack(x)
    assert isinstance(packed, InvalidItem)
    assert packed.reason.startswith(reason)


def test_nan_is_written_as_null_in_json_where_the_service_allows_it_and_as_itself_in_messagepack():
    assert formats("json", allow_nan=True).pack([math.nan]) == b"[null]"
    assert math.isnan(formats("msgpack").unpack(formats("msgpack").pack(math.nan)))


class Leaves(msgspec.Struct):
    x: int

    def __post_init__(self):
        raise SystemExit(self.x)


@pytest.mark.parametrize(
    ("result", "payload", "words"),
    [
        (Point, b'{"x":"a"}', "the result cannot be read from JSON: expected `float`, got `str` at `$.x`"),
        (Point, b"{", "the result cannot be read from JSON: "),
        (Leaves, b'{"x":1}', "the result cannot be read from JSON: "),
    ],
)
def test_a_result_that_cannot_be_read_is_the_stages_failure_and_nobody_elses(result, payload, words):
    error = formats("json", result=result).unpack(payload)
    assert isinstance(error, StageFailed)
    assert error.stage == "out"
    assert error.message.startswith(words)


def test_a_pickle_from_outside_is_never_loaded():
    class Ran:
        def __reduce__(self):
            return (pytest.fail, ("it was loaded",))

    assert isinstance(formats("json").unpack(pickle_.dumps(Ran())), StageFailed)
    assert isinstance(formats("raw").unpack(pickle_.dumps(1)), bytes)


class Exits:
    @property
    def __class__(self):
        raise SystemExit(3)


@pytest.mark.parametrize("accepts", ["raw", "msgpack"])
def test_code_of_the_caller_that_exits_while_an_item_is_written_makes_it_invalid(accepts):
    assert isinstance(formats(accepts).pack(Exits()), InvalidItem)
