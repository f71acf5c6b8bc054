"""The fetcher over TLS: the name of the URL is what the certificate must be for, whatever address is connected to."""

from __future__ import annotations

import socket
import threading

import pytest
from web_servers import Asked, web_server

from penstock.errors import TransferCancelled, TransferFailed, TransferRejected
from penstock.transfer.addresses import parse_nets
from penstock.transfer.fetcher import Fetcher
from penstock.transfer.lookups import Resolved
from penstock.transfer.places import parse_place
from penstock.transfer.time_limit import TimeLimit

BODY = bytes(range(256)) * 4000


@pytest.fixture
def context(server_tls):
    return server_tls[0]


@pytest.fixture
def fetcher(server_tls, monkeypatch):
    """It trusts the test's certificate, and finds every name at 127.0.0.1."""
    monkeypatch.setenv("SSL_CERT_FILE", str(server_tls[1]))
    return Fetcher(
        parse_nets("127.0.0.0/8"),
        stall=5,
        resolve=lambda host, port: [Resolved(socket.AF_INET, ("127.0.0.1", port))],
    )


def fetch(fetcher, url, stopped=lambda: False) -> bytes:
    pieces: list[bytes] = []
    limit = TimeLimit(url, 30, stopped)
    fetcher.get(parse_place(url), pieces.append, most_bytes=len(BODY), limit=limit)
    return b"".join(pieces)


def test_a_page_is_fetched_where_the_certificate_is_for_its_name(fetcher, context):
    with web_server(lambda asked: asked.answer(body=BODY), context) as server:
        assert fetch(fetcher, f"https://localhost:{server.port}/") == BODY
        assert fetch(fetcher, f"https://localhost.:{server.port}/") == BODY


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1"])
def test_a_certificate_for_another_name_is_a_failure(fetcher, context, host):
    with (
        web_server(lambda asked: asked.answer(), context) as server,
        pytest.raises(TransferFailed, match="certificate is not valid"),
    ):
        fetch(fetcher, f"https://{host}:{server.port}/")


def test_a_certificate_that_nobody_vouches_for_is_a_failure(context):
    with (
        web_server(lambda asked: asked.answer(), context) as server,
        pytest.raises(TransferFailed, match="certificate is not valid"),
    ):
        fetch(Fetcher(parse_nets("127.0.0.0/8,::1")), f"https://localhost:{server.port}/")


def test_a_redirect_to_what_is_not_encrypted_is_refused(fetcher, context):
    with (
        web_server(lambda asked: asked.answer(302, Location="http://localhost/"), context) as server,
        pytest.raises(TransferRejected, match="not encrypted"),
    ):
        fetch(fetcher, f"https://localhost:{server.port}/")


def test_a_body_of_unknown_length_that_ends_without_a_goodbye_is_a_failure(fetcher, context):
    """Somebody in between can end a connection, and cannot say goodbye in TLS."""

    def answer(asked: Asked) -> None:
        asked.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        asked.sock.shutdown(socket.SHUT_RDWR)

    with web_server(answer, context) as server, pytest.raises(TransferFailed):
        fetch(fetcher, f"https://localhost:{server.port}/")


def test_a_transfer_that_is_stopped_ends_in_the_middle_of_a_handshake(fetcher):
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, and never says a word
        begun = threading.Event()

        def stopped() -> bool:
            answer, _ = begun.is_set(), begun.set()
            return answer

        with pytest.raises(TransferCancelled):
            fetch(fetcher, f"https://localhost:{listener.getsockname()[1]}/", stopped)


def test_what_speaks_no_tls_is_a_failure(fetcher):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def speak() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.recv(65536)

        thread = threading.Thread(target=speak)
        thread.start()
        try:
            with pytest.raises(TransferFailed, match="it speaks no TLS: write http://"):
                fetch(fetcher, f"https://localhost:{port}/")
        finally:
            thread.join()
