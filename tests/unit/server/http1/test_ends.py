"""What a connection does when it ends, and what it leaves alone afterwards."""

from __future__ import annotations

import pytest

from penstock.server.application import DROPPED
from penstock.server.http1.refusals import LINGER_SECONDS

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = GET.replace(b"Host: x", b"Host: x\r\nConnection: close")


def test_where_the_end_of_one_side_cannot_be_written_the_connection_lingers_all_the_same(rig):
    client = rig.connect()
    client.transport.encrypted = True
    client.send(b"nonsense\r\n\r\n")
    assert client.statuses() == [400]
    rig.sweep(rig.now + LINGER_SECONDS - 0.1)
    assert not client.transport.closed
    rig.sweep(rig.now + 0.1)
    assert client.transport.aborted


def test_over_tls_the_socket_is_closed_once_the_last_answer_is_taken(rig):
    client = rig.connect()
    client.transport.encrypted = client.transport.stuck = True
    client.send(LAST)
    assert client.transport.limits == (0, None), "to be told when all is taken"
    client.connection.pause_writing()
    rig.sweep(rig.now + 20.0)
    assert not client.transport.closed
    client.transport.unread = 0
    client.connection.resume_writing()
    assert client.transport.closed
    assert not client.transport.aborted


def test_over_tls_who_never_takes_the_last_answer_is_cut(rig):
    client = rig.connect()
    client.transport.encrypted = client.transport.stuck = True
    client.send(LAST)
    rig.sweep(rig.now)
    rig.sweep(rig.now + 30.1)
    assert client.transport.aborted


def test_a_connection_that_is_gone_may_still_be_called(rig):
    client = rig.connect()
    client.send(GET)
    sent = bytes(client.transport.sent)
    client.leave()
    client.transport.closed = False
    client.connection.pause_writing()
    client.connection.resume_writing()
    client.connection.sweep(rig.now + 1000.0)
    client.connection.drain()
    client.connection.abort()
    client.connection.eof_received()
    assert not client.transport.closed
    assert client.transport.sent == sent


def test_the_socket_of_a_connection_that_ended_is_left_alone(rig):
    client = rig.connect()
    client.send(GET)
    client.transport.unread = 100
    client.connection.pause_writing()
    assert not client.transport.reading
    rig.sweep(rig.now)
    rig.sweep(rig.now + 30.1)
    assert client.transport.aborted
    client.transport.unread = 0
    client.connection.resume_writing()  # the transport asserts that nobody resumes it
    assert not client.transport.reading


def test_a_connection_that_ended_takes_no_more_requests(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(LAST)
    client.connection.abort()
    client.connection.data_received(GET)
    client.connection.drain()
    assert len(rig.app.admitted) == 1
    assert rig.app.answers == [(rig.app.admitted[0], 499, 0)]


@pytest.mark.parametrize("pieces", [(GET * 3,), (GET, GET, GET), (GET * 2, GET)])
def test_what_comes_while_the_most_requests_are_in_hand_is_kept_in_its_order(rig_with, pieces):
    rig = rig_with(max_pipelined=1)
    client = rig.connect()
    rig.app.patient = True
    for piece in pieces:
        client.connection.data_received(piece)  # whether it is wanted or not: it was on its way
    for n in range(3):
        assert len(rig.app.handled) == n + 1
        rig.app.answer(rig.app.handled[n], b"%d" % n)
    assert [answer.body for answer in client.answers()] == [b"0", b"1", b"2"]
    assert client.transport.reading


def test_a_connection_that_lingers_is_read_so_that_its_end_is_seen(rig):
    client = rig.connect()
    client.send(b"nonsense\r\n\r\n")
    client.transport.unread = 100
    client.connection.pause_writing()
    assert client.transport.half_closed
    assert client.transport.reading


@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_that_is_dropped_ends_its_connection_without_an_answer(rig, at_once):
    rig.app.patient = True
    client = rig.connect()
    client.send(GET + GET + GET if at_once else GET)
    first = rig.app.handled[0]
    rig.app.replies[id(first)](DROPPED)
    assert client.transport.sent == b""
    assert client.transport.aborted
    assert rig.app.cancelled == rig.app.handled
    assert {status for _, status, _ in rig.app.answers} == {499}
    rig.app.answer(first)
    assert client.transport.sent == b""
