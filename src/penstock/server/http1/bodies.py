"""Take bodies in chunks out of a stream of bytes.  No socket, no parser.

Contract
--------
* `feed(data, at)` reads from `at` and returns the position where it stopped: the body's end, or the data's, or after
  `CHUNKS_PER_FEED` chunks.  `done` tells of the end; the bytes gather in `body`.
* The outcome does not depend on how the bytes were divided into pieces.
* What is accepted, h11 reads as the same bytes with the same end.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.server.fields import RequestRefused

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t\x20-\x7e\x80-\xff]*")
_NEVER_TRAILING = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"content-encoding", b"content-type", b"connection",
     b"expect", b"authorization")
)  # fmt: skip
CHUNKS_PER_FEED: Final = 256
"""So many chunks are read in one go, in half a millisecond or so.  Chunks may be as small as a byte."""
_MAX_CHUNK_LINE_BYTES = 1024  # extensions may follow the size; they are read and dropped, so they need not be long


class ChunkedBody:
    """Takes a chunked body apart: `feed` until `done`; the bytes gather in `body`.

    The body may grow to `max_body` bytes, and the trailers, which are dropped, to `max_header`.
    """

    __slots__ = ("_line", "_max_body", "_max_header", "_missing", "_trailing", "_trailing_bytes", "body", "done")

    def __init__(self, max_body: int, max_header: int) -> None:
        self.body = bytearray()
        self.done = False
        self._max_body = max_body
        self._max_header = max_header
        self._line = bytearray()
        self._missing = 0
        """Bytes of the current chunk that are still to come, with the CRLF after it."""
        self._trailing = False
        self._trailing_bytes = 0

    def feed(self, data: bytes | bytearray, at: int) -> int:
        """Read `data` from `at`; returns where reading stopped: at the end of the body, or of the data, or of a line.

        Raises RequestRefused: 400 for what is no chunk, 413 as soon as an announced chunk makes the body too large, 431
        for trailers that are too long.
        """
        end, lines = len(data), 0
        while at < end and not self.done and lines < CHUNKS_PER_FEED:
            if self._missing > 2:
                take = min(self._missing - 2, end - at)
                self.body += memoryview(data)[at : at + take]
                self._missing -= take
                at += take
            elif self._missing:
                if data[at] != b"?\n\r"[self._missing]:
                    raise RequestRefused(400, "malformed chunk: data not followed by CRLF")
                self._missing -= 1
                at += 1
            else:
                at = self._feed_line(data, at)
                lines += 1
        return at

    def _feed_line(self, data: bytes | bytearray, at: int) -> int:
        """Read on in a chunk-size line or a trailer, and act on it once it is complete."""
        limit = self._max_header - self._trailing_bytes if self._trailing else _MAX_CHUNK_LINE_BYTES
        left = limit - len(self._line)
        newline = data.find(b"\n", at, at + left)
        if newline < 0:
            self._line += data[at : at + left]
            if len(data) - at >= left:
                raise self._too_long()
            return len(data)
        self._line += data[at : newline + 1]
        line = bytes(self._line)
        self._line.clear()
        if not line.endswith(b"\r\n"):
            raise RequestRefused(400, "a line of a chunked body does not end in CRLF")
        if self._trailing:
            self._trailing_bytes += len(line)
            self._end_trailer(line[:-2])
        else:
            self._start_chunk(line[:-2])
        return newline + 1

    def _too_long(self) -> RequestRefused:
        if self._trailing:
            return RequestRefused(431, f"the trailers are longer than {self._max_header} bytes (max_header_bytes)")
        return RequestRefused(400, f"a chunk size line is longer than {_MAX_CHUNK_LINE_BYTES} bytes")

    def _start_chunk(self, line: bytes) -> None:
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise RequestRefused(400, "malformed chunk size")
        size = int(match[1], 16)
        if size == 0:
            self._trailing = True
        elif len(self.body) + size > self._max_body:
            raise RequestRefused(413, f"the request body is larger than {self._max_body} bytes (max_body_bytes)")
        else:
            self._missing = size + 2

    def _end_trailer(self, line: bytes) -> None:
        if not line:
            self.done = True
            return
        match = _TRAILER.fullmatch(line)
        if match is None or match[1].lower() in _NEVER_TRAILING:
            raise RequestRefused(400, "a trailer is malformed or not allowed")
