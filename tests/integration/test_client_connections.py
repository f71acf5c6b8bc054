"""The connections of the Python client, where its calls are cancelled at every point of their way."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from waiting import PATIENCE_SECONDS, until

from penstock.client import AsyncClient

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1"
TURNS = 40
"""Of the event loop: a call has ended by then, unless it was cancelled."""


class Server:
    """Answers 1 in two pieces, and counts who is connected."""

    def __init__(self):
        self.connected = 0

    async def answer(self, reader, writer):
        self.connected += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
                for piece in (ANSWER[:30], ANSWER[30:]):
                    await asyncio.sleep(0)
                    writer.write(piece)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connected -= 1
            writer.close()


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("connected", [False, True], ids=["connecting", "connected"])
@pytest.mark.parametrize("cancelled", [1, 2], ids=["once", "twice"])
async def test_a_call_that_is_cancelled_at_any_point_is_in_nobodys_way(cancelled, connected):
    server = Server()
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    ended = 0
    async with listening:
        for point in range(TURNS):
            async with AsyncClient(url, max_concurrency=1, timeout=PATIENCE_SECONDS) as c:
                if connected:
                    await c.predict(1)
                call = asyncio.create_task(c.predict(1))
                await turns(point)
                for _ in range(cancelled):
                    call.cancel()
                    await turns(1)
                with contextlib.suppress(asyncio.CancelledError):
                    await call
                ended += call.cancelled()
                assert await c.predict(1) == 1, f"cancelled in turn {point} of its way"
                await until(lambda: server.connected == 1, "the end of the other connections")
            await until(lambda: not server.connected, "the end of the last connection")
    assert ended > TURNS / 10, "cancelled under way"
