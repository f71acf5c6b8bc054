"""The connections of the Python client: what becomes of them, also of calls that are cancelled at any point."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from operator import methodcaller

import pytest
from waiting import PATIENCE_SECONDS, until

from penstock.client import AsyncClient, Client, httpx_
from penstock.client.client_options import read_server_address
from penstock.client.wire import OutgoingRequest
from penstock.errors import ConnectionFailed, DeadlineExceeded, ServerError

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1"
each_way = pytest.mark.parametrize("way", ["tcp", "unix"])
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
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int((re.findall(rb"content-length: (\d+)", head.lower()) or [0])[0]))
                await self.respond(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connected -= 1
            writer.close()

    async def respond(self, reader, writer):
        for piece in (ANSWER[:30], ANSWER[30:]):
            await asyncio.sleep(0)
            writer.write(piece)


@contextlib.asynccontextmanager
async def serving(server, way="tcp"):
    """The URL of `server`; at the end nobody is connected any more."""
    with tempfile.TemporaryDirectory() as folder:
        if way == "tcp":
            listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        else:
            listening = await asyncio.start_unix_server(server.answer, f"{folder}/a.sock")
            url = f"http+unix://{folder}/a.sock"
        async with listening:
            yield url
            await until(lambda: not server.connected, "the end of the connections")


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_server_that_speaks_no_tls_is_told_as_that():
    async def answer(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with AsyncClient(url, max_retries=0) as c:
            with pytest.raises(ConnectionFailed, match="the server does not use TLS: write http://"):
                await c.predict(1)


@pytest.mark.parametrize("connected", [False, True], ids=["connecting", "connected"])
@pytest.mark.parametrize("cancelled", [1, 2], ids=["once", "twice"])
async def test_a_call_that_is_cancelled_at_any_point_is_in_nobodys_way(cancelled, connected):
    server = Server()
    ended = 0
    async with serving(server) as url:
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


@each_way
async def test_no_more_connections_are_kept_than_may_be(way, monkeypatch):
    server = Server()
    async with serving(server, way) as url:
        address = read_server_address(url)
        wire = httpx_.HttpxWire(address, 2)
        request = OutgoingRequest("POST", f"{address.base}/predict", {}, b"1", largest=1)
        for reply in await asyncio.gather(*(wire.send(request) for _ in range(5))):
            assert reply.body == b"1"
        await until(lambda: server.connected == 2, "the end of the connections that are too many")
        monkeypatch.setattr(httpx_, "KEPT_SECONDS", -1.0)  # each is too old at once
        await wire.send(request)
        await until(lambda: not server.connected, "the end of the old connections")
        await wire.close()


class Former(Server):
    """Refuses twice, with an answer that begins with `head`, and leaves the connection open; then it answers."""

    def __init__(self, head):
        super().__init__()
        self.head = head
        self.refusals = 2
        self.accepted = 0

    async def answer(self, reader, writer):
        self.accepted += 1
        await super().answer(reader, writer)

    async def respond(self, reader, writer):
        if self.refusals:
            self.refusals -= 1
            writer.write(self.head + b"retry-after-ms: 0\r\ncontent-length: 1\r\n\r\n1")
        else:
            await super().respond(reader, writer)


@pytest.mark.parametrize(
    ("head", "accepted"),
    [
        (b"HTTP/1.1 503 X\r\n", 3),
        (b"HTTP/1.1 421 X\r\nx-should-retry: true\r\n", 3),
        (b"HTTP/1.1 503 X\r\nx-should-retry: true\r\n", 1),
    ],
    ids=["of a proxy", "misdirected", "of ours"],
)
async def test_a_connection_to_who_is_not_the_server_is_not_used_again(head, accepted):
    server = Former(head)
    async with serving(server) as url, AsyncClient(url) as c:
        assert await c.predict(1) == 1
        assert server.accepted == accepted


# -- limits, by each client over each transport ------------------------------------------------------------------------

each_client = pytest.mark.parametrize("kind", [AsyncClient, Client])
HEAD = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nretry-after-ms: 0\r\n"


async def calling(kind, url, call, **options):
    """What `call` of a client of this kind gives or raises."""
    if kind is AsyncClient:
        async with AsyncClient(url, **options) as c:
            return await call(c)

    def work():
        with Client(url, **options) as c:
            return call(c)

    return await asyncio.to_thread(work)


class Liar(Server):
    """Writes `head` and then `piece` again and again until the connection is closed."""

    def __init__(self, head, piece=b""):
        super().__init__()
        self.head = head
        self.piece = piece
        self.requests = 0
        self.left = 640
        """How many pieces it writes: half of them are more than a client may take."""

    async def respond(self, reader, writer):
        self.requests += 1
        writer.write(self.head)
        while self.piece and self.left:
            self.left -= 1
            writer.write(self.piece)
            await writer.drain()
        if b"content-length: 0" not in self.head:
            await reader.read()  # until it is closed


PREDICT = methodcaller("predict", 1)
LENGTH = b"content-length: 999999999999\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
PIECE = b"x" * 100_000
CHUNK = b"186a0\r\n" + PIECE + b"\r\n"


@each_way
@each_client
@pytest.mark.parametrize(
    ("status", "framing", "piece", "call", "largest"),
    [
        (200, LENGTH, PIECE, PREDICT, 1_000_000),
        (200, CHUNKED, CHUNK, PREDICT, 1_000_000),
        (200, b"\r\n", PIECE, PREDICT, 1_000_000),
        (503, LENGTH, PIECE, PREDICT, 1 << 20),
        (503, CHUNKED, CHUNK, PREDICT, 1 << 20),
        (200, CHUNKED, CHUNK, methodcaller("health"), 1 << 20),
    ],
)
async def test_an_answer_without_end_is_none_and_its_connection_is_closed(
    status, framing, piece, call, largest, kind, way
):
    server = Liar(HEAD % status + framing, piece)
    async with serving(server, way) as url:
        with pytest.raises(ConnectionFailed, match=f"the response has more than {largest} bytes"):
            await calling(kind, url, call, max_result=1_000_000, max_retries=0)
    assert server.left > 320


@each_way
@each_client
@pytest.mark.parametrize(
    ("head", "piece"), [(HEAD % 200, b"x-y: %s\r\n" % PIECE), (b"HTTP/1.1 100 C\r\n", PIECE)], ids=["fields", "line"]
)
async def test_a_head_without_end_is_a_connection_that_was_lost(head, piece, kind, way):
    server = Liar(head, piece)
    async with serving(server, way) as url:
        with pytest.raises(ConnectionFailed):
            await calling(kind, url, PREDICT, max_retries=0)
    assert server.left > 320


@each_way
@each_client
@pytest.mark.parametrize("head", [b"", HEAD % 200, HEAD % 200 + LENGTH + b"1"], ids=["nothing", "head", "body"])
async def test_what_a_server_does_not_finish_in_time_is_given_up(head, kind, way):
    server = Liar(head)
    async with serving(server, way) as url:
        with pytest.raises(DeadlineExceeded) as caught:
            await calling(kind, url, PREDICT, timeout=0.05)
    assert caught.value.ran


@each_way
@each_client
async def test_no_more_is_tried_again_than_may_be(kind, way):
    server = Liar(HEAD % 503 + b"x-should-retry: true\r\ncontent-length: 0\r\n\r\n")
    async with serving(server, way) as url:
        with pytest.raises(ServerError):
            await calling(kind, url, PREDICT, max_retries=3)
    assert server.requests == 4


class Counting(Server):
    """Answers once two requests are there, and counts how many were at a time."""

    def __init__(self):
        super().__init__()
        self.inside = self.most = 0
        self.two = asyncio.Event()

    async def respond(self, reader, writer):
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside == 2:
            self.two.set()
        await self.two.wait()
        await turns(TURNS)  # in which a third one would come
        self.inside -= 1
        writer.write(HEAD % 200 + b'content-length: 27\r\n\r\n{"outcomes":[{"result":1}]}')


@each_way
@each_client
async def test_no_more_is_in_flight_than_may_be(kind, way):
    server = Counting()
    async with serving(server, way) as url:
        assert await calling(kind, url, lambda c: c.predict_many(range(6), batch_size=1), max_concurrency=2) == [1] * 6
    assert server.most == 2
