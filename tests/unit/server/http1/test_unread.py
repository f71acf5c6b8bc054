"""What a client has not taken yet is held for the request whose answer it is."""

from __future__ import annotations

import pytest

from penstock.server.application import HttpRequest
from penstock.server.http1.unread import TLS_WRITE_BYTES, UnreadAnswers

ONE, TWO, THREE = (HttpRequest("GET", b"/%d" % number, b"", {}, 0.0) for number in (1, 2, 3))


@pytest.fixture
def client(rig):
    """One that takes nothing by itself."""
    made = rig.connect()
    made.transport.stuck = True
    return made


@pytest.fixture
def unread(rig):
    return UnreadAnswers(rig.app, 0.0)


def held(rig) -> dict[HttpRequest, int]:
    """The bytes held for each request for which some are."""
    return {request: rig.app.held[id(request)] for request in (ONE, TWO, THREE) if rig.app.held[id(request)]}


def test_what_grows_is_the_last_answer_s_and_what_is_taken_the_first_s(rig, client, unread):
    transport = client.transport
    for request, answer in ((ONE, b"x" * 10), (TWO, [b"y" * 10, b"y" * 10]), (THREE, b"z")):
        unread.write(transport, answer, request, 0.0)
        unread.measure(transport)
    assert held(rig) == {ONE: 10, TWO: 20, THREE: 1}
    transport.unread = 15
    unread.measure(transport)
    assert held(rig) == {TWO: 14, THREE: 1}
    transport.unread = 0
    unread.measure(transport)
    assert held(rig) == {}


def test_an_answer_in_parts_grows_for_its_own_request(rig, client, unread):
    unread.write(client.transport, b"", ONE, 0.0)
    unread.charge(10)
    unread.charge(25)
    assert held(rig) == {ONE: 25}
    unread.charge(0)
    assert held(rig) == {}


def test_a_request_whose_answer_was_taken_is_not_kept(rig, client, unread):
    unread.write(client.transport, b"x", ONE, 0.0)
    unread.charge(1)
    assert unread.last == ONE
    unread.charge(0)
    assert unread.last is None


def test_a_socket_that_is_gone_is_not_measured(rig, client, unread):
    unread.write(client.transport, b"x", ONE, 0.0)
    unread.measure(None)
    assert held(rig) == {}


def test_over_tls_a_large_answer_is_written_in_pieces_that_the_transport_can_count(client, unread):
    transport, body = client.transport, bytes(2 * TLS_WRITE_BYTES) + b"the rest"
    transport.encrypted = True
    writes = []
    transport.write = writes.append
    unread.write(transport, [b"head", body], ONE, 0.0)
    assert [len(piece) for piece in writes] == [4, TLS_WRITE_BYTES, TLS_WRITE_BYTES, 8]
    assert b"".join(writes) == b"head" + body
    assert unread.written == 4 + len(body)


def test_over_tls_no_further_piece_is_written_once_the_socket_is_gone(client, unread):
    transport = client.transport
    transport.encrypted = True
    transport.closed = True
    unread.write(transport, [bytes(TLS_WRITE_BYTES), b"rest"], ONE, 0.0)
    assert transport.sent == b""
