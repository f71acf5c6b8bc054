"""The bytes of an answer: its head, and how its body goes along."""

from __future__ import annotations

import pytest

from penstock.server.application import Response
from penstock.server.http1.answers import CLOSING, JOINED_BODY_BYTES, KEEP_ALIVE, AnswerHeads

DATE = b"date: Thu, 01 Jan 1970 00:00:07 GMT"


@pytest.fixture
def heads():
    made = AnswerHeads()
    made.renew(7.0)
    return made


def encode(heads, body, *, status=200, content_type=b"text/plain", headers=(), request_id=b"id", end=KEEP_ALIVE):
    nbytes = sum(map(len, body)) if isinstance(body, list) else len(body)
    return heads.encode(Response(status, content_type, body, headers), request_id, body, nbytes, end)


def test_an_answer_is_its_head_and_its_body(heads):
    assert encode(heads, b"hi", headers=((b"retry-after", b"7"), (b"x", b"y")), end=CLOSING) == (
        b"HTTP/1.1 200 OK\r\n" + DATE + b"\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nx-request-id: id"
        b"\r\nretry-after: 7\r\nx: y\r\nconnection: close\r\n\r\nhi"
    )


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body_has_no_length_and_no_type(heads, status):
    head = encode(heads, b"", status=status, headers=((b"etag", b'"1"'),))
    first, *fields = head.split(b"\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert fields == [DATE, b"x-request-id: id", b'etag: "1"', b"", b""]


def test_an_answer_without_an_id_names_none(heads):
    assert b"x-request-id" not in encode(heads, b"hi", request_id=b"")
    assert encode(heads, b"", status=204, request_id=b"") == b"HTTP/1.1 204 No Content\r\n" + DATE + b"\r\n\r\n"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: [data[:5], memoryview(data)[5:]]])
@pytest.mark.parametrize("size", [0, 2047, 2048, JOINED_BODY_BYTES, JOINED_BODY_BYTES + 1])
def test_a_large_body_is_not_copied_and_a_small_one_is_one_write_with_its_head(heads, kind, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    written = encode(heads, kind(data))
    whole = written if isinstance(written, bytes) else b"".join(written)
    assert isinstance(written, bytes) == (size <= JOINED_BODY_BYTES)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == data
    assert b"\r\ncontent-length: %d\r\n" % size in head


def test_a_new_second_has_a_new_date(heads):
    assert DATE in encode(heads, b"")
    heads.renew(8.0)
    assert DATE not in encode(heads, b"")
    assert b"date: Thu, 01 Jan 1970 00:00:08 GMT" in encode(heads, b"")


def test_an_unknown_status_has_a_reason_too(heads):
    assert encode(heads, b"", status=599).startswith(b"HTTP/1.1 599 Unknown\r\n")
