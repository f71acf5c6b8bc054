"""What is written of an answer over TLS, and for how long its request is kept; what is held: `test_time`."""

from __future__ import annotations

import pytest

from penstock.server.application import HttpRequest
from penstock.server.http1.unread import TLS_WRITE_BYTES, UnreadAnswers

ONE = HttpRequest("GET", b"/", b"", {}, 0.0)


@pytest.fixture
def client(rig):
    """One that takes nothing by itself."""
    made = rig.connect()
    made.transport.stuck = True
    return made


@pytest.fixture
def unread(rig):
    return UnreadAnswers(rig.app, 0.0)


def test_a_request_whose_answer_was_taken_is_not_kept(client, unread):
    unread.write(client.transport, b"x", ONE, 0.0)
    unread.charge(1)
    assert unread.last == ONE
    unread.charge(0)
    assert unread.last is None


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
