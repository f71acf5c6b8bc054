"""Every limit at its edge: at the limit passes, one over is refused."""

import pytest

from penstock.server.application import Response

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LINE = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"


def sized(size: int) -> bytes:
    return LINE + b"Content-Length: %d\r\n\r\n" % size + bytes(size)


def both_ways(rig, wire: bytes) -> list[int]:
    """The statuses, which must be the same at once and a byte at a time."""
    at_once, bytewise = rig.connect(), rig.connect()
    at_once.send(wire)
    bytewise.send_bytewise(wire)
    assert at_once.statuses() == bytewise.statuses()
    return at_once.statuses()


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_the_body_limit_is_read_from_the_length(rig_with, limit):
    rig = rig_with(max_body_bytes=limit)
    assert both_ways(rig, sized(limit)) == [200]
    assert both_ways(rig, sized(limit + 1)) == [413]
    assert rig.app.most_held <= limit


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent(rig_with):
    client = rig_with(max_body_bytes=100_000).connect()
    client.send(LINE + b"Expect: 100-continue\r\nContent-Length: 100001\r\n\r\n")
    assert client.statuses() == [413]
    assert b"100 Continue" not in client.transport.sent


def test_the_body_limit_holds_while_a_chunked_body_grows(rig_with):
    rig = rig_with(max_body_bytes=10)
    assert both_ways(rig, CHUNKED + b"5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n") == [200]
    assert both_ways(rig, CHUNKED + b"5\r\n01234\r\n6\r\n56789x\r\n0\r\n\r\n") == [413]


def test_a_chunk_that_is_too_much_is_refused_when_it_is_announced(rig_with):
    rig = rig_with(max_body_bytes=10)
    client = rig.connect()
    client.send(CHUNKED + b"5\r\n01234\r\n6\r\n")
    assert client.statuses() == [413]
    assert client.transport.half_closed
    assert rig.app.held.total() == 0


@pytest.mark.parametrize("limit", [64, 1000, 64 * 1024])
def test_header_bytes_are_counted_with_the_request_line_and_the_empty_line(rig_with, limit):
    rig = rig_with(max_header_bytes=limit)
    start, end = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", b"\r\n\r\n"
    fits = start + b"a" * (limit - len(start) - len(end)) + end
    assert both_ways(rig, fits) == [200]
    assert both_ways(rig, fits.replace(b"aa", b"aaa", 1)) == [431]


def test_an_endless_header_is_refused_without_its_end(rig_with):
    rig = rig_with(max_header_bytes=1000)
    start = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: "
    client = rig.connect()
    client.send_bytewise(start + b"a" * (999 - len(start)))
    assert client.answers() == []
    client.send(b"a")
    assert client.statuses() == [431]
    assert both_ways(rig, start + b"a" * 2000) == [431]


def test_the_limit_is_each_heads_own(rig_with):
    client = rig_with(max_header_bytes=64).connect()
    client.send((b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 30)) * 10)
    assert client.statuses() == [200] * 10


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_header_fields_are_counted(rig_with, limit):
    rig = rig_with(max_header_fields=limit)
    for repeated in (b"X-A: b\r\n", b"X-%d: b\r\n"):
        fields = [repeated % n if b"%" in repeated else repeated for n in range(limit)]
        line = b"GET / HTTP/1.1\r\nHost: x\r\n"
        assert both_ways(rig, line + b"".join(fields[1:]) + b"\r\n") == [200]
        assert both_ways(rig, line + b"".join(fields) + b"\r\n") == [431]


def test_the_connection_field_has_a_limit_and_beyond_it_none_of_it_is_believed(rig):
    head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n\r\n"
    fits = b"," * 1019 + b"close"
    assert both_ways(rig, head % fits) == [200]
    assert rig.clients[-1].transport.closed
    for too_long in (b"," + fits, b"close" + b"," * 1020, b"," * 60_000):
        assert both_ways(rig, head % too_long + GET) == [431]
        assert rig.clients[-1].transport.half_closed
    repeated = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"Connection: %s\r\n" % (b"," * 512) * 2 + b"\r\n"
    assert both_ways(rig, repeated) == [431]


@pytest.mark.parametrize("limit", [1, 50, 8 * 1024])
def test_the_target_has_a_limit(rig_with, limit):
    rig = rig_with(max_target_bytes=limit)
    request = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
    assert both_ways(rig, request % (b"a" * (limit - 1))) == [200]
    assert both_ways(rig, request % (b"a" * limit)) == [414]


def test_a_target_that_fills_the_whole_head_is_a_target_too_long(rig_with):
    rig = rig_with(max_target_bytes=100, max_header_bytes=200)
    assert both_ways(rig, b"GET /" + b"a" * 500) == [414]
    # It is the head that is too long, whatever stands second in a later line.
    assert both_ways(rig, b"GET / HTTP/1.1\r\nX: " + b"a" * 500) == [431]
    assert both_ways(rig, b"GET / HTTP/1.1\r\nX: a\r\nY: " + b"a" * 500) == [431]


def test_trailers_are_counted(rig_with):
    rig = rig_with(max_header_bytes=100)
    trailer = b"X-A: " + b"a" * 91 + b"\r\n"
    assert both_ways(rig, CHUNKED + b"0\r\n" + trailer + b"\r\n") == [200]
    assert both_ways(rig, CHUNKED + b"0\r\n" + trailer.replace(b"aa", b"aaa", 1) + b"\r\n") == [431]
    assert both_ways(rig, CHUNKED + b"0\r\n" + b"X-A: b\r\n" * 1000) == [431]


def test_half_received_bodies_are_held_and_given_back(rig):
    client = rig.connect()
    client.send(sized(1000)[:-400])
    assert rig.app.held.total() == 600
    client.send(bytes(399))
    assert rig.app.held.total() == 999
    client.send(bytes(1))
    assert rig.app.held.total() == 0
    client.send(CHUNKED + b"64\r\n" + bytes(99))
    assert rig.app.held.total() == 99
    client.leave()
    assert rig.app.held.total() == 0


LONG_HEAD = b"GET /p?%s HTTP/1.1\r\nHost: x\r\nX-A: %s\r\n\r\n" % (b"q" * 5000, b"a" * 50_000)


def fields_kept(rig) -> int:
    """The bytes of fields and queries of the requests that were admitted, by all that the rig can reach."""
    requests = rig.app.admitted
    heads = [request.head for request in requests if request.head is not None]
    return sum(sum(map(len, part.headers.values())) + len(part.query) for part in [*requests, *heads])


def test_a_request_that_waits_for_its_turn_with_its_answer_keeps_no_fields(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + LONG_HEAD * 31)
    assert fields_kept(rig) > 31 * 55_000
    for request in rig.app.handled[1:]:
        rig.app.answer(request, b"a")
    assert fields_kept(rig) < 100
    rig.app.answer(rig.app.handled[0])
    assert client.statuses() == [200] * 32
    assert {request.path for request, _, _ in rig.app.answers[1:]} == {b"/p"}


def test_a_request_whose_answer_lies_unread_keeps_no_fields(rig):
    client = rig.connect()
    client.transport.stuck = True
    for _ in range(20):
        client.send(LONG_HEAD)
        rig.sweep(rig.now + 1.0)
    assert fields_kept(rig) == 0
    assert client.statuses() == [200] * 20


def test_the_version_is_remembered_behind_a_slow_request(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + GET.replace(b"1.1", b"1.0").replace(b"Host: x", b"Connection: keep-alive"))
    for request in reversed(rig.app.handled):
        rig.app.answer(request)
    assert [answer.headers.get(b"connection") for answer in client.answers()] == [None, b"keep-alive"]


def test_a_body_that_comes_whole_is_not_held_by_the_connection(rig):
    rig.connect().send(sized(1000))
    assert rig.app.most_held == 0


def test_heads_are_remembered_only_within_bounds(rig):
    client = rig.connect()
    for n in range(2000):
        client.send(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n)
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: %s\r\n\r\n" % (b"a" * 4000))
    assert [r.path for r in rig.app.handled[:2000]] == [b"/%d" % n for n in range(2000)]
    cache = rig.connections.heads._cache
    assert len(cache) <= 512
    assert max(map(len, cache)) <= 2048


def test_a_body_that_grows_while_too_much_is_held_is_refused(rig):
    client = rig.connect()
    client.send(CHUNKED + b"5\r\n01234\r\n")
    assert client.answers() == []
    rig.app.full = Response(503, b"application/problem+json", b"{}")
    client.send(b"5\r\n56789\r\n")
    assert client.statuses() == [503]
    assert rig.app.held.total() == 0


@pytest.mark.parametrize(
    ("start", "end"), [(sized(10)[:-5], bytes(5)), (CHUNKED + b"5\r\n01234\r\n", b"5\r\n56789\r\n0\r\n\r\n")]
)
def test_a_body_that_is_whole_passes_while_too_much_is_held(rig, start, end):
    client = rig.connect()
    client.send(start)
    rig.app.full = Response(503, b"application/problem+json", b"{}")
    client.send(end)
    assert client.statuses() == [200]
    assert rig.app.most_held == 5


def test_heads_of_answers_are_remembered_only_within_bounds(rig):
    client = rig.connect()
    rig.app.patient = True
    for n in range(600):
        client.send(GET)
        rig.app.replies[id(rig.app.handled[n])](Response(200, b"text/%d" % n, b""))
    assert [answer.headers[b"content-type"] for answer in client.answers()] == [b"text/%d" % n for n in range(600)]
    assert len(rig.connections.answers._kept) <= 256
