"""The fetcher against servers that are slow, lie, redirect, and lead to where nobody may go."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from web_servers import Asked, web_server

from penstock.errors import TransferCancelled, TransferFailed, TransferRejected
from penstock.transfer import connecting
from penstock.transfer.addresses import parse_nets
from penstock.transfer.fetcher import Fetcher
from penstock.transfer.lookups import Resolved
from penstock.transfer.outgoing import Outgoing
from penstock.transfer.places import parse_place
from penstock.transfer.time_limit import TimeLimit

LOOPBACK = parse_nets("127.0.0.0/8")


def fetch(url, *, fetcher=None, most_bytes=1000, seconds=30.0, stopped=lambda: False) -> bytes:
    pieces: list[bytes] = []
    limit = TimeLimit(url, seconds, stopped)
    fetcher = fetcher or Fetcher(LOOPBACK)
    fetcher.get(parse_place(url), pieces.append, most_bytes=most_bytes, limit=limit)
    return b"".join(pieces)


def put(url, body=b"result", *, fetcher=None) -> None:
    (fetcher or Fetcher(LOOPBACK)).put(parse_place(url), Outgoing(body, "text/plain"), limit=TimeLimit(url, 30))


@pytest.mark.smoke
def test_a_page_is_fetched_whole_and_unencoded():
    with web_server(lambda asked: asked.answer(body=b"abc", Content_Type="audio/wav")) as server:
        pieces = []
        place = parse_place(f"{server.url}/a%20b?c=d")
        kind = Fetcher(LOOPBACK).get(place, pieces.append, most_bytes=3, limit=TimeLimit("", 30))
    assert (pieces, kind) == ([b"abc"], "audio/wav")
    assert server.asked[0].target == "/a%20b?c=d"
    fields = server.asked[0].fields
    assert (fields["host"], fields["accept-encoding"]) == (f"127.0.0.1:{server.port}", "identity")


def test_a_body_of_megabytes_arrives():
    body = bytes(range(256)) * 20_000
    with web_server(lambda asked: asked.answer(body=body)) as server:
        assert fetch(server.url, most_bytes=len(body)) == body


# -- where it may lead ------------------------------------------------------------------------------------------------


def test_an_address_that_is_not_public_is_refused_before_a_connection():
    with web_server(lambda asked: asked.answer()) as server:
        for host in ("127.0.0.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "localhost"):
            with pytest.raises(TransferRejected, match=r"not a public address; --allow-net"):
                fetch(f"http://{host}:{server.port}/", fetcher=Fetcher())
        assert server.connections == 0


def loopback(port: int) -> Resolved:
    return Resolved(socket.AF_INET, ("127.0.0.1", port))


def test_one_refused_address_among_several_refuses_the_host():
    answers = [Resolved(socket.AF_INET, ("8.8.8.8", 80)), loopback(80)]
    with pytest.raises(TransferRejected, match=r"127.0.0.1 is not a public address"):
        fetch("http://both.example/", fetcher=Fetcher(resolve=lambda host, port: answers))


def test_an_address_with_a_scope_is_refused():
    answers = [Resolved(socket.AF_INET6, ("2606:4700::1", 80, 0, 2))]
    with pytest.raises(TransferRejected, match="has a scope id"):
        fetch("http://scoped.example/", fetcher=Fetcher(resolve=lambda host, port: answers))


def test_a_name_is_looked_up_once_and_the_judged_address_is_connected_to():
    """The second answer of a name that is bound anew would be another address: nobody asks for it."""
    asked_for = []

    def rebinding(host, port):
        asked_for.append(host)
        return [Resolved(socket.AF_INET, ("127.0.0.1" if len(asked_for) == 1 else "127.0.0.2", port))]

    with web_server(lambda asked: asked.answer(body=b"first")) as server:
        # Only the first address is allowed, and only there somebody listens.
        fetcher = Fetcher(parse_nets("127.0.0.1/32"), resolve=rebinding)
        assert fetch(f"http://name.example:{server.port}/", fetcher=fetcher) == b"first"
        assert server.asked[0].fields["host"] == f"name.example:{server.port}"
        assert asked_for == ["name.example"]
        with pytest.raises(TransferRejected, match=r"127\.0\.0\.2 is not a public address"):
            fetch(f"http://name.example:{server.port}/", fetcher=fetcher)


def test_a_name_that_is_bound_anew_between_redirects_is_judged_again():
    turns = iter(["127.0.0.1", "127.0.0.2"])
    fetcher = Fetcher(
        parse_nets("127.0.0.1/32"), resolve=lambda host, port: [Resolved(socket.AF_INET, (next(turns), port))]
    )
    with web_server(lambda asked: asked.answer(302, Location="/again")) as server:
        with pytest.raises(TransferRejected, match=r"127\.0\.0\.2 is not a public address"):
            fetch(f"http://name.example:{server.port}/", fetcher=fetcher)
        assert server.connections == 1


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest", "http://[64:ff9b::a9fe:a9fe]/", "http://10.0.0.1/"]
)
def test_a_redirect_to_an_address_that_is_not_public_is_refused(target):
    with (
        web_server(lambda asked: asked.answer(302, Location=target)) as server,
        pytest.raises(TransferRejected, match="not a public address"),
    ):
        fetch(server.url)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://127.0.0.1/", "http://user:secret@127.0.0.1/"])
def test_a_redirect_to_what_is_no_page_is_refused(target):
    with (
        web_server(lambda asked: asked.answer(302, Location=target)) as server,
        pytest.raises(TransferRejected) as told,
    ):
        fetch(server.url)
    assert "secret" not in str(told.value)


def redirecting(count: int):
    def answer(asked: Asked) -> None:
        n = int(asked.target.strip("/") or 0)
        asked.answer(301, Location=f"/{n + 1}") if n < count else asked.answer(body=b"there")

    return answer


def test_five_redirects_are_followed_and_a_sixth_is_not():
    with web_server(redirecting(5)) as server:
        assert fetch(server.url) == b"there"
        assert len(server.asked) == 6
    with web_server(redirecting(6)) as server, pytest.raises(TransferRejected, match="too many redirects, more than 5"):
        fetch(server.url)


@contextlib.contextmanager
def refusing(host):
    """An address that refuses every connection: it is taken, so nobody else can listen there meanwhile."""
    with socket.socket() as taken:
        taken.bind((host, 0))
        yield taken.getsockname()


def test_the_next_address_is_tried_where_one_does_not_answer():
    with refusing("127.0.0.2") as dead, web_server(lambda asked: asked.answer(body=b"here")) as server:
        both = [Resolved(socket.AF_INET, dead), loopback(server.port)]
        assert fetch("http://two.example/", fetcher=Fetcher(LOOPBACK, resolve=lambda *_: both)) == b"here"


def test_a_server_that_is_not_there_may_be_there_later():
    with (
        refusing("127.0.0.1") as (_, port),
        pytest.raises(TransferFailed, match=r"cannot connect to 127\.0\.0\.1: Connection refused"),
    ):
        fetch(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), TransferFailed),
        (socket.gaierror(socket.EAI_FAIL, "Failed"), TransferFailed),
        (OSError(24, "Too many open files"), TransferFailed),
        (socket.gaierror(socket.EAI_NONAME, "Not known"), TransferRejected),
        (UnicodeError("label too long"), TransferRejected),
    ],
)
def test_a_name_that_cannot_be_looked_up_now_may_be_later(error, kind):
    def resolve(host, port):
        raise error

    with pytest.raises(kind, match=r"name\.example"):
        fetch("http://name.example/", fetcher=Fetcher(resolve=resolve))


def test_a_name_without_an_address_is_refused():
    with pytest.raises(TransferRejected, match="has no address"):
        fetch("http://name.example/", fetcher=Fetcher(resolve=lambda *_: []))


# -- what servers answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413, 206, 204, 304, 300])
def test_what_trying_again_cannot_help_is_refused(status):
    with web_server(lambda asked: asked.answer(status)) as server, pytest.raises(TransferRejected) as told:
        fetch(f"{server.url}/a?signature=secret")
    assert str(told.value) == f"{server.url}/a?***: the server responded with status {status}"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_succeed_later_is_a_failure(status):
    with web_server(lambda asked: asked.answer(status)) as server, pytest.raises(TransferFailed, match=str(status)):
        fetch(server.url)


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_an_encoded_body_is_refused(encoding):
    with (
        web_server(lambda asked: asked.answer(body=b"x", Content_Encoding=encoding)) as server,
        pytest.raises(TransferRejected, match="which was not requested and is not supported"),
    ):
        fetch(server.url)


def test_a_body_that_is_too_large_is_refused_by_its_length_before_it_is_read():
    def answer(asked: Asked) -> None:
        asked.send("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n")
        asked.wait_for_the_end()

    with web_server(answer) as server, pytest.raises(TransferRejected, match="1001 bytes, which is more than 1000"):
        fetch(server.url)


def test_a_body_that_does_not_say_its_length_is_refused_once_it_is_too_large():
    def answer(asked: Asked) -> None:
        asked.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            asked.send(b"64\r\n" + b"x" * 100 + b"\r\n")

    with web_server(answer) as server, pytest.raises(TransferRejected, match="has more than 1000 bytes"):
        fetch(server.url)


@pytest.mark.parametrize(
    "wire",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcXY0\r\n\r\n",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\n" + "X: y\r\n" * 200 + "\r\n",
        "HTTP/1.1 200 OK\r\nX: " + "y" * 70_000 + "\r\n\r\n",
        "",
    ],
)
def test_an_answer_that_is_not_whole_is_a_failure(wire):
    with web_server(lambda asked: asked.send(wire)) as server, pytest.raises(TransferFailed, match=server.url):
        fetch(server.url)


# -- time -------------------------------------------------------------------------------------------------------------


def trickle(asked: Asked, head: str) -> None:
    """A byte now and then, for ever."""
    asked.send(head)
    while True:
        asked.send("x")
        time.sleep(0.02)


@pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\r\nX: ", "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_a_server_that_sends_a_byte_now_and_then_is_cut_off_at_the_time_limit(head):
    with (
        web_server(lambda asked: trickle(asked, head)) as server,
        pytest.raises(TransferFailed, match=r"transfer timed out after 0\.5 s"),
    ):
        fetch(server.url, seconds=0.5, most_bytes=100_000)


def test_a_server_that_falls_silent_is_left_after_the_stall_limit():
    def answer(asked: Asked) -> None:
        asked.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        asked.wait_for_the_end()

    with (
        web_server(answer) as server,
        pytest.raises(TransferFailed, match=r"no data transferred for 0\.3 s"),
    ):
        fetch(server.url, fetcher=Fetcher(LOOPBACK, stall=0.3))


def test_a_name_whose_lookup_hangs_is_left_at_the_time_limit():
    answered = threading.Event()
    try:
        with pytest.raises(TransferFailed, match=r"transfer timed out after 0\.3 s"):
            fetch("http://a.example", fetcher=Fetcher(resolve=lambda *_: [answered.wait(30)]), seconds=0.3)
    finally:
        answered.set()


@pytest.fixture
def full_port():
    """A port where no connection is completed: as many as may wait there wait already."""
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = closing.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_an_address_that_does_not_answer_is_given_up_for_the_next(full_port, monkeypatch):
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.3)
    with web_server(lambda asked: asked.answer(body=b"here")) as server:
        both = [loopback(full_port), loopback(server.port)]
        assert fetch("http://two.example/", fetcher=Fetcher(LOOPBACK, resolve=lambda *_: both)) == b"here"
    with pytest.raises(TransferFailed, match=r"cannot connect to 127\.0\.0\.1: Connection timed out"):
        fetch(f"http://127.0.0.1:{full_port}/")


def test_a_transfer_that_is_stopped_ends_while_it_connects(full_port):
    looks = iter([False] * 3)
    with pytest.raises(TransferCancelled):
        fetch(f"http://127.0.0.1:{full_port}/", stopped=lambda: next(looks, True))


def test_a_transfer_that_is_stopped_ends_while_the_server_is_silent():
    reached = threading.Event()

    def answer(asked: Asked) -> None:
        reached.set()
        asked.wait_for_the_end()

    with web_server(answer) as server, pytest.raises(TransferCancelled):
        fetch(server.url, stopped=reached.is_set)


# -- putting ----------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_result_is_put_with_its_length_and_type():
    found = []

    def answer(asked: Asked) -> None:
        found.append(asked.body())
        asked.answer(201)

    with web_server(answer) as server:
        put(f"{server.url}/a?signature=x", b"result")
    asked = server.asked[0]
    assert (asked.method, asked.target, found) == ("PUT", "/a?signature=x", [b"result"])
    assert (asked.fields["content-type"], asked.fields["content-length"]) == ("text/plain", "6")


def test_a_file_is_put_again_where_a_redirect_asks_for_it(tmp_path):
    (tmp_path / "result").write_bytes(b"r" * 600_000)
    found = []

    def answer(asked: Asked) -> None:
        found.append(asked.body())
        asked.answer(307, Location="/there") if asked.target == "/" else asked.answer()

    with web_server(answer) as server:
        put(server.url, tmp_path / "result")
    assert found == [b"r" * 600_000] * 2


@pytest.mark.parametrize("status", [301, 302, 303, 400, 403, 404])
def test_a_put_that_is_refused_or_led_to_a_get_is_refused(status):
    def answer(asked: Asked) -> None:
        asked.body()
        asked.answer(status, Location="/there")

    with web_server(answer) as server, pytest.raises(TransferRejected, match=str(status)):
        put(server.url)
    assert len(server.asked) == 1


def test_a_put_leads_to_no_address_that_is_not_public():
    def answer(asked: Asked) -> None:
        asked.body()
        asked.answer(308, Location="http://10.0.0.1/")

    with web_server(answer) as server, pytest.raises(TransferRejected, match="not a public address"):
        put(server.url)


def test_a_put_is_not_led_to_another_host_of_an_allowed_network_and_a_get_is():
    def take(asked: Asked) -> None:
        asked.body()
        asked.answer(body=b"inside")

    with web_server(take) as inside:

        def lead(asked: Asked) -> None:
            asked.body()
            asked.answer(307, Location=f"{inside.url}/admin")

        with web_server(lead) as server:
            with pytest.raises(
                TransferRejected, match=r"is not a public address; a PUT to .* was redirected to this host"
            ):
                put(server.url)
            assert inside.asked == []
            assert fetch(server.url) == b"inside"


def test_an_early_answer_to_a_put_is_heard_although_the_body_is_not_read():
    def answer(asked: Asked) -> None:
        asked.answer(413)
        asked.sock.shutdown(socket.SHUT_WR)
        asked.server.release.wait(30)

    with web_server(answer) as server:
        server.release = threading.Event()
        try:
            with pytest.raises(TransferRejected, match="413"):
                put(server.url, b"x" * 30_000_000, fetcher=Fetcher(LOOPBACK, stall=0.5))
        finally:
            server.release.set()


def test_a_put_to_a_server_that_hangs_up_is_a_failure():
    with web_server(lambda asked: None) as server, pytest.raises(TransferFailed):
        put(server.url, b"x" * 3_000_000)


@pytest.mark.parametrize("kind", ["a\r\nX: y", "", "h\u00f6he"])
def test_a_content_type_that_is_none_is_not_sent(kind):
    with (
        web_server(lambda asked: asked.answer()) as server,
        pytest.raises(TransferRejected, match="is not a valid content type"),
    ):
        Fetcher(LOOPBACK).put(parse_place(server.url), Outgoing(b"", kind), limit=TimeLimit("", 30))
