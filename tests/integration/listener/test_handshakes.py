"""Handshakes that go wrong, or do not go on, leave nothing behind and keep nobody out."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl

import pytest
from processes import open_files

GET = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n"


def trusting(cert):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cert)
    return context


@pytest.fixture
def serve_tls(serve, certificate):
    """Starts a server over TLS."""
    cert, key = certificate
    return lambda **options: serve(tls_cert=cert, tls_key=key, **options)


def sockets():
    """The open sockets of this process."""
    return {name for name in open_files() if "socket:" in name}


def handshakes(server):
    return len(server.listener._handshakes)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"\0" * 5000], ids=["nothing", "half-a-hello", "zeros"])
def test_whatever_a_client_says_instead_of_tls_its_connection_is_soon_gone(serve_tls, knock, certificate, said):
    server = serve_tls(header_timeout=0.5)
    before = sockets()
    client = knock(server)
    client.send(said)
    assert client.ended()
    server.until(lambda: handshakes(server) == 0)
    client.close()
    server.until(lambda: sockets() == before)
    other = knock(server, trusting(certificate[0]))
    other.send(GET)
    assert other.answer()[0] == 200


def test_a_client_that_asks_in_plain_text_is_told_of_tls_and_its_connection_is_gone(serve_tls, knock):
    server = serve_tls()
    client = knock(server)
    client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
    status, _, body = client.answer()
    assert (status, json.loads(body)["detail"]) == (400, "this port speaks TLS: write https://")
    assert client.ended()
    server.until(lambda: handshakes(server) == 0)


def test_clients_that_leave_in_their_handshake_are_soon_gone(serve_tls, knock):
    server = serve_tls()
    clients = [knock(server) for _ in range(20)]
    server.until(lambda: handshakes(server) == 20)
    for n, client in enumerate(clients):
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([n % 2, *[0] * 7]))  # some with a reset
        client.close()
    server.until(lambda: handshakes(server) == 0)
    assert server.listener.connections == 0


def test_what_a_client_sends_together_with_the_end_of_its_handshake_is_served(serve_tls, certificate):
    server = serve_tls(max_body_bytes=10_000_000)
    body = bytes(2_000_000)
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting(certificate[0]).wrap_bio(incoming, outgoing)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        tls.write(head + body)
        sock.sendall(outgoing.read())  # the end of the handshake, head and body
        answer = b""
        while len(answer) < len(body):
            incoming.write(sock.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:
                    answer += tls.read(100_000)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_server_that_ends_waits_for_no_handshake(serve_tls, knock):
    server = serve_tls()
    clients = [knock(server) for _ in range(5)]
    server.until(lambda: handshakes(server) == 5)
    server.stop(grace=30.0)
    assert all(client.ended() for client in clients)
