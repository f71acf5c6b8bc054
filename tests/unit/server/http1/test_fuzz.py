"""No bytes upset a connection, and h11 reads whatever it accepts in the same way."""

import re
from itertools import pairwise

import h11
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from night import examples

LINES = [
    b"GET / HTTP/1.1\r\n", b"POST /p?q=1 HTTP/1.1\r\n", b"POST / HTTP/1.0\r\n", b"HEAD /h HTTP/1.1\r\n",
    b"GET  / HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n", b"GET http://x/y HTTP/1.1\r\n", b"CONNECT x:1 HTTP/1.1\r\n",
    b"PUT / RTSP/1.0\r\n", b"\r\nGET / HTTP/1.1\r\n", b"GET / HTTP/2.0\r\n", b"M-SEARCH / HTTP/1.1\r\n",
]  # fmt: skip
FIELDS = [
    b"Content-Length: 5\r\n", b"content-length:5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 05 \r\n",
    b"Content-Length: 5,5\r\n", b"Content-Length: +5\r\n", b"Content-Length: %s5\r\n" % (b"0" * 30),
    b"Transfer-Encoding: chunked\r\n", b"TRANSFER-ENCODING:\tchunked \r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: \x0cchunked\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"X-A: b\r\n c\r\n", b"X-A:\x01\r\n",
    b"X-A: \xff\t\xe9\r\n", b"Host: y\r\n", b"X_A: b\r\n", b"X-A : b\r\n", b"X-A: b\n", b"X-A: b\rc\r\n", b"\r\n",
]  # fmt: skip
BODIES = [
    b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"05;a=b\r\nhello\r\n000\r\nX-T: 1\r\n\r\n",
    b"%s5\r\nhello\r\n0\r\n\r\n" % (b"0" * 25), b"5 \r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\nX-T : 1\r\n\r\n",
    b'5;a="\n"\r\nhello\r\n0\r\n\r\n', b"1\r\nhello\r\n", b"0\r\nContent-Length: 9\r\n\r\n",
    b"5;\x00\r\nhello\r\n0\r\n\r\n",
]  # fmt: skip

requests = st.builds(
    lambda line, fields, body: line + b"".join(fields) + b"\r\n" + body,
    st.sampled_from(LINES),
    st.lists(st.sampled_from(FIELDS), max_size=4).map(lambda fields: [b"Host: x\r\n", *fields]),
    st.sampled_from(BODIES),
)
streams = st.lists(requests, min_size=1, max_size=4).map(b"".join)


@st.composite
def mutated(draw):
    """A stream of requests with a few bytes changed, inserted or left out."""
    wire = bytearray(draw(streams))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(wire)))
        new = draw(st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b":", b"0", b"5", b"\xff", b","]))
        wire[at : at + draw(st.integers(0, 2))] = new
    return bytes(wire)


def read_by_h11(wire: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Method, target and body of each request h11 reads before it gives up.

    Each request is read by an h11 of its own.  It is given no blank line before the request line: h11 refuses one, and
    is asked what it makes of the rest.  h11 also knows no kept connection in HTTP/1.0: who asks for that gets it here.
    """
    server, found = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20), []
    kept = False
    try:
        server.receive_data(wire.removeprefix(b"\r\n"))
        while True:
            event = server.next_event()
            if isinstance(event, h11.Request):
                head, body, kept = (event.method, event.target), bytearray(), asks_http_1_0_to_stay(event)
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                if head[0] == b"CONNECT":  # h11 would begin a tunnel; no request of ours
                    return found
                found.append((*head, bytes(body)))
                trailing = server.trailing_data[0]
                server.send(h11.Response(status_code=200, headers=[(b"Content-Length", b"0")]))
                server.send(h11.EndOfMessage())
                if kept or (server.our_state is h11.DONE and server.their_state is h11.DONE):
                    found += read_by_h11(trailing)
                return found
            else:
                return found
    except h11.RemoteProtocolError:
        return found


def asks_http_1_0_to_stay(request: h11.Request) -> bool:
    """Whether an HTTP/1.0 request says ``keep-alive``, and not ``close``, in its Connection fields."""
    fields = b",".join(value for name, value in request.headers if name == b"connection")
    options = {option.strip().lower() for option in fields.split(b",")}
    return request.http_version == b"1.0" and b"keep-alive" in options and b"close" not in options


def as_origin(target: bytes) -> bytes:
    """A target in absolute form, without its scheme and authority."""
    if target.startswith((b"/", b"*")):
        return target
    rest = re.fullmatch(rb"(?i:https?)://[^/?]*(.*)", target)[1]
    return rest if rest.startswith(b"/") else b"/" + rest


def target_of(request) -> set[bytes]:
    """How the target of `request` may have been written."""
    return {request.path + b"?" + request.query} if request.query else {request.path, request.path + b"?"}


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(wire), *(p % (len(wire) + 1) for p in places)})
    return [wire[a:b] for a, b in pairwise(edges)]


quick = settings(max_examples=examples(250), suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(pieces=st.lists(st.binary(max_size=60), max_size=5))
def test_random_bytes_upset_nothing(rig, pieces):
    client = rig.connect()
    client.send(*pieces)
    client.answers()
    client.leave()


@quick
@given(wire=mutated(), places=st.lists(st.integers(0, 1000), max_size=6))
def test_the_outcome_does_not_depend_on_the_cuts(rig_with, wire, places):
    at_once, cut_up = rig_with(), rig_with()
    first, second = at_once.connect(), cut_up.connect()
    first.send(wire)
    second.send(*cut(wire, places))
    for client in (first, second):
        heads_of = tuple(n for n, (r, _, _) in enumerate(client.connection._app.answers) if r.method == "HEAD")
        client.found = [a.status for a in client.answers(heads_of)]
    assert first.found == second.found
    seen = [[(r.method, r.path, r.query, rig.app.body_of(r)) for r in rig.app.handled] for rig in (at_once, cut_up)]
    assert seen[0] == seen[1]
    for rig in (at_once, cut_up):
        rig.check_promises()


@settings(quick, max_examples=examples(600))
@given(wire=mutated())
@example(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s5\r\nhello\r\n0\r\n\r\n" % (b"0" * 25))
@example(b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n")
@example(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %s1\r\n\r\nx" % (b"0" * 30))
@example(
    b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: x\r\n\r\n"
)
@example(b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
@example(b"\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
@example(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
def test_h11_reads_alike_whatever_is_accepted(rig, wire):
    client = rig.connect()
    before = len(rig.app.admitted)
    client.send(wire)
    theirs = read_by_h11(wire)
    for n, request in enumerate(rig.app.admitted[before:]):
        if request not in rig.app.handled and n >= len(theirs):
            continue  # refused, or its body never ended: neither of us read it
        assert n < len(theirs), "h11 reads no such request"
        method, target, body = theirs[n]
        assert request.method.encode() == method
        assert as_origin(target) in target_of(request)
        if request in rig.app.handled:
            assert rig.app.body_of(request) == body
    client.leave()
