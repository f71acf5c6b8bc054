"""Turn a `Response` into the bytes that go on the wire.

Many answers have the same status line, date and content type.  These bytes are made once a second and kept, so that an
answer costs one join.  A large body is not joined, because a copy of it would cost more than a second write.
"""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from penstock.core.payload import Buffer, Payload, payload_buffers
from penstock.server.application import Response

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# The three ends of a head: each says what becomes of the connection.
CLOSING: Final = b"\r\nconnection: close\r\n\r\n"
KEEP_ALIVE_1_0: Final = b"\r\nconnection: keep-alive\r\n\r\n"
KEEP_ALIVE: Final = b"\r\n\r\n"

JOINED_BODY_BYTES: Final = 32 * 1024
"""The longest body that is copied after its head and written in one piece."""

_KEPT_HEADS = 256
_LENGTH = b"\r\ncontent-length: "
_LENGTHS = [b"%d" % n for n in range(2048)]
_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
BODILESS = (204, 304)
"""Statuses whose answers have neither a body nor a length."""


class AnswerHeads:
    """Makes heads of answers.  `renew` once a second, so that the date is right."""

    def __init__(self) -> None:
        self._date = b""
        self._kept: dict[tuple[int, bytes], bytes] = {}

    def renew(self, wall_time: float) -> None:
        """Make answers carry the date of `wall_time`, in seconds since the epoch."""
        date = formatdate(wall_time, usegmt=True).encode("ascii")
        if date != self._date:
            self._date = date
            self._kept.clear()

    def encode(
        self, response: Response, request_id: bytes, body: Payload, nbytes: int, end_of_head: bytes
    ) -> bytes | list[Buffer]:
        """What to write: one buffer, or a list of them where `body` is too large to be worth copying.

        `body` is the response's, or b"" where it is left out; `nbytes` is the length the head announces; `end_of_head`
        is one of CLOSING, KEEP_ALIVE and KEEP_ALIVE_1_0.
        """
        status = response.status
        start = self._kept.get((status, response.content_type))
        if start is None:
            start = self._start(status, response.content_type)
        length = _LENGTHS[nbytes] if nbytes < 2048 else b"%d" % nbytes
        extra = _fields(response.headers) if response.headers else b""
        named = b"\r\nx-request-id: " if request_id else b""
        if status in BODILESS:
            return b"".join((start, named, request_id, extra, end_of_head))
        if type(body) is bytes and nbytes <= JOINED_BODY_BYTES:
            return b"".join((start, _LENGTH, length, named, request_id, extra, end_of_head, body))
        head = b"".join((start, _LENGTH, length, named, request_id, extra, end_of_head))
        pieces = payload_buffers(body)
        return b"".join((head, *pieces)) if nbytes <= JOINED_BODY_BYTES else [head, *pieces]

    def _start(self, status: int, content_type: bytes) -> bytes:
        start = b"HTTP/1.1 %d %s\r\ndate: %s" % (status, _REASONS.get(status, b"Unknown"), self._date)
        if content_type and status not in BODILESS:
            start += b"\r\ncontent-type: " + content_type
        if len(self._kept) >= _KEPT_HEADS:
            self._kept.clear()
        self._kept[status, content_type] = start
        return start


def _fields(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join([b"\r\n%b: %b" % field for field in headers])
