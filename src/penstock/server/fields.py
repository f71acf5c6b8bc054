"""What the header fields of a request say, whichever carrier it came by.  No parser, no socket."""

from __future__ import annotations

from typing import Final

MAX_LENGTH_DIGITS: Final = 20
"""Most digits of a Content-Length.  h11 reads no more, and Python's `int` reads no more than some thousands."""


# From Exception itself: mypyc compiles no subclass of most other built-in exceptions.
class RequestRefused(Exception):
    """The request is refused by what its bytes say: `status` and `detail` are those of the answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


def join_fields(fields: list[tuple[bytes, bytes]], single: frozenset[bytes] = frozenset()) -> dict[bytes, bytes]:
    """Values by name in lower case, those of a repeated field joined with ", ".

    Raises RequestRefused, 400, where a field of `single` is repeated.
    """
    headers: dict[bytes, bytes] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.lower(), raw_value.strip(b" \t")
        if name in headers:
            if name in single:
                raise RequestRefused(400, f"the header {name.decode('ascii')} is repeated")
            value = headers[name] + b", " + value
        headers[name] = value
    return headers


def read_length(announced: bytes | None) -> int:
    """The bytes that a Content-Length announces, 0 without one.  Raises RequestRefused, 400, for what is no number."""
    if announced is None:
        return 0
    if not announced.isdigit() or len(announced) > MAX_LENGTH_DIGITS:
        raise RequestRefused(400, "Content-Length is not a number")
    return int(announced)


def judge_encoding(encoding: bytes | None) -> tuple[int, str] | None:
    """Status and detail of the refusal where Content-Encoding names a compression, else None."""
    if encoding is not None and encoding.lower() not in (b"", b"identity"):
        return 415, "compressed request bodies are not supported"
    return None
