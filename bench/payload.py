"""The requests that the servers of the bench are sent, and the answer each must give.

Every server but one is sent eight floats with six decimals, as a client writes features, with the header fields that
a common client sends.  The answer is the same list, so its bytes are the request's: a server that answered anything
else would be found out by the load generator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

BODY = b"[0.226709,0.962452,0.126098,0.706211,0.523417,0.178352,0.804726,0.345129]"


@dataclass(frozen=True, slots=True)
class Exchange:
    """The body of a request, its media type, and the body of the one right answer."""

    body: bytes = BODY
    answer: bytes = BODY
    media_type: str = "application/json"
    fields: str = ""
    """Further header fields, each with its end of line."""
    number_at: int | None = None
    """Where in the body the load generator writes the number of each request, in ten digits; None for nowhere."""
    back_at: int | None = None
    """Where in the answer that number must be; None where it does not come back."""
    inverted: bool = False
    """Whether each bit of it is turned then."""


FLOATS = Exchange()
TERMS = Exchange(fields="Priority: u=1\r\nX-Tenant: gold\r\n")
"""The same floats, of a tenant and with an urgency."""

_BLOB = random.Random(600).randbytes(600_000)
_NUMBER_AT = 1000
_OCTETS = "application/octet-stream"
BLOB = Exchange(_BLOB, _BLOB[:4096], _OCTETS, number_at=_NUMBER_AT, back_at=_NUMBER_AT)
"""600 KB of which nothing repeats, as of an image; the answer is its first 4 KB, with the number of the request."""
RECEIVED = replace(BLOB, back_at=None)
"""The same, where the answer was made beforehand."""
INVERTED = replace(BLOB, answer=bytes(255 - byte for byte in _BLOB), inverted=True)
"""The same, and as much back: each byte inverted."""
SIXTEEN_MB = Exchange(bytes(16_000_000), b"16000000", _OCTETS)
"""The answer is how long the body is."""
_NPY_FIELDS = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" % len(_BLOB)
_NPY_HEAD = b"\x93NUMPY\x01\x00\x76\x00" + _NPY_FIELDS.ljust(117) + b"\n"
ARRAY = replace(BLOB, body=_NPY_HEAD + _BLOB, media_type="application/x-npy", number_at=len(_NPY_HEAD) + _NUMBER_AT)
"""The same as an array of bytes, whose first 4 KB are the answer."""


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
