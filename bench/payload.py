"""The one request that every server of the bench is sent, and the answer each must give.

Eight floats with six decimals, as a client writes features, with the header fields that a common client sends.
The answer is the same list, so its bytes are the request's: a server that answered anything else would be found
out by the load generator.
"""

from __future__ import annotations

BODY = b"[0.226709,0.962452,0.126098,0.706211,0.523417,0.178352,0.804726,0.345129]"


NUMBER = b"0000000000"
"""Stands in a numbered request where the load generator writes the request's number."""


def request(path: str, port: int, body: bytes = BODY, *, numbered: bool = False) -> bytes:
    """The whole request for `path`, as bytes on the wire; a numbered one has a request id with `NUMBER` in it."""
    head = (
        f"POST {path} HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\n"
        "User-Agent: penstock-bench\r\n"
        "Accept: */*\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    number = b"X-Request-ID: bench-" + NUMBER + b"\r\n" if numbered else b""
    return head.encode() + number + b"\r\n" + body
