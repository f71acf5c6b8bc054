"""The floor of large bodies: uvloop alone, which receives into one buffer that is used again, and answers.

There is no model, no batch, no other process and no check: nothing that serves such bodies can be faster.  With
`--invert` it gives each body back with its bytes inverted, as a model's process would have to.

    python bench/receive.py PORT [--invert]
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

import numpy as np
import uvloop

from payload import BLOB

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n"
ANSWER = HEAD % len(BLOB.answer) + BLOB.answer
LENGTH = re.compile(rb"content-length: *(\d+)\r\n", re.IGNORECASE)
BUFFER_BYTES = 1024 * 1024
LONGEST_HEAD = 4096


class Receive(asyncio.BufferedProtocol):
    """One connection; `buffer` is that of all of them."""

    transport: asyncio.Transport
    buffer = bytearray(BUFFER_BYTES)

    def __init__(self) -> None:
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class: no subclass of asyncio's

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  # asyncio's signature
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        at = 0
        while at < nbytes:
            if not self.left:
                end = self.buffer.find(b"\r\n\r\n", at, at + LONGEST_HEAD) + 4
                found = LENGTH.search(self.buffer, at, end)
                assert found is not None, "the load generator sends whole heads at once"
                self.left, at = int(found[1]), end
            taken = min(self.left, nbytes - at)
            self.left -= taken
            at += taken
            if not self.left:
                self.answer()

    def answer(self) -> None:
        self.transport.write(ANSWER)


class Invert(Receive):
    """The same, with a body of its own for each connection, which is given back inverted."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = bytearray(BUFFER_BYTES)
        self.got = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # type: ignore[override]  # noqa: ARG002
        return memoryview(self.buffer)[self.got :]

    def buffer_updated(self, nbytes: int) -> None:
        self.got += nbytes
        end = self.buffer.find(b"\r\n\r\n", 0, LONGEST_HEAD) + 4
        found = LENGTH.search(self.buffer, 0, end)
        if found is not None and self.got >= end + int(found[1]):
            body = np.frombuffer(memoryview(self.buffer)[end : self.got], np.uint8)
            self.got = 0
            inverted = np.invert(body)
            self.transport.writelines([HEAD % len(inverted), inverted.data])


async def serve(port: int, protocol: type[Receive]) -> None:
    """Listen on the loopback until the process is ended."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Invert if "--invert" in sys.argv else Receive))
