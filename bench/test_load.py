"""The load generator sees what is wrong with an answer, and reads right what is right in an unusual form."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from loadgen import Loader, LoadFailed, LoadResult, run_load
from payload import Exchange, request
from procfs import costs, tree

OK_EXPECTED = Exchange(answer=b"ok")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def answering(
    *pieces: bytes,
    close: bool = False,
    seen: list[bytes] | None = None,
    exchange: Exchange = OK_EXPECTED,
    numbered: bool = False,
    made: Callable[[bytes], bytes] = lambda _: b"",
    part: int = 1 << 20,
) -> Iterator[int]:
    """A server on the loopback that answers every request with `pieces`, sent one by one, and then with what is `made`
    of the request, in parts of so many bytes; yields its port.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            wanted = len(request("/x", listener.getsockname()[1], exchange, numbered=numbered))
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    got = b""
                    while len(got) < wanted:
                        data = connection.recv(wanted - len(got))
                        if not data:
                            return
                        got += data
                    if seen is not None:
                        seen.append(got)
                    for piece in pieces:
                        connection.sendall(piece)
                    answer = made(got)
                    for at in range(0, len(answer), part):
                        connection.sendall(answer[at : at + part])
                    if close:
                        return

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=guarded, args=(connection,), daemon=True))
                threads[-1].start()

        def guarded(connection: socket.socket) -> None:
            try:
                serve(connection)
            except OSError:
                return  # the load generator has left

        threads = [threading.Thread(target=accept, daemon=True)]
        threads[0].start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:  # the first one has started all others when it ends
            thread.join()


def load(port: int, **options: int) -> LoadResult:
    return run_load(
        port, "/x", connections=2, seconds=5, warmup=0, requests=options.get("requests", 20), exchange=OK_EXPECTED
    )


def test_the_asked_for_number_of_right_answers_is_counted() -> None:
    with answering(OK) as port:
        result = load(port, requests=50)
    assert result.errors == 0
    assert 50 <= result.requests <= 51  # two connections: the last turn of the loop may bring one more
    assert 0 < result.p50_us <= result.p99_us <= result.max_us


def test_a_loader_sends_exactly_what_it_is_told_to_over_connections_that_it_keeps() -> None:
    seen: list[bytes] = []
    with answering(OK, seen=seen) as port, Loader(port, "/x", connections=2, exchange=OK_EXPECTED) as loader:
        counts = [loader.run(requests).requests for requests in (1, 7, 20)]
        assert len(seen) == 28
    assert counts == [1, 7, 20]


def test_a_loader_fails_at_the_first_wrong_answer() -> None:
    wrong = OK.replace(b"\r\n\r\nok", b"\r\n\r\nno")
    with answering(wrong) as port, Loader(port, "/x", connections=2, exchange=OK_EXPECTED) as loader:
        with pytest.raises(LoadFailed, match="another body: no"):
            loader.run(20)
        with pytest.raises(LoadFailed, match="ended"):
            loader.run(20)


def test_a_request_larger_than_the_socket_buffers_arrives_whole() -> None:
    seen: list[bytes] = []
    blob = Exchange(bytes(range(256)) * 8000, b"ok", "application/octet-stream")
    with answering(OK, seen=seen, exchange=blob) as port, Loader(port, "/x", connections=2, exchange=blob) as loader:
        loader.run(4)
        assert seen == [request("/x", port, blob)] * 4


def test_the_name_of_content_length_has_no_case() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nx-content-length: 9\r\nCONTENT-length:2\r\n\r\nok") as port:
        assert load(port).errors == 0


def test_an_answer_may_come_byte_by_byte() -> None:
    with answering(*(bytes([b]) for b in OK)) as port:
        assert load(port).errors == 0


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nok", "503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", "another body: no"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok!", "a body of 3 bytes, expected 2"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok?", "1 bytes too many"),
        (b"HTTP/1.1 200 OK\r\n\r\nok", "answer: HTTP/1.1 200 OK"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000, "without end of head"),
    ],
)
def test_a_wrong_answer_is_an_error_that_says_what_came(answer: bytes, sentence: str) -> None:
    with answering(answer) as port, pytest.raises(LoadFailed, match=sentence):
        load(port)


def test_a_connection_that_the_server_closes_is_an_error() -> None:
    with (
        answering(OK, close=True) as port,
        pytest.raises(LoadFailed, match=r"recv: closed by the server|recv: Connection reset"),
    ):
        load(port)


SPIN = """
import sys, time
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def test_numbered_requests_differ_and_keep_their_length() -> None:
    seen: list[bytes] = []
    with answering(OK, seen=seen, numbered=True) as port:
        run_load(port, "/x", connections=2, seconds=5, warmup=0, requests=20, exchange=OK_EXPECTED, numbered=True)
    assert len(set(seen)) == len(seen) >= 20
    assert min(seen).replace(b"bench-0000000001", b"bench-0000000000") == request("/x", port, numbered=True)


ROOM = b"." * 10
OWN = Exchange(b"a" + ROOM + b"bc", b"z" + ROOM + b"b", number_at=1, back_at=1)
"""A request whose number comes back between other bytes than those it was sent between."""
LARGE = replace(OWN, body=b"a" + ROOM + bytes(1_000_000))


def given_back(got: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nz" + number_of(got) + b"b"


def number_of(got: bytes) -> bytes:
    return got.partition(b"\r\n\r\n")[2][1:11]


@pytest.mark.parametrize("exchange", [OWN, LARGE], ids=["small", "larger than the socket buffers"])
def test_each_request_has_its_number_in_the_body_where_the_exchange_says(exchange: Exchange) -> None:
    seen: list[bytes] = []
    with answering(seen=seen, exchange=exchange, made=given_back) as port:
        with Loader(port, "/x", connections=2, exchange=exchange) as loader:
            loader.run(6)
        assert sorted(map(number_of, seen)) == [b"%010d" % number for number in range(1, 7)]
        assert {got.replace(number_of(got), ROOM, 1) for got in seen} == {request("/x", port, exchange)}


def test_a_number_may_come_back_inverted() -> None:
    def turned(got: bytes) -> bytes:
        return given_back(got).replace(number_of(got), bytes(255 - digit for digit in number_of(got)))

    inverted = replace(OWN, inverted=True)
    with (
        answering(exchange=inverted, made=turned) as port,
        Loader(port, "/x", connections=2, exchange=inverted) as loader,
    ):
        assert loader.run(6).errors == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda got: given_back(got).replace(number_of(got), b"0000000099"),
        lambda got: given_back(got).replace(number_of(got), ROOM),
        lambda got: given_back(got).replace(b"\r\n\r\nz", b"\r\n\r\na"),
        lambda got: given_back(got)[:-1] + b"c",
    ],
    ids=["another's number", "no number", "another byte before", "another byte behind"],
)
def test_an_answer_with_another_number_or_another_byte_beside_it_is_an_error(wrong: Callable[[bytes], bytes]) -> None:
    with (
        answering(exchange=OWN, made=wrong, part=1) as port,
        pytest.raises(LoadFailed, match="another body"),
        Loader(port, "/x", connections=2, exchange=OWN) as loader,
    ):
        loader.run(6)


def test_a_number_that_does_not_come_back_is_not_looked_for() -> None:
    sent = replace(OWN, answer=b"ok", back_at=None)
    with answering(OK, exchange=sent) as port, Loader(port, "/x", connections=2, exchange=sent) as loader:
        assert loader.run(6).errors == 0


def test_the_cost_of_a_process_tree_is_read_apart_for_workers() -> None:
    command = [sys.executable, "-c", SPIN, "the-mark"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in tree(os.getpid())
        coordinator, workers = costs(os.getpid(), "the-mark")
        child.communicate()
    assert 0.15 < workers.cpu < 2
    assert workers.rss >= workers.pss > 0
    assert coordinator.rss > 0
