"""The floor of the echo: uvloop and httptools alone, a fixed answer; no model, routing, limits or checks.

What a Python server of this make cannot do better than: llhttp hands each request's target, fields and body to Python,
which any server has to look at, and an answer made beforehand, as long as the echo's, is written.  With `--blind`
nothing is handed over, and the server does not know what it was asked.

    python bench/floor.py PORT [--blind]
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


class BlindProtocol(asyncio.Protocol):
    """One connection: every complete request is answered at once, whatever it says."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class: no subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(ANSWER)


class FloorProtocol(BlindProtocol):
    """One connection: every request is read, and answered at once."""

    def on_message_begin(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.body = b""

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.method = self.parser.get_method()

    def on_body(self, body: bytes) -> None:
        self.body += body


async def serve(port: int, protocol: type[BlindProtocol]) -> None:
    """Listen on the loopback until the process is ended."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), BlindProtocol if "--blind" in sys.argv else FloorProtocol))
