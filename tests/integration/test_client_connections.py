"""The connections of the Python client: what becomes of them, also of calls that are cancelled at any point."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from waiting import PATIENCE_SECONDS, until

from penstock.client import AsyncClient, httpx_
from penstock.client.client_options import ServerAddress
from penstock.client.replies import NoReply, Reply
from penstock.client.wire import OutgoingRequest

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1"
TURNS = 40
"""Of the event loop: a call has ended by then, unless it was cancelled."""


class Server:
    """Answers 1 in two pieces, and counts who is connected."""

    def __init__(self):
        self.connected = 0
        self.pieces = (ANSWER[:30], ANSWER[30:])

    async def answer(self, reader, writer):
        self.connected += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
                for piece in self.pieces:
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


@contextlib.asynccontextmanager
async def wire_to(server, most_kept):
    """A wire to `server`, and a request that it takes."""
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    wire = httpx_.HttpxWire(ServerAddress(url), most_kept)
    async with listening:
        yield wire, OutgoingRequest("POST", f"{url}/predict", {}, b"1")
        await wire.close()
        await until(lambda: not server.connected, "the end of the connections")


async def test_no_more_connections_are_kept_than_may_be(monkeypatch):
    server = Server()
    async with wire_to(server, 2) as (wire, request):
        for reply in await asyncio.gather(*(wire.send(request) for _ in range(5))):
            assert reply.body == b"1"
        await until(lambda: server.connected == 2, "the end of the connections that are too many")
        monkeypatch.setattr(httpx_, "KEPT_SECONDS", -1.0)  # each is too old at once
        await wire.send(request)
        await until(lambda: not server.connected, "the end of the old connections")


@pytest.mark.parametrize("limit", ["LARGEST_RESULT_BYTES", "LARGEST_PAGE_BYTES"])
async def test_an_answer_that_is_too_large_is_none_and_its_connection_is_closed(limit, monkeypatch):
    server = Server()
    if limit == "LARGEST_PAGE_BYTES":
        server.pieces = (b"HTTP/1.1 500 X\r\ncontent-length: 9\r\n\r\n", b"too large")
    async with wire_to(server, 2) as (wire, request):
        assert isinstance(await wire.send(request), Reply)
        monkeypatch.setattr(httpx_, limit, 0)
        assert await wire.send(request) == NoReply(sent=True, detail="the answer has more than 0 bytes")
        await until(lambda: not server.connected, "the end of the connection")
