"""Which format a body is in, and which one an answer goes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.formats import MEDIA_TYPES, Codec
from penstock.codec.media_types import MAX_PARTS, MAX_VALUE_BYTES, answer_codec, content_codec, media_names, too_long
from rows import each

J, M, R, N = Codec.JSON, Codec.MSGPACK, Codec.RAW, Codec.NPY


@each(
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


@pytest.mark.parametrize(
    ("value", "codec"),
    [
        (None, J),
        (b" ", J),
        (b"Application/JSON", J),
        (b"application/json; charset=UTF-8; version=1", J),
        (b'application/msgpack;charset="utf8"', M),
        (b"application/json; charset=latin-1", None),
        (b"application/json; version=1; charset = utf-16", None),
        (b"text/plain", None),
    ],
)
def test_a_bodys_format_is_its_media_type_and_any_charset_but_utf_8_is_refused(value, codec):
    assert content_codec(value) == codec


def test_media_types_are_named_in_one_order_however_they_are_given():
    assert media_names({M, J}) == media_names([J, M]) == "application/json, application/msgpack"


def test_no_media_type_selects_pickle():
    assert Codec.PICKLE not in MEDIA_TYPES
    for name in (b"application/pickle", b"application/x-pickle", b"application/python-pickle", b"0"):
        assert content_codec(name) is None


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        (None, False),
        (b"x" * MAX_VALUE_BYTES, False),
        (b"x" * (MAX_VALUE_BYTES + 1), True),
        (b"," * MAX_PARTS, False),
        (b";" * MAX_PARTS, False),
        (b"," * 60 + b";" * (MAX_PARTS - 60), False),
        (b"," * 60 + b";" * (MAX_PARTS - 59), True),
    ],
)
def test_a_value_is_too_long_by_its_bytes_or_by_its_parts(value, refused):
    assert too_long(value) is refused


@given(st.binary(max_size=60) | st.text("application/jsonq=;,*. 01", max_size=60).map(str.encode))
def test_any_bytes_are_read_without_a_fault(value):
    chosen = answer_codec(value, [J, M])
    assert chosen is None or chosen[0] in (J, M)
    assert content_codec(value) in (None, J, M, R, N)
