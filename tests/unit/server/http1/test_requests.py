"""Requests in, answers out."""

import gc

import pytest

from penstock.server.application import Response
from penstock.server.http1.connection import Connection

GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes, extra: bytes = b"") -> bytes:
    return b"POST /p HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (extra, len(body), body)


def chunked(*chunks: bytes, trailers: bytes = b"", extra: bytes = b"") -> bytes:
    wire = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)
    head = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n%s\r\n" % extra
    return head + wire + b"0\r\n" + trailers + b"\r\n"


def test_a_request_arrives_as_it_was_sent(rig):
    rig.connect().send(
        b"POST /a%20b?c=d?e HTTP/1.1\r\nHost: x\r\nX-Two: 1\r\nContent-Length: 3\r\nx-two:\t2 \t\r\n\r\nabc"
    )
    (request,) = rig.app.handled
    assert (request.method, request.path, request.query) == ("POST", b"/a%20b", b"c=d?e")
    assert request.headers == {b"host": b"x", b"x-two": b"1, 2", b"content-length": b"3"}
    assert rig.app.body_of(request) == b"abc"
    assert request.arrived == rig.now


def test_an_answer_carries_length_date_type_and_request_id(rig):
    client = rig.connect()
    client.send(post(b"abc"))
    (answer,) = client.answers()
    assert answer.body == b"abc"
    assert answer.headers[b"content-length"] == b"3"
    assert answer.headers[b"content-type"] == b"text/plain"
    assert answer.headers[b"x-request-id"] == b"id-1"
    assert answer.headers[b"date"].endswith(b" GMT")
    assert b"connection" not in answer.headers
    assert rig.app.answers == [(rig.app.handled[0], 200, 3)]


def test_the_date_is_renewed_by_the_sweep(rig):
    client = rig.connect()
    client.send(GET)
    rig.wall_time = 0.0
    rig.sweep(rig.now)
    client.send(GET)
    assert client.answers()[1].headers[b"date"] == b"Thu, 01 Jan 1970 00:00:00 GMT"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", b""),
        (b"*", b"*", b""),
        (b"http://h:1/x?y", b"/x", b"y"),
        (b"http://h", b"/", b""),
        (b"http://h?y", b"/", b"y"),
        (b"//a//b", b"//a//b", b""),
    ],
)
def test_a_target_may_come_in_any_form(rig, target, path, query):
    rig.connect().send(b"OPTIONS %s HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    assert (rig.app.handled[0].path, rig.app.handled[0].query) == (path, query)


@pytest.mark.parametrize(
    "host",
    [
        b"", b"x", b"a.example", b"A.Example.:8000", b"my_service-1:80", b"127.0.0.1:8000", b"x:", b":80", b"a%20b",
        b"[::1]", b"[::1]:8000", b"[::ffff:1.2.3.4]", b"[fe80::1%25eth0]:1", b"[v1.a:b]", b"a!$&'()*+,;=~", b"a" * 5000,
    ],
)  # fmt: skip
def test_a_host_is_a_name_or_an_address_with_or_without_a_port(rig, host):
    client = rig.connect()
    for _ in range(2):
        client.send(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
    assert [request.headers[b"host"] for request in rig.app.handled] == [host, host]


def test_a_good_host_before_excuses_no_other(rig):
    client = rig.connect()
    for field in (b"Host: x", b"Host: y", b"Host: x", b"Host: x y"):
        client.send(b"GET / HTTP/1.1\r\n%b\r\n\r\n" % field)
    assert [answer.status for answer in client.answers()] == [200, 200, 200, 400]


WIRE = GET + post(b"hello") + chunked(b"ab", b"c" * 20, trailers=b"X-T: 1\r\n") + post(b"") + GET


def test_requests_may_be_cut_anywhere(rig):
    for cut in range(1, len(WIRE)):
        client = rig.connect()
        client.send(WIRE[:cut], WIRE[cut:])
        assert [a.body for a in client.answers()] == [b"", b"hello", b"ab" + b"c" * 20, b"", b""], cut


@pytest.mark.parametrize(
    ("version", "field", "kept"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: Close\r\n", False),
        (b"1.1", b"Connection: x, close\r\n", False),
        (b"1.1", b"Connection: x\r\nConnection: close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: keep-alive\r\n", True),
        (b"1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_who_keeps_a_connection_open(rig, version, field, kept):
    client = rig.connect()
    client.send(b"GET / HTTP/%s\r\nHost: x\r\n%s\r\n" % (version, field))
    assert client.transport.closed is not kept
    said = client.answers()[0].headers.get(b"connection")
    assert said == (b"close" if not kept else b"keep-alive" if version == b"1.0" else None)


def test_keep_alive_of_zero_closes_after_each_answer(rig_with):
    client = rig_with(keepalive_timeout=0.0).connect()
    client.send(GET)
    assert client.answers()[0].headers[b"connection"] == b"close"
    assert client.transport.closed


def test_nothing_is_read_after_a_request_that_closes(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", GET)
    assert len(rig.app.admitted) == 1
    rig.app.answer(rig.app.handled[0])
    assert client.statuses() == [200]
    assert client.transport.half_closed


def test_head_has_the_length_but_not_the_body(rig):
    client = rig.connect()
    client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nfour" + GET)
    head, get = client.answers(heads_of=(0,))
    assert head.headers[b"content-length"] == b"4"
    assert get.status == 200
    assert rig.app.answers[0][1:] == (200, 0)


def test_no_content_has_no_length(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.app.answer(rig.app.handled[0], b"", 204)
    assert client.transport.sent.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-" not in client.transport.sent


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 32 * 1024, 32 * 1024 + 1, 1_000_000])
def test_a_body_may_be_of_any_size_and_in_pieces(rig, size):
    body = bytes(size)
    for form in (body, bytearray(body), memoryview(body), [body[:7], memoryview(body)[7:]], [body]):
        client = rig.connect()
        rig.app.patient = True
        client.send(GET)
        rig.app.answer(rig.app.handled[-1], form)
        assert client.answers()[0].body == body
        assert rig.app.answers[-1][2] == size


def test_a_view_of_numbers_counts_in_bytes(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.app.answer(rig.app.handled[0], memoryview(bytes(16)).cast("d"))
    assert client.answers()[0].body == bytes(16)


def test_further_fields_of_an_answer_are_written(rig):
    client = rig.connect()
    rig.app.refusing = Response(503, b"text/plain", b"no", ((b"retry-after", b"2"), (b"x-a", b"b")))
    client.send(GET)
    headers = client.answers()[0].headers
    assert (headers[b"retry-after"], headers[b"x-a"]) == (b"2", b"b")


def test_answers_leave_in_the_order_of_the_requests(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(b"".join(post(b"%d" % n) for n in range(5)))
    for n in (3, 1, 4):
        rig.app.answer(rig.app.handled[n])
    assert client.answers() == []
    assert rig.app.held.total() == 3
    rig.app.answer(rig.app.handled[0])
    assert [a.body for a in client.answers()] == [b"0", b"1"]
    rig.app.answer(rig.app.handled[2])
    assert [a.body for a in client.answers()] == [b"0", b"1", b"2", b"3", b"4"]
    assert [a.headers[b"x-request-id"] for a in client.answers()] == [b"id-%d" % n for n in range(1, 6)]


def test_the_pipelining_cap_stops_reading_and_loses_nothing(rig_with):
    rig = rig_with(max_pipelined=2)
    client = rig.connect()
    rig.app.patient = True
    client.send(post(b"0") + post(b"1"))
    assert client.transport.reading
    client.send(post(b"2") + post(b"3")[:30])
    assert len(rig.app.admitted) == 2
    assert not client.transport.reading
    rig.app.answer(rig.app.handled[1])
    assert len(rig.app.admitted) == 2
    rig.app.answer(rig.app.handled[0])
    assert len(rig.app.admitted) == 3
    assert client.transport.reading
    client.send(post(b"3")[30:])
    rig.app.answer(rig.app.handled[2])
    rig.app.answer(rig.app.handled[3])
    assert [a.body for a in client.answers()] == [b"0", b"1", b"2", b"3"]


def test_many_pipelined_requests_answered_at_once_pass_a_small_cap(rig_with):
    client = rig_with(max_pipelined=2).connect()
    client.send(GET * 5000)
    assert client.statuses() == [200] * 5000


def test_a_second_reply_is_ignored(rig):
    client = rig.connect()
    client.send(GET)
    rig.app.answer(rig.app.handled[0], b"again")
    assert len(client.answers()) == 1


def test_a_second_reply_is_ignored_while_the_first_waits(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET * 2)
    rig.app.answer(rig.app.handled[1], b"first")
    rig.app.answer(rig.app.handled[1], b"second")
    rig.app.answer(rig.app.handled[0])
    assert [a.body for a in client.answers()] == [b"", b"first"]


def test_chunks_are_put_together_and_trailers_dropped(rig):
    client = rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n")
    client.send(b'3;a=b;c="d"\r\nabc\r\n0A\r\n0123456789\r\n000\r\nX-Checksum: 1\r\n\r\n' + GET)
    assert [a.body for a in client.answers()] == [b"abc0123456789", b""]
    assert b"x-checksum" not in rig.app.handled[0].headers


def test_a_client_that_expects_it_is_told_to_continue_once_admitted(rig):
    client = rig.connect()
    wire = post(b"abc", b"Expect: 100-Continue\r\n")
    client.send(wire[:-3])
    assert client.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"abc")
    assert client.answers()[0].body == b"abc"


def test_a_client_that_does_not_wait_is_not_told_to_continue(rig):
    client = rig.connect()
    client.send(post(b"abc", b"Expect: 100-continue\r\n"), post(b"", b"Expect: 100-continue\r\n"))
    assert b"100 Continue" not in client.transport.sent


def test_continue_waits_for_the_answers_before_it(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + chunked(b"x", extra=b"Expect: 100-continue\r\n")[: -len(b"1\r\nx\r\n0\r\n\r\n")])
    assert client.transport.sent == b""
    rig.app.answer(rig.app.handled[0])
    assert client.transport.sent.endswith(b"\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")


def test_continue_is_not_said_to_a_client_that_went_ahead(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + post(b"abc", b"Expect: 100-continue\r\n")[:-3])
    client.send(b"ab")
    rig.app.answer(rig.app.handled[0])
    assert b"100 Continue" not in client.transport.sent


def test_an_old_client_has_no_expectations(rig):
    client = rig.connect()
    client.send(b"POST / HTTP/1.0\r\nExpect: 200-maybe\r\nContent-Length: 1\r\n\r\n", b"x")
    assert client.statuses() == [200]
    assert b"100 Continue" not in client.transport.sent


def test_an_upgrade_is_ignored(rig):
    client = rig.connect()
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\n"
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n" + post(b"abc", upgrade) + GET)
    assert [a.body for a in client.answers()] == [b"", b"abc", b""]


def test_a_client_that_leaves_is_cancelled(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + GET + post(b"abcd")[:-1])
    rig.app.answer(rig.app.handled[1], b"too early")
    client.leave()
    assert rig.app.cancelled == [rig.app.admitted[0], rig.app.admitted[2]]
    assert [status for _, status, _ in rig.app.answers] == [499] * 3
    rig.app.answer(rig.app.handled[0])  # the application may not know yet
    assert client.answers() == []


def test_the_end_of_the_sending_side_is_leaving(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    client.connection.eof_received()
    assert rig.app.cancelled == rig.app.admitted
    assert client.transport.closed


def test_draining_closes_what_is_idle_and_ends_the_rest_with_their_answers(rig):
    idle, busy, sending = rig.connect(), rig.connect(), rig.connect()
    idle.send(GET)
    rig.app.patient = True
    busy.send(GET + GET)
    wire = post(b"abc")
    sending.send(wire[:-1])
    rig.connections.drain()
    assert idle.transport.closed
    assert not busy.transport.closed
    rig.app.answer(rig.app.handled[1])
    rig.app.answer(rig.app.handled[2])
    assert [a.headers.get(b"connection") for a in busy.answers()] == [None, b"close"]
    assert busy.transport.half_closed
    assert not busy.transport.closed
    sending.send(wire[-1:])
    rig.app.answer(rig.app.handled[3])
    assert sending.answers()[0].headers[b"connection"] == b"close"
    assert sending.transport.closed


@pytest.mark.parametrize("together", [True, False])
def test_the_last_answer_resets_no_connection_on_which_more_may_be_on_its_way(rig, together):
    client = rig.connect()
    rig.app.patient = True
    for wire in [GET + GET] if together else [GET, GET]:
        client.send(wire)
    rig.connections.drain()
    for exchange in list(rig.app.handled):
        rig.app.answer(exchange)
    assert client.statuses() == [200, 200]
    assert client.transport.half_closed
    assert not client.transport.closed
    client.send(GET)
    assert len(rig.app.handled) == 2
    client.connection.eof_received()
    assert client.transport.closed


def test_draining_lets_a_refused_body_pass_before_it_closes(rig):
    client = rig.connect()
    rig.app.refusing = Response(404, b"text/plain", b"no")
    client.send(GET[:5])
    rig.connections.drain()
    client.send(GET[5:-2] + b"Content-Length: 3\r\n\r\nab")
    assert client.statuses() == [404]
    assert not client.transport.closed
    client.send(b"c")
    assert client.transport.closed


def test_nothing_of_a_closed_connection_stays(rig):
    before = living_connections()
    for _ in range(20):
        client = rig.connect()
        client.send(GET + post(b"abc") + chunked(b"x"))
        client.send(GET[:10])
        client.leave()
    assert living_connections() == before + 20
    rig.clients.clear()
    del client
    assert living_connections() == before


def living_connections() -> int:
    """How many there are in this process; counted, because a compiled object must not be referred to weakly."""
    gc.collect()
    return sum(type(found) is Connection for found in gc.get_objects())


@pytest.mark.parametrize(
    ("wire", "statuses"),
    [
        (b"\r\n" + GET, [200]),
        (GET + b"\r\n" + GET, [200, 200]),
        (b"\r\n" + post(b"abc") + b"\r\n" + chunked(b"d"), [200, 200]),
        (b"\r\n\r\n" + GET, [400]),
        (GET + b"\r\n\r\n" + GET, [200, 400]),
    ],
)
def test_one_blank_line_before_each_request_line_is_ignored_however_it_comes(rig_with, wire, statuses):
    bytewise = rig_with().connect()
    bytewise.send_bytewise(wire)
    assert bytewise.statuses() == statuses
    for cut in range(len(wire)):
        client = rig_with().connect()
        client.send(wire[:cut], wire[cut:])
        assert client.statuses() == statuses


def test_a_blank_line_takes_no_room_from_the_head(rig_with):
    head = b"GET / HTTP/1.1\r\nHost: x\r\nX-Pad: %s\r\n\r\n"
    head %= b"x" * (1024 - len(head) + 2)
    assert len(head) == 1024
    for wire in (b"\r\n" + head, head):
        client = rig_with(max_header_bytes=1024).connect()
        client.send(wire)
        assert client.statuses() == [200]


def test_a_blank_line_after_a_request_leaves_the_connection_idle(rig):
    client = rig.connect()
    client.send(post(b"abc") + b"\r\n")
    rig.sweep(rig.now + 11.0)  # a head that was begun would be late
    assert client.statuses() == [200]
    assert not client.transport.closed
    client.connection.drain()
    assert client.transport.closed


def test_half_a_blank_line_is_a_head_that_has_begun(rig):
    client = rig.connect()
    client.send(GET + b"\r")
    rig.sweep(rig.now + 11.0)
    assert client.statuses() == [200, 408]


@pytest.mark.parametrize(
    ("peername", "peer"),
    [(("192.0.2.7", 4711), "192.0.2.7"), (("2001:db8::1", 4711, 0, 0), "2001:db8::1"), ("", "unix"), (None, "unix")],
)
def test_for_the_access_log_a_request_has_the_peer_of_its_connection(rig_with, peername, peer):
    rig = rig_with(access_log=True)
    rig.connect(peername=peername).send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert rig.app.admitted[0].peer == peer


def test_without_an_access_log_nobody_asks_who_the_peer_is(rig):
    rig.connect(peername=("192.0.2.7", 4711)).send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert rig.app.admitted[0].peer == ""
