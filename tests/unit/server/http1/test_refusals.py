"""What is refused, with which status, and what becomes of the connection."""

import pytest

from penstock.server.application import Response
from penstock.server.fields import RequestRefused
from penstock.server.http1.heads import Head
from penstock.server.http1.refusals import LINGER_BYTES, LINGER_SECONDS, SKIPPED_BODY_BYTES
from rows import each

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HOST = b"Host: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def head(fields: bytes, line: bytes = b"POST / HTTP/1.1") -> bytes:
    return line + b"\r\n" + HOST + fields + b"\r\n"


NO_HOSTS = [
    b"a b@/", b"a b", b"a\tb", b"a,b c", b"a/b", b"a@b", b"user:key@x", b"http://x", b"a?b", b"a#b", b'"a"', b"<a>",
    b"a\\b", b"\xc3\xa9", b"a%", b"a%2", b"a%zz", b"x:http", b"x:80:80", b"::1", b"[::1", b"::1]", b"[]", b"[::1]x",
    b"[fe80::1%eth0]", b"[a b]", b"a" * 60_000 + b" b", b"%61" * 20_000 + b"/",
]  # fmt: skip
MALFORMED = {
    # two lengths for one body
    "both lengths": (400, head(b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")),
    "both lengths, the other way": (400, head(b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n")),
    "a repeated length": (400, head(b"Content-Length: 3\r\nContent-Length: 3\r\n")),
    "two lengths": (400, head(b"Content-Length: 3\r\nContent-Length: 4\r\n")),
    "a list of lengths": (400, head(b"Content-Length: 3, 3\r\n")),
    # lengths that are no numbers
    "a signed length": (400, head(b"Content-Length: +3\r\n")),
    "a negative length": (400, head(b"Content-Length: -3\r\n")),
    "a hexadecimal length": (400, head(b"Content-Length: 0x3\r\n")),
    "an empty length": (400, head(b"Content-Length:\r\n")),
    "a length with a space": (400, head(b"Content-Length: 1 2\r\n")),
    "a length beyond 64 bits": (400, head(b"Content-Length: 99999999999999999999\r\n")),
    "a length of too many digits": (400, head(b"Content-Length: %s3\r\n" % (b"0" * 20))),
    # transfer codings
    "another coding": (400, head(b"Transfer-Encoding: gzip\r\n")),
    "a chain of codings": (501, head(b"Transfer-Encoding: gzip, chunked\r\n")),
    "identity": (400, head(b"Transfer-Encoding: identity\r\n")),
    "a coding like chunked": (400, head(b"Transfer-Encoding: xchunked\r\n")),
    "chunked with a tab inside": (400, head(b"Transfer-Encoding: chun\tked\r\n")),
    "chunked behind a control character": (400, head(b"Transfer-Encoding: \x0bchunked\r\n")),
    "no coding": (400, head(b"Transfer-Encoding:\r\n")),
    "chunked twice": (400, head(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")),
    "chunked twice in one": (400, head(b"Transfer-Encoding: chunked, chunked\r\n")),
    "a space before the colon": (400, head(b"Transfer-Encoding : chunked\r\n")),
    "chunked in HTTP/1.0": (400, head(b"Transfer-Encoding: chunked\r\n", b"POST / HTTP/1.0")),
    # Host
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"),
    "two hosts in HTTP/1.0": (400, b"GET / HTTP/1.0\r\nHost: x\r\nhost: y\r\n\r\n"),
    **{
        f"the host {host.decode('latin-1')[:20]!r}": (400, b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
        for host in NO_HOSTS
    },
    "a host of two words in HTTP/1.0": (400, b"GET / HTTP/1.0\r\nHost: a  b\r\n\r\n"),
    # lines
    "folding": (400, head(b"X-A: b\r\n c\r\n")),
    "folding with a tab": (400, head(b"X-A: b\r\n\tc\r\n")),
    "a folded first field": (400, b"GET / HTTP/1.1\r\n Host: x\r\n\r\n"),
    "a bare LF": (400, b"GET / HTTP/1.1\nHost: x\r\n\r\n"),
    "a bare LF between fields": (400, head(b"X-A: b\nX-B: c\r\n")),
    "a bare CR": (400, head(b"X-A: b\rX-B: c\r\n")),
    "a NUL": (400, head(b"X-A: b\x00c\r\n")),
    "a field without a name": (400, head(b": b\r\n")),
    "a field without a colon": (400, head(b"X-A\r\n")),
    "a space in a name": (400, head(b"X A: b\r\n")),
    "two blank lines first": (400, b"\r\n\r\n" + GET),
    "a blank line that is no CRLF": (400, b"\n" + GET),
    "a blank line that is no CRLF either": (400, b"\r" + GET),
    "a space first": (400, b" " + GET),
    # the request line
    "two spaces": (400, b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a trailing space": (400, b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n"),
    "a space in the target": (400, b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n"),
    "another scheme": (400, b"GET ftp://x/ HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a fragment": (400, b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a byte that is no text": (400, b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n"),
    "no version": (400, b"GET /\r\n" + HOST + b"\r\n"),
    "no target": (400, b"GET HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a small letter first": (400, b"get / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "another protocol": (400, b"OPTIONS / RTSP/1.0\r\n" + HOST + b"\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01"),
    "HTTP/0.9": (505, b"GET / HTTP/0.9\r\n" + HOST + b"\r\n"),
    "HTTP/1.2": (505, b"GET / HTTP/1.2\r\n" + HOST + b"\r\n"),
    "HTTP/2.0": (505, b"GET / HTTP/2.0\r\n" + HOST + b"\r\n"),
    "HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    # methods
    "an unknown method": (501, b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "CONNECT": (405, b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "CONNECT with a body": (405, head(b"Content-Length: 3\r\n", b"CONNECT x:1 HTTP/1.1")),
    # chunks
    "a chunk without a size": (400, CHUNKED + b"\r\nabc\r\n"),
    "a chunk of no number": (400, CHUNKED + b"x\r\n"),
    "a chunk with a sign": (400, CHUNKED + b"+3\r\nabc\r\n"),
    "a chunk with a prefix": (400, CHUNKED + b"0x3\r\nabc\r\n"),
    "a chunk with a space before its size": (400, CHUNKED + b" 3\r\nabc\r\n"),
    "a chunk with a space after its size": (400, CHUNKED + b"3 \r\nabc\r\n"),
    "a chunk of too many digits": (400, CHUNKED + b"00000000000000003\r\nabc\r\n"),
    "a chunk beyond 64 bits": (400, CHUNKED + b"fffffffffffffffff\r\n"),
    "a chunk that is longer than it said": (400, CHUNKED + b"3\r\nabcd\r\n"),
    "a chunk that is shorter than it said": (400, CHUNKED + b"3\r\nab\r\n0\r\n\r\n"),
    "a chunk without its CRLF": (400, CHUNKED + b"3\r\nabcXX0\r\n\r\n"),
    "a chunk ended by a bare LF": (400, CHUNKED + b"3\r\nabc\n0\r\n\r\n"),
    "a chunk size ended by a bare LF": (400, CHUNKED + b"3\nabc\r\n0\r\n\r\n"),
    "an extension with a bare CR": (400, CHUNKED + b"3;a\rb\r\nabc\r\n"),
    "an endless chunk size": (400, CHUNKED + b"3;" + b"a" * 1024),
    "a length in the trailers": (400, CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n"),
    "a coding in the trailers": (400, CHUNKED + b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    **{
        f"{name} in the trailers": (400, CHUNKED + b"0\r\n%b: x\r\n\r\n" % name.encode())
        for name in ("Host", "Content-Encoding", "content-type", "Connection", "EXPECT", "Authorization")
    },
    "a folded trailer": (400, CHUNKED + b"0\r\nX: y\r\n z\r\n\r\n"),
    "a trailer that is no field": (400, CHUNKED + b"0\r\nGET / HTTP/1.1\r\n\r\n"),
    "trailers ended by a bare LF": (400, CHUNKED + b"0\r\n\n"),
}


@each("name", MALFORMED)
def test_what_cannot_be_trusted_is_refused_and_ends_the_connection_however_it_comes(rig_with, name):
    status, wire = MALFORMED[name]
    rig = rig_with()
    at_once, bytewise = rig.connect(), rig.connect()
    at_once.send(wire + GET)
    bytewise.send_bytewise(wire + GET)
    for client in (at_once, bytewise):
        (answer,) = client.answers()
        assert (answer.status, answer.headers[b"connection"]) == (status, b"close")
        assert client.transport.half_closed
    assert rig.app.handled == []
    assert len(rig.app.admitted) == 2 * wire.startswith(CHUNKED)  # of any other, the head is refused


def test_two_lengths_are_refused_whatever_the_parser_thinks_of_them():
    fields = {b"host": b"x", b"content-length": b"3", b"transfer-encoding": b"chunked"}
    with pytest.raises(RequestRefused) as refused:
        Head("POST", 1, b"/", b"", fields)
    assert (refused.value.status, refused.value.detail[:14]) == (400, "Content-Length")


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (415, b"Content-Encoding: gzip\r\n"),
        (415, b"Content-Encoding: identity, br\r\n"),
        (417, b"Expect: the-unexpected\r\n"),
        (417, b"Expect: 100-continue, more\r\n"),
    ],
)
def test_what_is_understood_but_not_served_is_refused_with_its_request(rig, status, fields):
    client = rig.connect()
    client.send(head(fields + b"Content-Length: 3\r\n") + b"abc")
    assert client.statuses() == [status]
    assert client.answers()[0].headers[b"x-request-id"] == b"id-1"
    assert rig.app.answers == [(rig.app.admitted[0], status, 2)]
    assert rig.app.handled == []


def test_identity_is_no_encoding(rig):
    client = rig.connect()
    client.send(head(b"Content-Encoding: Identity\r\n") + head(b"Content-Encoding:\r\n"))
    assert client.statuses() == [200, 200]


def test_a_refusal_waits_for_the_answers_before_it(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + b"nonsense\r\n\r\n" + GET)
    assert client.answers() == []
    rig.app.answer(rig.app.handled[0])
    assert client.statuses() == [200, 400]
    assert client.transport.half_closed


def no(rig) -> None:
    rig.app.refusing = Response(404, b"text/plain", b"no")


@pytest.mark.parametrize("size", [0, 1, SKIPPED_BODY_BYTES])
def test_a_small_refused_body_is_skipped_and_the_connection_stays(rig, size):
    for whole in (True, False):
        no(rig)
        client = rig.connect()
        wire = head(b"Content-Length: %d\r\n" % size) + bytes(size)
        client.send(wire) if whole else client.send(wire[:-1], wire[-1:])
        rig.app.refusing = None
        client.send(GET)
        assert client.statuses() == [404, 200]
        assert rig.app.most_held == 0


@pytest.mark.parametrize(
    "start", [b"\x16", b"g", b"\rG", b"\r\r", b"\r\n\r", b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nHost: x\n"]
)
def test_what_can_only_become_nonsense_is_refused_at_once(rig, start):
    client = rig.connect()
    client.send(start)
    assert client.statuses() == [400]


def test_a_client_that_leaves_before_its_refusal_was_due_is_no_request(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + b"nonsense\r\n\r\n")
    client.leave()
    assert rig.app.answers == [(rig.app.admitted[0], 499, 0)]


def test_a_refused_client_may_finish_sending_so_that_it_reads_the_answer(rig):
    client = rig.connect()
    client.send(b"nonsense\r\n\r\n")
    assert not client.transport.closed
    client.send(b"x" * 100_000)
    rig.sweep(rig.now + LINGER_SECONDS - 0.1)
    assert not client.transport.closed
    client.connection.eof_received()
    assert client.transport.closed
    assert not client.transport.aborted


def test_a_refused_client_does_not_send_for_ever(rig):
    client = rig.connect()
    client.send(b"nonsense\r\n\r\n")
    piece = bytes(1024 * 1024)
    for _ in range(LINGER_BYTES // len(piece) - 1):
        client.send(piece)
    assert not client.transport.aborted
    client.send(piece, piece)
    assert client.transport.aborted
