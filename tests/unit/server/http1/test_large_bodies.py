"""A large body lies in a piece from its first byte on, and is received there; how it ends changes nothing of that."""

from __future__ import annotations

import asyncio

import pytest

from penstock.server.application import Response
from penstock.server.http1.connections import TURN_SECONDS
from penstock.server.http1.intake import LARGE_BODY_BYTES
from penstock.server.http1.large_bodies import HEAD_ROOM_BYTES

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SAID = bytes(range(256)) * 70
"""Longer than what is received at a time where no piece is."""
SMALL = b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


def head_of(length, *fields, line=b"POST / HTTP/1.1"):
    return b"\r\n".join((line, b"Host: x", b"Content-Length: %d" % length, *fields, b"\r\n"))


HEAD = head_of(len(SAID))
LARGE = HEAD + SAID


@pytest.fixture
def rig_with_pieces(rig_with):
    def make(**options):
        rig = rig_with(**options)
        rig.app.has_pieces = True
        return rig

    return make


@pytest.fixture
def rig(rig_with_pieces):
    return rig_with_pieces()


def is_plain(client):
    """Whether the transport has the connection's own protocol."""
    assert client.transport.protocol is client.connection or isinstance(
        client.transport.protocol, asyncio.BufferedProtocol
    )
    return client.transport.protocol is client.connection


# ---- which bodies get a piece, and when


def test_a_large_body_that_came_with_its_head_is_copied_into_a_piece(rig):
    client = rig.connect()
    client.send(LARGE)
    assert client.answers()[0].body == SAID
    assert rig.app.handled_types == [memoryview]
    assert [body.announced for body in rig.app.asked] == [len(SAID)]
    assert client.transport.exchanges == 0


def test_the_rest_of_a_large_body_is_received_into_its_piece(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:1])
    assert not is_plain(client)
    assert len(client.transport.protocol.get_buffer(-1)) == len(SAID) - 1
    client.send(SAID[1:4000])
    assert len(client.transport.protocol.get_buffer(-1)) == len(SAID) - 4000
    client.send(SAID[4000:])
    assert client.answers()[0].body == SAID
    assert rig.app.handled_types == [memoryview]
    assert len(rig.app.pieces) == 1


def test_a_small_body_is_not_asked_for(rig):
    client = rig.connect()
    for length in (5, LARGE_BODY_BYTES - 1):
        client.send(head_of(length) + SAID[:length])
        client.send(head_of(length) + SAID[:1])
        client.send(SAID[1:length])
    assert client.statuses() == [200] * 4
    assert rig.app.asked == []
    assert client.transport.exchanges == 0
    assert rig.app.handled_types == [bytes, bytearray] * 2


def test_the_shortest_large_body_is_asked_for(rig):
    client = rig.connect()
    client.send(head_of(LARGE_BODY_BYTES) + SAID[:LARGE_BODY_BYTES])
    assert rig.app.handled_types == [memoryview]


@pytest.mark.parametrize("first", [1, 5000])
def test_a_piece_is_taken_with_the_first_byte_and_not_with_the_head(rig, first):
    client = rig.connect()
    client.send(HEAD)
    assert rig.app.asked == []
    assert is_plain(client)
    client.send(SAID[:first])
    assert [body.came for body in rig.app.asked] == [first]
    client.send(SAID[first:])
    assert rig.app.handled_types == [memoryview]
    assert rig.app.asked[0].came == len(SAID)


def test_who_waits_for_continue_holds_nothing(rig):
    client = rig.connect()
    client.send(head_of(len(SAID), b"Expect: 100-continue"))
    assert client.transport.sent.startswith(b"HTTP/1.1 100 ")
    assert rig.app.asked == []
    client.send(SAID)
    assert client.answers()[0].body == SAID
    assert rig.app.handled_types == [memoryview]


def test_who_waits_for_continue_behind_another_holds_nothing(rig):
    rig.app.patient = True
    client = rig.connect()
    client.send(LARGE + head_of(len(SAID), b"Expect: 100-continue"))
    assert len(rig.app.asked) == 1
    client.send(SAID[:100])  # without waiting for it
    client.send(SAID[100:])
    assert rig.app.handled_types == [memoryview] * 2
    for request in rig.app.handled:
        rig.app.answer(request)
    assert [answer.body for answer in client.answers()] == [SAID] * 2


@pytest.mark.parametrize("length", [5000, 500_000])
def test_a_refused_body_holds_nothing(rig, length):
    rig.app.refusing = Response(401, b"text/plain", b"no")
    client = rig.connect()
    client.send(head_of(length) + b"x" * 4200)
    client.send(b"x" * 800)
    assert client.statuses() == [401]
    assert rig.app.asked == []


def test_a_body_in_chunks_stays_inline_and_is_shown_once_it_is_whole(rig):
    client = rig.connect()
    for chunk in (SAID, SAID[: LARGE_BODY_BYTES - 1]):
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(chunk))
        client.send(chunk[:3000], chunk[3000:], b"\r\n0\r\n\r\n")
    assert [answer.body for answer in client.answers()] == [SAID, SAID[: LARGE_BODY_BYTES - 1]]
    assert [(body.announced, body.chunked) for body in rig.app.asked] == [(len(SAID), True)]
    assert rig.app.handled_types == [bytearray] * 2


@pytest.mark.parametrize("parts", [[LARGE], [HEAD, SAID], [HEAD + SAID[:5000], SAID[5000:]]])
def test_without_a_piece_all_is_as_without_a_slab(rig, parts):
    rig.app.has_pieces = False
    client = rig.connect()
    client.send(*parts)
    client.send(GET)
    assert [answer.body for answer in client.answers()] == [SAID, b""]
    assert len(rig.app.asked) == 1
    assert client.transport.exchanges == 0


# ---- which protocol is set


def test_the_protocol_stays_exchanged_from_one_large_body_to_the_next(rig):
    client = rig.connect()
    for n in range(1, 6):
        client.send(HEAD[:40], HEAD[40:], SAID[:2000], SAID[2000:])
        client.send(HEAD + SAID[:2000], SAID[2000:])
        client.send(LARGE)
        assert client.statuses() == [200] * 3 * n
        assert client.transport.exchanges == 1
    assert rig.app.handled_types == [memoryview] * 15


@pytest.mark.parametrize("small", [GET, SMALL, b"\r\n" + GET])
def test_a_small_request_brings_the_plain_protocol_back(rig, small):
    client = rig.connect()
    for n in range(1, 4):
        client.send(HEAD, SAID[:9], SAID[9:])
        assert not is_plain(client)
        client.send(small[:1])
        client.send(small[1:])
        assert is_plain(client)
        assert client.transport.exchanges == 2 * n
    assert client.statuses() == [200] * 6


def test_an_unfinished_head_keeps_the_protocol(rig):
    client = rig.connect()
    client.send(HEAD, SAID[:9], SAID[9:])
    long_field = b"X-Long: " + b"a" * 8000
    head = head_of(len(SAID), *[long_field] * 5)
    assert len(head) > 2 * HEAD_ROOM_BYTES
    client.send(head + SAID)
    assert client.statuses() == [200, 200]
    assert client.transport.exchanges == 1


def test_waiting_for_continue_keeps_the_protocol(rig):
    client = rig.connect()
    client.send(HEAD, SAID[:9], SAID[9:])
    client.send(head_of(len(SAID), b"Expect: 100-continue"))
    client.send(SAID)
    assert client.statuses() == [200, 200]
    assert client.transport.exchanges == 1


def test_a_body_in_chunks_brings_the_plain_protocol_back(rig):
    client = rig.connect()
    client.send(HEAD, SAID[:9], SAID[9:])
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(SAID))
    assert is_plain(client)
    client.send(SAID + b"\r\n0\r\n\r\n")
    assert client.statuses() == [200, 200]


def test_nothing_is_received_by_asking_for_room(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:9])
    for _ in range(3):
        client.transport.protocol.get_buffer(-1)
    client.send(SAID[9:])
    for _ in range(3):
        client.transport.protocol.get_buffer(-1)
    client.send(LARGE)
    assert [answer.body for answer in client.answers()] == [SAID] * 2


def test_connections_may_share_what_heads_are_received_into(rig):
    clients = [rig.connect() for _ in range(3)]
    for client in clients:
        client.send(HEAD + SAID[:9], SAID[9:])
    for n in range(0, len(HEAD), 10):
        for client in clients:
            client.send(HEAD[n : n + 10])
    for client in clients:
        client.send(SAID)
    assert [[answer.body for answer in client.answers()] for client in clients] == [[SAID] * 2] * 3


# ---- however the bytes were divided


def test_every_byte_may_come_alone(rig):
    client = rig.connect()
    client.send_bytewise(SMALL + LARGE + LARGE + GET + LARGE)
    assert [answer.body for answer in client.answers()] == [b"hello", SAID, SAID, b"", SAID]
    assert [kind is memoryview for kind in rig.app.handled_types] == [False, True, True, False, True]


def test_bodies_in_hand_keep_their_own_pieces(rig):
    rig.app.patient = True
    client = rig.connect()
    bodies = [bytes([n]) * (5000 + n) for n in range(4)]
    client.send(b"".join(head_of(len(body)) + body for body in bodies))
    assert [bytes(request.body) for request in rig.app.handled] == bodies
    assert rig.app.lying() == 4
    for n, request in enumerate(rig.app.handled):
        rig.app.answer(request)
        assert rig.app.lying() == 3 - n
    assert [answer.body for answer in client.answers()] == bodies


def test_a_body_is_let_go_of_by_whom_it_was_given_to(rig):
    rig.app.patient = True
    client = rig.connect()
    client.send(HEAD + SAID[:9], SAID[9:])
    client.send(LARGE)
    for request in rig.app.handled:
        request.body = b""
    assert rig.app.lying() == 0
    client.leave()


# ---- with everything else a connection does


def test_what_comes_behind_the_last_request_is_dropped(rig):
    rig.app.patient = True
    client = rig.connect()
    client.send(head_of(len(SAID), b"Connection: close") + SAID[:9], SAID[9:])
    client.send(LARGE)
    assert is_plain(client)
    client.send(LARGE)
    rig.app.answer(rig.app.handled[0])
    assert client.transport.half_closed
    assert client.statuses() == [200]
    assert len(rig.app.asked) == 1


def test_most_requests_in_hand_keep_a_large_one_waiting(rig_with_pieces):
    rig = rig_with_pieces(max_pipelined=1)
    rig.app.patient = True
    client = rig.connect()
    client.send(HEAD + SAID[:9], SAID[9:])
    client.send(HEAD + SAID[:9])
    assert len(rig.app.pieces) == 1
    assert not client.transport.reading
    client.send(SAID[9:] + HEAD)  # it had been read already
    rig.app.answer(rig.app.handled[0])
    assert len(rig.app.pieces) == 2
    rig.app.answer(rig.app.handled[1])
    client.send(SAID)
    rig.app.answer(rig.app.handled[2])
    assert [answer.body for answer in client.answers()] == [SAID] * 3
    assert client.transport.exchanges == 1


def test_large_bodies_that_came_together_have_short_turns(rig):
    admit = rig.app.admit

    def admit_slowly(request):
        rig.now += 0.6 * TURN_SECONDS
        return admit(request)

    rig.app.admit = admit_slowly
    client = rig.connect()
    client.send(LARGE * 10)
    assert len(client.answers()) == 3
    while rig.clock.ring():
        pass
    assert [answer.body for answer in client.answers()] == [SAID] * 10
    assert client.transport.reading


def test_a_client_that_does_not_read_is_not_read_whichever_protocol_is_set(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:9])
    client.transport.protocol.pause_writing()
    assert not client.transport.reading
    client.send(SAID[9:100])  # it had been read already
    client.transport.protocol.resume_writing()
    assert client.transport.reading
    client.send(SAID[100:])
    client.transport.protocol.pause_writing()
    client.send(LARGE)
    assert not client.transport.reading
    client.transport.protocol.resume_writing()
    assert client.transport.reading
    assert [answer.body for answer in client.answers()] == [SAID] * 2


def test_the_bytes_received_are_held_as_they_come(rig):
    client = rig.connect()
    for part, held in ((HEAD, 0), (SAID[:9], 9), (SAID[9:4000], 4000), (SAID[4000:-1], len(SAID) - 1)):
        client.send(part)
        assert rig.app.held.total() == held
    client.send(SAID[-1:])
    assert rig.app.held.total() == 0


def test_a_drain_waits_for_a_large_body_and_its_answer(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:9])
    rig.connections.drain()
    assert not client.transport.closed
    client.send(SAID[9:])
    assert client.answers()[0].body == SAID
    assert client.transport.closed


def test_a_drain_closes_a_connection_that_is_between_large_bodies(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:9], SAID[9:])
    rig.connections.drain()
    assert client.transport.closed


# ---- ends


@pytest.mark.parametrize("parts", [[SAID[:9]], [SAID[:9], SAID[9:5000]], [SAID[:5000]]])
@pytest.mark.parametrize("end", ["eof", "lost", "abort", "drop"])
def test_a_client_that_leaves_half_way_holds_nothing(rig, parts, end):
    client = rig.connect()
    client.send(LARGE, HEAD, *parts)
    assert (rig.app.lying(), rig.app.held.total()) == (1, sum(map(len, parts)))
    if end == "eof":
        client.transport.protocol.eof_received()
        assert client.transport.closed
    elif end == "lost":
        client.transport.protocol.connection_lost(OSError())
        assert client.connection._large is None
    elif end == "abort":
        client.connection.abort()
    else:
        rig.connections.abort()
    assert (rig.app.lying(), rig.app.held.total(), rig.app.arriving) == (0, 0, [])
    assert [status for _, status, _ in rig.app.answers] == [200, 499]


def test_a_body_of_which_nothing_comes_any_more_is_408(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:9])
    rig.sweep(rig.now + 20)
    client.send(SAID[9:100])
    rig.sweep(rig.now + 20)
    assert client.answers() == []
    rig.sweep(rig.now + 11)
    assert client.statuses() == [408]
    assert rig.app.lying() == 0
    client.send(SAID[100:1000])
    assert is_plain(client)
    client.send(SAID[1000:] + LARGE)
    assert client.transport.half_closed
    assert len(rig.app.asked) == 1


@pytest.mark.parametrize("parts", [[SAID[:9]], [SAID[:9], SAID[9:100]], [SAID[:9], SAID[9:100], SAID[100:5000]]])
def test_a_body_is_refused_where_too_much_is_held(rig, parts):
    client = rig.connect()
    client.send(HEAD, *parts[:-1])
    rig.app.full = Response(503, b"text/plain", b"full")
    client.send(parts[-1])
    assert client.statuses() == [503]
    assert (rig.app.lying(), rig.app.held.total()) == (0, 0)
    client.send(SAID[9:] + LARGE)
    assert client.statuses() == [503]
    assert client.transport.half_closed


def test_a_connection_that_ends_within_what_it_receives_is_left_alone(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:9], SAID[9:])
    rig.app.refusing = Response(401, b"text/plain", b"no")
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert client.statuses() == [200, 401]
    assert client.transport.closed


# ---- moved out


@pytest.mark.parametrize("came", [1, 9, 5000, len(SAID) - 1])
@pytest.mark.parametrize("steps", [[1 << 20], [1, 1 << 20]])
def test_a_body_that_is_moved_out_goes_on_inline(rig, came, steps):
    client = rig.connect()
    client.send(HEAD, SAID[:1], SAID[1:came])
    body = rig.app.arriving[0]
    for most in steps:
        body.move_out(most)
    assert rig.app.lying() == 0
    for part in (SAID[came : came + 1], SAID[came + 1 : came + 9], SAID[came + 9 :]):
        client.send(part)
    assert client.answers()[0].body == SAID
    assert rig.app.handled_types == [bytearray]
    client.send(LARGE, GET)
    assert rig.app.handled_types == [bytearray, memoryview, bytes]
    assert client.statuses() == [200] * 3


def test_a_body_that_is_moved_out_is_read_as_one_without_a_piece(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:9])
    rig.app.arriving[0].move_out(1 << 20)
    client.send(SAID[9:20])
    assert is_plain(client)
    client.send(SAID[20:])
    assert client.answers()[0].body == SAID


def test_a_body_may_come_on_while_it_is_moved_out(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:100])
    body = rig.app.arriving[0]
    for n in range(100, 1000, 100):
        body.move_out(90)
        client.send(SAID[n : n + 100])
        assert body.piece is not None
    body.move_out(1000)
    assert rig.app.lying() == 0
    client.send(SAID[1000:])
    assert client.answers()[0].body == SAID
    assert rig.app.handled_types == [bytearray]


def test_a_body_that_is_whole_before_it_is_out_stays_in_its_piece(rig):
    client = rig.connect()
    client.send(HEAD + SAID[:100])
    rig.app.arriving[0].move_out(90)
    client.send(SAID[100:])
    assert client.answers()[0].body == SAID
    assert rig.app.handled_types == [memoryview]


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_a_client_may_leave_while_its_body_is_moved_out(rig, most):
    client = rig.connect()
    client.send(HEAD + SAID[:100])
    rig.app.arriving[0].move_out(most)
    client.leave()
    assert rig.app.lying() == 0
