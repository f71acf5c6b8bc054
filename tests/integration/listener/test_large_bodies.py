"""Large bodies are received where they are to lie: on both event loops, over TCP, TLS and a Unix socket."""

import asyncio
import ssl
import threading
from random import Random

import pytest
import uvloop

SLAB_FROM = 64 * 1024
NOISE = Random(0).randbytes(4 * 1024 * 1024)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes, *fields: bytes) -> bytes:
    head = b"\r\n".join((b"POST /echo HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *fields, b"\r\n"))
    return head + body


def noise(nbytes: int, at: int = 0) -> bytes:
    return NOISE[at : at + nbytes]


@pytest.fixture(params=["uvloop", "asyncio"])
def new_loop(request):
    return uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop


class Talk:
    """A client that sends and reads at once; a blocking one over TLS cannot do both from two threads."""

    def __init__(self, server, context) -> None:
        self.server = server
        self.context = context

    def run(self, wire, sizes, read_when=lambda: True):
        """Send `wire`; when `read_when()` is true, read answers of those sizes, and return their bodies."""

        async def talk():
            uds = self.server.options.uds
            reader, writer = await (
                asyncio.open_unix_connection(uds)
                if uds
                else asyncio.open_connection("127.0.0.1", self.server.port, ssl=self.context)
            )
            try:
                writer.write(wire)
                while not read_when():
                    await asyncio.sleep(0.01)
                return [await self.answer(reader, size) for size in sizes]
            finally:
                writer.close()
                await writer.wait_closed()

        return asyncio.run(talk())

    async def answer(self, reader, size):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % size in head
        return await reader.readexactly(size)


@pytest.fixture(params=["tcp", "tls", "unix"])
def way(request):
    return request.param


@pytest.fixture
def meet(request, way, new_loop, serve, knock, tmp_path):
    """A server of these options whose large bodies get pieces, and how to connect to it."""

    def start(**options):
        context = None
        if way == "tls":
            cert, key = request.getfixturevalue("certificate")
            options |= {"tls_cert": cert, "tls_key": key}
            context = ssl.create_default_context(cafile=cert)
            context.check_hostname = False
        elif way == "unix":
            options |= {"uds": str(tmp_path / "socket")}
        server = serve(new_loop=new_loop, **options)
        server.app.slab_from = SLAB_FROM
        server.talk = Talk(server, context)
        return server, lambda: knock(server, context)

    return start


def protocols(server):
    """What the transports of all connections have for their protocol: "plain" or "large"."""
    return [
        "plain" if connection._transport.get_protocol() is connection else "large"
        for connection in server.listener._connections.open
    ]


def test_bodies_of_all_sizes_come_back_as_they_were_sent(meet):
    server, connect = meet()
    client = connect()
    sizes = [600_000, 600_000, 5, SLAB_FROM - 1, SLAB_FROM, SLAB_FROM + 1, 300_000, 0, 3_000_000, 70_000]
    for at, size in enumerate(sizes):
        client.send(post(noise(size, at)))
        assert client.answer()[2] == noise(size, at)
    assert [kind is memoryview for kind in server.app.kinds] == [size >= SLAB_FROM for size in sizes]
    server.until(lambda: server.app.lying() == 0)


def test_the_protocol_follows_what_comes(meet):
    server, connect = meet()
    client = connect()
    for body, expected in [(b"x", "plain"), (noise(2_000_000), "large"), (noise(2_000_000), "large"), (b"", "plain")]:
        client.send(post(body))
        assert client.answer()[2] == body
        assert server.call(lambda: protocols(server)) == [expected]


def test_pipelined_bodies_are_answered_in_order(meet):
    server, _ = meet()
    sizes = [10, 600_000, 600_000, 0, 100_000, 65_536, 1_000_000, 20_000, 70_000] * 3
    wire = b"".join(post(noise(size, at)) for at, size in enumerate(sizes))
    assert server.talk.run(wire, sizes) == [noise(size, at) for at, size in enumerate(sizes)]


def test_a_body_that_is_cut_near_its_edges_comes_whole(meet):
    _, connect = meet()
    client = connect()
    wire = post(noise(100_000))
    head = len(wire) - 100_000
    for edge in (head - 1, head, head + 1, len(wire) - 1):
        client.send(wire[:edge])
        client.send(wire[edge:] + GET + wire[:edge])
        client.send(wire[edge:])
        assert [client.answer()[2] for _ in range(3)] == [noise(100_000), b"", noise(100_000)]


def test_who_waits_for_continue_holds_nothing(meet):
    server, connect = meet()
    client = connect()
    for n in range(1, 4):
        wire = post(noise(600_000), b"Expect: 100-continue")
        client.send(wire[:-600_000])
        assert client.answer()[0] == 100
        assert server.call(lambda: len(server.app.pieces)) == n - 1
        client.send(wire[-600_000:])
        assert client.answer()[2] == noise(600_000)


@pytest.mark.parametrize("came", [1, 300_000, 599_999])
def test_a_client_that_leaves_half_way_holds_nothing(meet, came):
    server, connect = meet()
    client = connect()
    client.send(post(noise(600_000)))
    assert client.answer()[2] == noise(600_000)
    client.send(post(noise(600_000))[: came - 600_000])
    server.until(lambda: [body.came for body in server.app.arriving] == [came])
    server.until(lambda: server.app.held == came)  # the answer before it counts until it was seen to be taken
    client.close()
    server.until(lambda: server.listener.connections == 0)
    assert (server.app.lying(), server.app.held, server.app.arriving) == (0, 0, [])
    assert server.app.statuses == [200, 499]


def test_a_body_of_which_nothing_comes_any_more_is_408(meet):
    server, connect = meet(body_timeout=0.3)
    client = connect()
    client.send(post(noise(600_000))[:-1])
    assert client.answer()[0] == 408
    assert server.app.lying() == 0
    server.until(lambda: server.app.held == 0)


def test_a_body_that_is_moved_out_goes_on_inline(meet):
    server, connect = meet()
    client = connect()
    wire = post(noise(600_000))
    client.send(wire[:-300_000])
    server.until(lambda: [body.came for body in server.app.arriving] == [300_000])
    assert server.call(lambda: server.app.arriving[0].move_out(200_000)) == 200_000
    client.send(wire[-300_000:-200_000])
    server.until(lambda: [body.came for body in server.app.arriving] == [400_000])
    assert server.call(lambda: server.app.arriving[0].move_out(1 << 20)) == 200_000
    assert server.app.lying() == 0
    for rest in (wire[-200_000:], wire):
        client.send(rest)
        assert client.answer()[2] == noise(600_000)
    assert server.app.kinds == [bytearray, memoryview]


def test_a_client_that_reads_late_is_read_late(meet):
    server, _ = meet()
    body, lying = noise(3_000_000), []

    def is_not_read():
        lying.append(server.app.lying())
        return any(not connection._reading.on for connection in tuple(server.listener._connections.open))

    bodies = server.talk.run(post(body) * 20, [len(body)] * 20, read_when=is_not_read)
    assert bodies == [body] * 20
    assert lying[-1] < 20
    server.until(lambda: server.app.lying() == 0)


def test_many_clients_get_their_own_bytes(meet):
    server, connect = meet()
    wrong: list[object] = []

    def call(client, random):
        for _ in range(15):
            size = random.choice([5, 5000, 64 * 1024, 100_000, 300_000, 1_000_000])
            at = random.randrange(1_000_000)
            client.send(post(noise(size, at)))
            if client.answer()[2] != noise(size, at):
                wrong.append((size, at))

    threads = [threading.Thread(target=call, args=(connect(), Random(n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    server.until(lambda: len(server.app.statuses) == 8 * 15)
    server.until(lambda: server.app.lying() == 0)
