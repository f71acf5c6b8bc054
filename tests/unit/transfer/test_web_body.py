"""Bodies of answers from the web: cut anywhere, ended badly, and framed in ways that two readers may see two ways."""

from __future__ import annotations

import io
from email.message import Message

import pytest

from penstock.errors import TransferFailed
from penstock.transfer.web_body import announced_length, read_body
from rows import each

CHUNKED = {"Transfer-Encoding": "chunked"}


def head(fields: dict[str, str] | list[tuple[str, str]]) -> Message:
    message = Message()
    for name, value in fields.items() if isinstance(fields, dict) else fields:
        message[name] = value
    return message


def body(fields: dict[str, str] | list[tuple[str, str]], wire: bytes) -> bytes:
    return b"".join(read_body(head(fields), io.BufferedReader(io.BytesIO(wire)), "a page"))


def test_a_body_has_the_announced_length_and_what_follows_is_left():
    assert body({"Content-Length": "3"}, b"abcdef") == b"abc"
    assert body({"Content-Length": "0"}, b"") == b""
    assert body([("Content-Length", "3"), ("Content-Length", "3")], b"abc") == b"abc"


def test_a_body_without_an_announced_end_lasts_until_the_connection_ends():
    assert body({}, b"abc") == b"abc"
    assert announced_length(head({}), "") is None
    assert announced_length(head({"Content-Length": "3"}), "") == 3


WIRE = b"3\r\nabc\r\nA ; x=1\r\n0123456789\r\n0\r\nX: y\r\n\r\n"


def test_a_chunked_body_is_put_together():
    assert body(CHUNKED, WIRE) == b"abc0123456789"
    assert body({"Transfer-Encoding": " Chunked"}, b"0\r\n\r\n") == b""


@each("end", range(len(WIRE)))
def test_a_chunked_body_that_is_cut_anywhere_is_a_failure(end):
    with pytest.raises(TransferFailed, match=r"^a page: "):
        body(CHUNKED, WIRE[:end])


@pytest.mark.parametrize("end", range(3))
def test_a_body_shorter_than_announced_is_a_failure(end):
    with pytest.raises(TransferFailed, match=f"a page: .* {3 - end} of 3 bytes are missing"):
        body({"Content-Length": "3"}, b"abc"[:end])


@pytest.mark.parametrize("size", [b"0x3", b"-1", b"+3", b"3_0", b"", b" 3", b"g", b"1" * 16, b"3\n"])
def test_a_size_that_is_no_number_is_a_failure(size):
    with pytest.raises(TransferFailed, match="a chunk size is not a number"):
        body(CHUNKED, size + b"\r\nabc\r\n0\r\n\r\n")


def test_a_chunk_that_goes_on_behind_its_end_is_a_failure():
    with pytest.raises(TransferFailed, match="malformed chunk in the response: data not followed by CRLF"):
        body(CHUNKED, b"3\r\nabcd\r\n0\r\n\r\n")


@pytest.mark.parametrize("trailers", [b"X: y\r\n" * 101, b"X: " + b"y" * 5000 + b"\r\n"])
def test_trailers_without_end_are_a_failure(trailers):
    with pytest.raises(TransferFailed, match="after its last chunk"):
        body(CHUNKED, b"0\r\n" + trailers + b"\r\n")


@pytest.mark.parametrize("value", ["", "-1", "+3", "3.0", "0x3", "1_0", "3, 4", "9" * 19])
def test_a_length_that_is_no_number_is_a_failure(value):
    with pytest.raises(TransferFailed, match="the Content-Length of the response is not a number"):
        body({"Content-Length": value}, b"abc")


def test_two_framings_of_one_body_are_a_failure():
    with pytest.raises(TransferFailed, match="both"):
        body({"Content-Length": "3", **CHUNKED}, WIRE)


@pytest.mark.parametrize("value", ["gzip", "gzip, chunked", "identity"])
def test_a_transfer_encoding_that_was_not_asked_for_is_a_failure(value):
    with pytest.raises(TransferFailed, match="Transfer-Encoding"):
        body({"Transfer-Encoding": value}, b"0\r\n\r\n")
