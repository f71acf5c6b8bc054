"""An answer that lies in a piece holds it until it was handed over, or has nobody to go to."""

from __future__ import annotations

import pytest

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
NBYTES = 100_000


@pytest.fixture
def rig(rig):
    rig.app.patient = True
    return rig


def answer_from_piece(rig, number):
    """Answer request `number` with what lies in a piece of its own, of which nothing else has a view."""
    rig.app.answer(rig.app.handled[number], rig.app.piece(NBYTES))


def test_a_piece_is_free_as_soon_as_the_transport_has_taken_all_of_it(rig):
    client = rig.connect()
    client.send(GET)
    answer_from_piece(rig, 0)
    assert client.answers()[0].body == bytes(NBYTES)
    assert rig.app.lying() == 0


def test_the_answer_to_head_lets_go_at_once_though_the_client_reads_nothing(rig):
    client = rig.connect()
    client.transport.stuck = True
    client.send(HEAD)
    answer_from_piece(rig, 0)
    (answer,) = client.answers(heads_of=(0,))
    assert (answer.headers[b"content-length"], answer.body) == (b"100000", b"")
    assert rig.app.lying() == 0


@pytest.mark.parametrize("request_", [GET, HEAD])
def test_an_answer_that_waits_for_its_turn_holds_its_piece_until_then(rig, request_):
    client = rig.connect()
    client.send(GET + request_)
    answer_from_piece(rig, 1)
    assert rig.app.lying() == 1
    rig.app.answer(rig.app.handled[0], b"first")
    assert rig.app.lying() == 0


@pytest.mark.parametrize("leave", ["client", "abort", "make way"])
def test_an_answer_that_waits_lets_go_when_its_connection_ends(rig, leave):
    client = rig.connect()
    client.send(GET + GET)
    answer_from_piece(rig, 1)
    if leave == "client":
        client.leave()
    elif leave == "abort":
        client.connection.abort()
    else:
        client.connection.make_way()
    assert rig.app.lying() == 0


def test_an_answer_for_a_client_that_has_left_is_held_by_nobody(rig):
    client = rig.connect()
    client.send(GET)
    client.leave()
    answer_from_piece(rig, 0)
    assert rig.app.lying() == 0
