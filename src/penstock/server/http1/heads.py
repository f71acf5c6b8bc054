"""Decide what a request's head says, and how long its body is.  No socket, no event loop.

Contract
--------
* h11 reads whatever is accepted here with the same target, body and end.  llhttp alone is more lenient.  So we also
  refuse a second space in the request line, a blank line before it (`ReadingFlow` has let one pass), protocols other
  than HTTP, a `Transfer-Encoding` other than exactly `chunked`, any `Transfer-Encoding` in HTTP/1.0, a missing or
  repeated `Host`, one that is no host and port, and lengths of more than `MAX_LENGTH_DIGITS` digits.  (`bodies.py` does
  the same for chunks, without llhttp.)
* llhttp only ever sees a head that is complete and within `max_header_bytes`: an endless one would cost it quadratic
  time.
* The verdict does not depend on how the bytes were divided into pieces.
* A head seen before is not parsed again: a client that keeps its connection repeats its head to the byte.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from penstock.config import ServerOptions
from penstock.server.fields import RequestRefused, join_fields, judge_encoding, read_length

END_OF_HEAD: Final = b"\r\n\r\n"
CHUNKED: Final = -1
"""`Head.length` of a body that comes in chunks."""

_LINE = re.compile(rb"([A-Z][!#$%&'*+\-.^_`|~0-9A-Za-z]*) ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])\r\n")
_HOST = re.compile(
    rb"(?:[\w\-.~!$&'()*+,;=]*+(?:%[0-9A-Fa-f]{2}[\w\-.~!$&'()*+,;=]*+)*+"  # a name or an IPv4 address
    rb"|\[(?:[\w\-.~!$&'()*+,;=:]|%[0-9A-Fa-f]{2})++\])"  # an IPv6 address
    rb"(?::[0-9]*+)?"
)
"""What RFC 9110 and RFC 3986 allow as a Host: nothing also where the target has no host.

The quantifiers give nothing back: a long value that does not match is read once.
"""
_BARE_LF = re.compile(rb"(?<!\r)\n")
_UPPER = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")

_MAX_CONNECTION_BYTES: Final = 1024
"""The longest value of Connection.  It is a list of words, and honest ones have a few.

A longer one is refused and not ignored, or a `close` in it would be read by one of two parsers only.
"""

_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding"))

_CACHED_HEADS = 512
_CACHED_HEAD_BYTES = 2048  # longer heads are rare, and 512 of them would be a megabyte and more


class Head:
    """What the head of a request says.  Requests with equal heads share it, so it is never changed.

    `length` is the body's length in bytes or `CHUNKED`.  `expects` says that the client waits for "100 Continue".
    `objection` is a status and a reason to refuse a request although its framing is right.
    """

    __slots__ = ("expects", "headers", "keep_alive", "length", "method", "minor", "objection", "path", "query")

    def __init__(self, method: str, minor: int, path: bytes, query: bytes, headers: dict[bytes, bytes]) -> None:
        self.method = method
        self.minor = minor
        self.path = path
        self.query = query
        self.headers = headers
        self.length = _body_length(headers, minor)
        self.keep_alive = _keeps_alive(headers.get(b"connection"), minor)
        expect = headers.get(b"expect") if minor else None  # HTTP/1.0 knows no expectations: ignored there
        self.expects = expect is not None and self.length != 0
        self.objection = _objection(expect, headers.get(b"content-encoding"))


class HeadReader:
    """Makes `Head`s of complete heads.  One serves every connection of a listener."""

    def __init__(self, options: ServerOptions) -> None:
        self._max_header = options.max_header_bytes
        self._max_target = options.max_target_bytes
        self._max_fields = options.max_header_fields
        self._cache: dict[bytes, Head] = {}
        self._fields: list[tuple[bytes, bytes]] = []
        self._good_host = b""
        """The last Host that was found to be one.  Clients of a server name the same few, so most are only compared."""

    def read(self, head: bytes) -> Head:
        """What `head`, its empty line included, says; raises RequestRefused."""
        known = self._cache.get(head)
        if known is None:
            known = self._parse(head)
            if len(head) <= _CACHED_HEAD_BYTES:
                if len(self._cache) >= _CACHED_HEADS:
                    self._cache.clear()
                self._cache[head] = known
        return known

    def judge_unfinished(self, data: bytes | bytearray, scanned: int) -> None:
        """Raise RequestRefused if `data`, the start of a head without its end, can no longer become acceptable.

        The first `scanned` bytes were judged before.
        """
        size = min(len(data), self._max_header)
        if size and data[0] not in _UPPER:
            raise RequestRefused(400, "the request does not start with a method")
        if _BARE_LF.search(data, scanned, size):
            raise RequestRefused(400, "a line of the request head does not end in CRLF")
        if len(data) >= self._max_header:
            self._refuse_endless(bytes(data[:size]))

    def _refuse_endless(self, start: bytes) -> None:
        line = start.split(b"\r\n", 1)[0]
        target = line.split(b" ", 2)[1:2]
        if target and len(target[0]) > self._max_target:
            raise RequestRefused(414, f"the request target is longer than {self._max_target} bytes (max_target_bytes)")
        raise RequestRefused(431, f"the request head is longer than {self._max_header} bytes (max_header_bytes)")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by llhttp for each field."""
        self._fields.append((name, value))

    def _parse(self, head: bytes) -> Head:
        line = _LINE.match(head)
        self._fields.clear()
        try:
            # Each head has its own parser: after a head that announces a body or an upgrade it is of no further use.
            httptools.HttpRequestParser(self).feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # `Upgrade` is ignored: the request is answered as if it had not asked
        except httptools.HttpParserError as error:
            raise _refusal_of(error, line, head) from None
        if line is None:
            raise RequestRefused(400, "the request line is malformed")
        method, target, version = line.groups()
        if version not in (b"1.1", b"1.0"):
            raise RequestRefused(505, "only HTTP/1.1 and HTTP/1.0 are supported")
        if len(target) > self._max_target:
            raise RequestRefused(414, f"the request target is longer than {self._max_target} bytes (max_target_bytes)")
        if len(self._fields) > self._max_fields:
            raise RequestRefused(431, f"the request has more than {self._max_fields} headers (max_header_fields)")
        if method == b"CONNECT":
            raise RequestRefused(405, "CONNECT is not supported")
        headers = join_fields(self._fields, _ONCE)
        self._check_host(headers.get(b"host"), version)
        path, query = _split_target(target)
        return Head(method.decode("ascii"), int(version == b"1.1"), path, query, headers)

    def _check_host(self, host: bytes | None, version: bytes) -> None:
        """Raise RequestRefused, 400, where Host is missing or is no host and port."""
        if host is None:
            if version == b"1.1":
                raise RequestRefused(400, "the Host header is missing")
        elif host != self._good_host:
            if _HOST.fullmatch(host) is None:
                raise RequestRefused(400, "the Host header is not a host and a port")
            self._good_host = host


def _refusal_of(error: Exception, line: re.Match[bytes] | None, head: bytes) -> RequestRefused:
    """The refusal for a head that llhttp does not accept."""
    if line is None or _BARE_LF.search(head):
        return RequestRefused(400, "the request head is malformed")
    if line[3] not in (b"1.1", b"1.0"):
        return RequestRefused(505, "only HTTP/1.1 and HTTP/1.0 are supported")
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return RequestRefused(501, f"unknown method {line[1].decode('ascii')[:32]}")
    return RequestRefused(400, f"the request head is malformed: {error}")


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target in origin, absolute or asterisk form."""
    if b"#" in target:
        raise RequestRefused(400, "a request target must not have a fragment")
    if not target.startswith((b"/", b"*")):
        scheme, _, rest = target.partition(b"://")
        if scheme.lower() not in (b"http", b"https"):
            raise RequestRefused(400, "a request target in absolute form must be an http or https URL")
        start = min((i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0), default=len(rest))
        target = rest[start:]
    path, _, query = target.partition(b"?")
    return path or b"/", query


def _body_length(headers: dict[bytes, bytes], minor: int) -> int:
    length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
    if coding is not None:
        if minor == 0:
            raise RequestRefused(400, "Transfer-Encoding is not allowed in HTTP/1.0")
        if length is not None:
            raise RequestRefused(400, "Content-Length and Transfer-Encoding must not be sent together")
        if coding.lower() != b"chunked":
            raise RequestRefused(501, "the only supported Transfer-Encoding is chunked")
        return CHUNKED
    return read_length(length)


def _keeps_alive(connection: bytes | None, minor: int) -> bool:
    if connection is None:
        return minor == 1
    if len(connection) > _MAX_CONNECTION_BYTES:
        raise RequestRefused(431, f"the Connection header is longer than {_MAX_CONNECTION_BYTES} bytes")
    tokens = {token.strip() for token in connection.lower().split(b",")}
    return b"close" not in tokens and (minor == 1 or b"keep-alive" in tokens)


def _objection(expect: bytes | None, encoding: bytes | None) -> tuple[int, str] | None:
    if expect is not None and expect.lower() != b"100-continue":
        return 417, "unsupported Expect header; only 100-continue is supported"
    return judge_encoding(encoding)
