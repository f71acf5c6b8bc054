"""What header fields say, whoever carries them."""

from __future__ import annotations

import pytest

from penstock.server.fields import MAX_LENGTH_DIGITS, RequestRefused, join_fields, judge_encoding, read_length


def test_names_are_lower_case_and_values_are_without_their_blanks():
    assert join_fields([(b"X-One", b" \t1 "), (b"X-TWO", b"a b\x0b")]) == {b"x-one": b"1", b"x-two": b"a b\x0b"}


def test_repeated_fields_are_joined_in_their_order():
    fields = [(b"X", b"1"), (b"Y", b"y"), (b"x", b"2 "), (b"X", b"")]
    assert join_fields(fields, frozenset((b"y",))) == {b"x": b"1, 2, ", b"y": b"y"}


def test_a_field_that_must_stand_alone_is_refused_when_it_is_repeated():
    with pytest.raises(RequestRefused) as refused:
        join_fields([(b"Host", b"x"), (b"host", b"x")], frozenset((b"host",)))
    assert (refused.value.status, refused.value.detail) == (400, "the header host is repeated")


@pytest.mark.parametrize(
    ("announced", "length"),
    [(None, 0), (b"0", 0), (b"007", 7), (b"9" * MAX_LENGTH_DIGITS, 10**MAX_LENGTH_DIGITS - 1)],
)
def test_a_length_is_read(announced, length):
    assert read_length(announced) == length


@pytest.mark.parametrize("announced", [b"", b"+1", b"-1", b"0x1", b"1, 1", b"1 ", "\u0661".encode(), b"0" * 20 + b"1"])
def test_what_is_no_length_is_refused(announced):
    with pytest.raises(RequestRefused) as refused:
        read_length(announced)
    assert (refused.value.status, refused.value.detail) == (400, "Content-Length is not a number")


@pytest.mark.parametrize("encoding", [None, b"", b"identity", b"Identity"])
def test_a_plain_body_is_taken(encoding):
    assert judge_encoding(encoding) is None


@pytest.mark.parametrize("encoding", [b"gzip", b"identity, br", b"identity, identity"])
def test_a_compressed_body_is_refused(encoding):
    assert judge_encoding(encoding) == (415, "compressed request bodies are not supported")
