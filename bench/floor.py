"""The floor of the echo: uvloop and httptools alone, a fixed answer; no model, routing, limits or checks.

What a Python server of this make cannot do better than.  Each request is parsed whole by llhttp, but no header
field or body is handed to Python, and the answer is made beforehand, as long as the echo's.

    python bench/floor.py PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

from payload import BODY

ANSWER = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: application/json\r\n"
    b"content-length: %d\r\n"
    b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    b"\r\n%b"
) % (len(BODY), BODY)


class FloorProtocol(asyncio.Protocol):
    """One connection: every complete request is answered at once."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class: no subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(ANSWER)


async def serve(port: int) -> None:
    """Listen on the loopback until the process is ended."""
    server = await asyncio.get_running_loop().create_server(FloorProtocol, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
