"""Take a response's body from its stream, and notice where it is not whole.  No socket, no clock.

`http.client` would do it, and takes a body for whole that is not: it does not look at the end of a chunk, takes sizes
like ``0x5`` and ``-1``, and reads up to the end of the connection where `Content-Length` is no number.

Contract
--------
* A body whose end was announced ends there, or TransferFailed is raised: fewer bytes than `Content-Length`, a chunk
  that does not end as it must, no last chunk.
* A body without an announced end lasts until the connection ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from io import BufferedReader
from typing import Any, Final

from penstock.errors import TransferFailed

CHUNK_BYTES = 256 * 1024
"""Most bytes that are taken from the stream at once."""
LONGEST_LINE_BYTES = 4096
"""Of a chunk's size with its extensions, and of a line behind the last chunk."""
MOST_TRAILERS = 100

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")


def announced_length(head: Message, what: str) -> int | None:
    """The bytes that the body will have, or None where the head does not say.  Raises TransferFailed."""
    values = {part.strip() for value in head.get_all("Content-Length", []) for part in value.split(",")}
    if head.get_all("Transfer-Encoding"):
        if values:
            raise TransferFailed(f"{what}: the response has both a Content-Length and a Transfer-Encoding")
        return None
    if not values:
        return None
    value = values.pop()
    if values or not re.fullmatch("[0-9]{1,18}", value):
        raise TransferFailed(f"{what}: the Content-Length of the response is not a number")
    return int(value)


def read_body(head: Message, stream: BufferedReader[Any], what: str) -> Iterator[bytes]:
    """The pieces of the body, none empty; `stream` stands behind the head, `what` names the transfer in messages.

    Raises TransferFailed.
    """
    encodings = [value.strip().lower() for value in head.get_all("Transfer-Encoding", [])]
    length = announced_length(head, what)
    if encodings:
        if encodings != ["chunked"]:
            raise TransferFailed(
                f"{what}: the response has the Transfer-Encoding {', '.join(encodings)[:100]!r}, which is not supported"
            )
        return _chunked(stream, what)
    return _until_the_end(stream) if length is None else _exactly(stream, length, what)


def _exactly(stream: BufferedReader[Any], count: int, what: str) -> Iterator[bytes]:
    left = count
    while left:
        piece = stream.read1(min(left, CHUNK_BYTES))
        if not piece:
            raise TransferFailed(f"{what}: the response was cut off: {left} of {count} bytes are missing")
        left -= len(piece)
        yield piece


def _until_the_end(stream: BufferedReader[Any]) -> Iterator[bytes]:
    while piece := stream.read1(CHUNK_BYTES):
        yield piece


def _chunked(stream: BufferedReader[Any], what: str) -> Iterator[bytes]:
    while size := _chunk_size(stream, what):
        yield from _exactly(stream, size, what)
        if stream.read(2) != b"\r\n":
            raise TransferFailed(f"{what}: malformed chunk in the response: data not followed by CRLF")
    for _ in range(MOST_TRAILERS):
        line = stream.readline(LONGEST_LINE_BYTES)
        if line == b"\r\n":
            return
        if not line.endswith(b"\n"):
            break
    raise TransferFailed(f"{what}: the response was cut off after its last chunk")


def _chunk_size(stream: BufferedReader[Any], what: str) -> int:
    line = _SIZE.fullmatch(stream.readline(LONGEST_LINE_BYTES))
    if line is None:
        raise TransferFailed(f"{what}: the response was cut off, or a chunk size is not a number")
    return int(line[1], 16)
