"""Which format a body is in, and which one an answer goes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.formats import MEDIA_TYPES, Codec
from penstock.codec.media_types import answer_codec, content_codec

J, M, R, N = Codec.JSON, Codec.MSGPACK, Codec.RAW, Codec.NPY


@pytest.mark.parametrize(
    ("accept", "codec"),
    [
        (None, J),
        (b"", J),
        (b" ", J),
        (b"*/*", J),
        (b"application/*", J),
        (b"application/msgpack", M),
        (b"application/MsgPack", M),
        (b"application/json;q=0.5, application/msgpack", M),
        (b"application/json;q=0.5, application/msgpack;q=0.4", J),
        (b"application/json;q=0, */*", M),
        (b"*/*;q=0.1, application/json;q=0", M),
        (b"application/*;q=0, */*", None),
        (b"application/json ; q=0.2 , application/vnd.msgpack ; q=0.3", M),
        (b"text/html, application/xhtml+xml, */*;q=0.8", J),
        (b"text/html", None),
        (b"application/json;q=0", None),
        (b"application/json;q=2, application/msgpack;q=0.1", M),
        (b"application/json;q=x", None),
        (b"nonsense, application/msgpack", M),
        (b"application/x-npy;q=1, */*;q=0.5", N),
        (b"application/x-msgpack;q=0.2, application/msgpack;q=0.9, application/json;q=0.5", M),
        (b"application/json;charset=utf-8", J),
        (b",,,", None),
    ],
)
def test_the_answers_format_follows_accept(accept, codec):
    chosen = answer_codec(accept, [J, M, N])
    assert (chosen and chosen[0]) == codec


def test_the_callers_preference_decides_among_equals():
    assert answer_codec(b"*/*", [M, J]) == (M, b"application/msgpack")
    assert answer_codec(b"application/json, application/octet-stream", [R, J, M]) == (
        R,
        b"application/octet-stream",
    )


def test_no_media_type_selects_pickle():
    assert Codec.PICKLE not in MEDIA_TYPES
    for name in (b"application/pickle", b"application/x-pickle", b"application/python-pickle", b"0"):
        assert content_codec(name) is None


@given(st.binary(max_size=60) | st.text("application/jsonq=;,*. 01", max_size=60).map(str.encode))
def test_any_bytes_are_read_without_a_fault(value):
    chosen = answer_codec(value, [J, M])
    assert chosen is None or chosen[0] in (J, M)
    assert content_codec(value) in (None, J, M, R, N)
