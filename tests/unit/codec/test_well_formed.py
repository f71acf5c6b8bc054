"""Whether a payload is in the format that it should be in."""

from __future__ import annotations

import io

import msgspec
import pytest

from penstock.codec.formats import Codec
from penstock.codec.well_formed import well_formed
from rows import each

pytest.importorskip("numpy")
import numpy as np


def npy():
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


@each(
    ("codec", "payload"),
    [
        *((Codec.JSON, payload) for payload in (b"1", b' [1, {"a": null}] ', b'"x"', b"true", b"-1e5", '"é"'.encode())),
        *((Codec.MSGPACK, msgspec.msgpack.encode(value)) for value in (1, "x", [1, {"a": None}], b"bytes", 1.5)),
        (Codec.RAW, b""),
        (Codec.RAW, b"\xff\x00"),
        (Codec.NPY, npy()),
    ],
)
def test_what_is_whole_is_believed(codec, payload):
    assert well_formed(codec, payload)
    assert well_formed(codec, memoryview(payload))


@each(
    ("codec", "payload"),
    [
        *((Codec.JSON, payload) for payload in (b"", b"1, 2", b"[1", b"NaN", b"{'a': 1}", b"\x93\x01", b"1]", b"1 1")),
        (Codec.JSON, b"[" * 100_000),
        *((Codec.JSON, payload) for payload in (b'"\xff"', b'["\xed\xa0\x80"]', '"é"'.encode("latin-1"))),
        *((Codec.MSGPACK, payload) for payload in (b"", b"\xc1", b"\x92\x01", b"\x01\x01")),
        (Codec.MSGPACK, b"\x91" * 100_000),
        *((Codec.NPY, payload) for payload in (b"", b"\x93NUMP", b"[1]")),
    ],
)
def test_what_is_not_is_seen(codec, payload):
    assert not well_formed(codec, payload)
