"""The format in which items cross from stage to stage, and between a service and callers in process."""

from __future__ import annotations

import math
from itertools import product

import pytest

from penstock.codec.formats import CODEC_NAMES, Codec
from penstock.errors import ConfigError
from penstock.runtime.crossings import crossings
from penstock.runtime.external_spec import remote
from penstock.runtime.spec import stage
from rows import each

PICKLE, JSON, MSGPACK, RAW, NPY = Codec.PICKLE, Codec.JSON, Codec.MSGPACK, Codec.RAW, Codec.NPY
ANY_TWO = [pair for pair in product(CODEC_NAMES, repeat=2) if pair[0] != pair[1]]


def ours(name):
    return stage(math.sqrt, name=name)


def theirs(name, *accepts):
    return remote(name, accepts=accepts)


def test_between_stages_of_ours_everything_is_pickled():
    assert crossings([ours("a")]) == (PICKLE, PICKLE)
    assert crossings([ours("a"), ours("b"), ours("c")]) == (PICKLE,) * 4


@each("accepts", [*ANY_TWO, *((name,) for name in CODEC_NAMES)])
def test_a_worker_from_outside_is_spoken_to_in_messagepack_or_else_in_its_first_format(accepts):
    codec = MSGPACK if "msgpack" in accepts else CODEC_NAMES[accepts[0]]
    outside = theirs("out", *accepts)
    assert crossings([outside]) == (codec, codec)
    assert crossings([outside, ours("b")]) == (codec, codec, PICKLE)
    assert crossings([ours("a"), outside]) == (PICKLE, codec, codec)
    assert crossings([ours("a"), outside, ours("c")]) == (PICKLE, codec, codec, PICKLE)
    assert crossings([outside, ours("b"), outside]) == (codec, codec, codec, codec)


@pytest.mark.parametrize(
    ("first", "second", "codec"),
    [
        (("json", "msgpack"), ("msgpack", "json"), MSGPACK),
        (("json", "msgpack"), ("json",), JSON),
        (("raw", "npy", "json"), ("json", "npy"), NPY),
        (("raw",), ("json", "raw"), RAW),
    ],
)
def test_two_external_stages_in_a_row_speak_what_both_do(first, second, codec):
    specs = [theirs("one", *first), theirs("two", *second)]
    assert crossings(specs)[1] is codec


def test_the_ends_are_each_stages_own():
    specs = [theirs("one", "raw", "json"), theirs("two", "json", "msgpack")]
    assert crossings(specs) == (RAW, JSON, MSGPACK)


def test_two_external_stages_without_a_common_format_cannot_follow_each_other():
    specs = [ours("a"), theirs("one", "raw"), theirs("two", "json", "npy")]
    with pytest.raises(ConfigError, match="stages 'one' and 'two' have no format in common"):
        crossings(specs)
    assert crossings([specs[1], ours("b"), specs[2]]) == (RAW, RAW, JSON, JSON)
