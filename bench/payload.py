"""The requests that the servers of the bench are sent, and the answer each must give.

Every server but one is sent eight floats with six decimals, as a client writes features, with the header fields that
a common client sends.  The answer is the same list, so its bytes are the request's: a server that answered anything
else would be found out by the load generator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

BODY = b"[0.226709,0.962452,0.126098,0.706211,0.523417,0.178352,0.804726,0.345129]"


@dataclass(frozen=True, slots=True)
class Exchange:
    """The body of a request, its media type, and the body of the one right answer."""

    body: bytes = BODY
    answer: bytes = BODY
    media_type: str = "application/json"
    fields: str = ""
    """Further header fields, each with its end of line."""


FLOATS = Exchange()
TERMS = Exchange(fields="Priority: u=1\r\nX-Tenant: gold\r\n")
"""The same floats, of a tenant and with an urgency."""

_BLOB = random.Random(600).randbytes(600_000)
BLOB = Exchange(_BLOB, _BLOB[:4096], "application/octet-stream")
"""600 KB of which nothing repeats, as of an image; the answer is its first 4 KB."""


NUMBER = b"0000000000"
"""Stands in a numbered request where the load generator writes the request's number."""


def request(path: str, port: int, exchange: Exchange = FLOATS, *, numbered: bool = False) -> bytes:
    """The whole request for `path`, as bytes on the wire; a numbered one has a request id with `NUMBER` in it."""
    head = (
        f"POST {path} HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\n"
        "User-Agent: penstock-bench\r\n"
        "Accept: */*\r\n"
        f"Content-Type: {exchange.media_type}\r\n"
        f"Content-Length: {len(exchange.body)}\r\n{exchange.fields}"
    )
    number = b"X-Request-ID: bench-" + NUMBER + b"\r\n" if numbered else b""
    return head.encode() + number + b"\r\n" + exchange.body
