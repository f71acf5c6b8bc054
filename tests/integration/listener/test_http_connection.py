"""Over real sockets: what depends on the kernel and the event loop."""

import contextlib
import select
import socket
import ssl
import threading
import time

import pytest
from waiting import until_now

TLS_GOODBYE_SECONDS = 1.0
"""How long a client may take over the end of TLS where a test waits for that."""

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LATER = b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
BIG = b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n"
NO = b"GET /no HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(body: bytes, path: bytes = b"/echo") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)


def test_requests_are_answered_on_one_connection(serve, knock):
    client = knock(serve())
    for size in (0, 1, 1000, 1_000_000):
        client.send(post(bytes(size)))
        assert client.answer()[2] == bytes(size)


def test_pipelined_requests_are_answered_in_order(serve, knock):
    client = knock(serve())
    client.send(b"".join(post(b"%d" % n) for n in range(200)))
    assert [client.answer()[2] for _ in range(200)] == [b"%d" % n for n in range(200)]


def test_a_drain_in_the_midst_of_pipelined_requests_loses_no_answer(serve, knock):
    server = serve()
    client, ends = knock(server), []

    def send():
        with contextlib.suppress(OSError):
            client.send(NO * 100_000)

    threads = [threading.Thread(target=send), threading.Thread(target=lambda: ends.append(server.stop(grace=10.0)))]
    threads[0].start()
    server.until(lambda: 404 in server.app.statuses)
    threads[1].start()
    received = bytearray()
    while piece := client.sock.recv(1 << 20):  # a reset would be an error
        received += piece
    client.close()
    for thread in threads:
        thread.join()
    assert ends == [None]
    assert 0 < received.count(b"HTTP/1.1 404") == server.app.statuses.count(404) < 100_000
    assert received.count(b"connection: close") == 1
    assert received.endswith(b"no")


def test_small_answers_do_not_wait_for_company(serve, knock):
    server = serve()
    knock(server)
    server.until(lambda: server.listener.connections == 1)

    def no_delay():
        (connection,) = server.listener._connections.open
        sock = connection._transport.get_extra_info("socket")
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert server.call(no_delay)


def test_a_connection_that_is_to_close_closes(serve, knock):
    client = knock(serve())
    client.send(CLOSE)
    assert b"connection: close" in client.answer()[1]
    assert client.ended()


def test_a_large_refused_body_does_not_cost_the_client_its_answer(serve, knock):
    server = serve(max_body_bytes=1000)
    client = knock(server)
    client.send(post(bytes(8 * 1024 * 1024)))  # to the last byte: no reset on the way
    assert client.answer()[0] == 413
    assert client.ended()


def test_a_refused_client_that_stops_and_waits_sees_the_end(serve, knock):
    client = knock(serve())
    client.send(b"nonsense\r\n\r\n")
    assert client.answer()[0] == 400
    assert client.ended()


def test_a_slow_head_is_answered_408(serve, knock):
    client = knock(serve(header_timeout=0.5))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"a" * 20:
            client.send(bytes([byte]))
            if select.select([client.sock], [], [], 0.1)[0]:
                break
    assert client.answer()[0] == 408
    assert client.ended()


def test_a_stalled_body_is_answered_408(serve, knock):
    client = knock(serve(body_timeout=0.3))
    client.send(post(bytes(1000))[:-1])
    assert client.answer()[0] == 408
    assert client.ended()


def test_an_idle_connection_is_closed(serve, knock):
    client = knock(serve(keepalive_timeout=0.3))
    client.send(GET)
    assert client.answer()[0] == 200
    assert client.ended()


def test_a_silent_connection_is_closed(serve, knock):
    assert knock(serve(header_timeout=0.3)).ended()


def test_an_endless_header_is_refused_at_its_limit(serve, knock):
    server = serve()
    client = knock(server)
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < 1024 * 1024:
            client.send(b"a" * 1024)
            sent += 1024
    assert client.answer()[0] == 431


def test_a_client_that_never_reads_is_cut_off_and_what_it_held_given_back(serve, knock):
    server = serve(write_timeout=1.0)
    client = knock(server, small_buffer=True)
    client.send(BIG)
    server.until(lambda: server.app.most_held > 16 * 1024 * 1024)
    server.until(lambda: server.listener.connections == 0)
    assert server.app.held == 0


def test_a_client_that_never_reads_is_not_read_either(serve, knock):
    server = serve()
    client = knock(server, small_buffer=True)
    client.send(BIG)
    server.until(lambda: server.app.most_held > 0)
    client.send(GET * 10)
    time.sleep(0.3)
    assert len(server.app.statuses) == 1
    assert client.answer()[2] == server.app.big
    assert [client.answer()[0] for _ in range(10)] == [200] * 10
    server.until(lambda: server.app.held == 0)


def test_many_small_answers_that_nobody_reads_are_held_for_their_requests(serve, knock):
    server = serve()
    client = knock(server, small_buffer=True)
    sender = threading.Thread(target=client.send, args=(post(bytes(31 * 1024)) * 400,))
    sender.start()
    server.until(lambda: server.app.held > 0)
    assert server.app.nobodys == 0
    assert [client.answer()[0] for _ in range(400)] == [200] * 400
    sender.join()
    server.until(lambda: server.app.held == 0)


@pytest.mark.night
def test_a_slow_reader_gets_the_whole_answer(serve, knock):
    server = serve(write_timeout=3.0)  # a busy machine may let a client stand still for a second
    client = knock(server, small_buffer=True)
    client.send(BIG)
    started, taken = time.monotonic(), 0
    while time.monotonic() < started + 6.0:
        taken += len(client.sock.recv(64 * 1024))
        time.sleep(0.02)
    while taken < len(server.app.big):
        piece = client.sock.recv(1 << 20)
        assert piece
        taken += len(piece)


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_is_noticed_at_once(serve, knock, reset):
    server = serve()
    client = knock(server)
    client.send(LATER + LATER)
    server.until(lambda: len(server.app.waiting) == 2)
    if reset:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    server.until(lambda: server.app.cancelled == [b"/later"] * 2)
    assert server.app.statuses == [499, 499]
    server.call(server.app.release)  # too late, and harmless


def test_a_client_that_leaves_in_the_middle_of_a_body_is_forgotten(serve, knock):
    server = serve()
    client = knock(server)
    client.send(post(bytes(100_000))[:-1])
    server.until(lambda: server.app.held > 90_000)
    client.close()
    server.until(lambda: server.listener.connections == 0)
    assert server.app.held == 0


def test_connections_beyond_the_cap_may_ask_for_probes_and_are_else_answered_503(serve, knock):
    server = serve(max_connections=2)
    kept = [knock(server), knock(server)]
    for client in kept:
        client.send(LATER)
    server.until(lambda: len(server.app.waiting) == 2)
    for ask, status in ((GET.replace(b" / ", b" /livez "), 200), (GET, 503)):
        extra = knock(server)
        extra.send(ask)
        assert extra.answer()[0] == status
        assert extra.ended()
        extra.close()
    kept[0].close()
    server.until(lambda: server.listener.connections == 1)
    again = knock(server)
    again.send(GET)
    assert again.answer()[0] == 200


def test_of_those_that_waited_in_the_kernel_none_is_cut_before_it_was_read(serve, knock):
    server = serve(max_connections=1)
    knock(server).send(LATER)
    server.until(lambda: len(server.app.waiting) == 1)
    crowd, blocked = [], threading.Event()
    server.loop.call_soon_threadsafe(blocked.wait, 20.0)
    try:
        for _ in range(600):
            crowd.append(knock(server))
            crowd[-1].send(GET)
    finally:
        blocked.set()
    assert {client.answer()[0] for client in crowd} == {503}


@pytest.mark.parametrize("last", [False, True], ids=["kept", "closed"])
def test_over_tls_who_is_idle_makes_way_and_so_does_who_leaves_our_goodbye_unanswered(serve, knock, certificate, last):
    cert, key = certificate
    server = serve(tls_cert=cert, tls_key=key, max_connections=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cert)
    idle = knock(server, context)
    idle.send(CLOSE if last else GET)
    assert idle.answer()[0] == 200

    def served():
        client = knock(server, context)
        client.send(GET)
        return client.answer()[0] == 200

    until_now(served, "room for another")
    assert idle.ended()


def trusting(cert):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cert)
    return context


@pytest.fixture
def short_goodbye(monkeypatch):
    """The listener gives less time for that than in production."""
    monkeypatch.setattr("penstock.server.http1.listener.TLS_GOODBYE_SECONDS", TLS_GOODBYE_SECONDS)


@pytest.mark.usefixtures("short_goodbye")
def test_over_tls_who_leaves_our_goodbye_unanswered_is_soon_forgotten(serve, knock, certificate):
    cert, key = certificate
    server = serve(tls_cert=cert, tls_key=key)
    client = knock(server, trusting(cert))
    client.send(CLOSE)
    assert client.answer()[0] == 200
    assert client.ended()
    server.until(lambda: server.listener.connections == 0, within=4.0)


@pytest.mark.usefixtures("short_goodbye")
def test_over_tls_a_last_answer_may_take_longer_than_the_goodbye(serve, knock, certificate):
    cert, key = certificate
    server = serve(tls_cert=cert, tls_key=key)
    client = knock(server, trusting(cert), small_buffer=True)
    client.send(BIG.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    begun = time.monotonic()
    until_now(lambda: time.monotonic() - begun > 2 * TLS_GOODBYE_SECONDS, "the time of a goodbye to pass")
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # what is on its way then comes at once
    assert client.answer()[2] == server.app.big
    assert client.ended()


def test_over_tls_what_a_client_leaves_unread_is_counted_too_and_it_is_cut(serve, knock, certificate):
    cert, key = certificate
    server = serve(tls_cert=cert, tls_key=key, write_timeout=1.0)
    client = knock(server, trusting(cert), small_buffer=True)
    client.send(BIG)
    server.until(lambda: server.app.held > len(server.app.big) // 2)
    server.until(lambda: server.listener.connections == 0 and server.app.held == 0)


def test_tls_serves_the_same(serve, knock, certificate):
    cert, key = certificate
    server = serve(tls_cert=cert, tls_key=key)
    assert server.listener.addresses[0].startswith("https://127.0.0.1:")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cert)
    client = knock(server, context)
    client.send(post(bytes(300_000)))
    assert client.answer()[2] == bytes(300_000)
    client.send(BIG)
    assert client.answer()[2] == server.app.big
    client.send(post(bytes(100_000), b"/no"))
    assert client.answer()[0] == 404
