"""Which answer ends a connection whose server is about to leave, or which is old."""

from __future__ import annotations

import pytest

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"


def ends(client):
    """Of each answer, whether it says that it is the last."""
    return [answer.headers.get(b"connection") == b"close" for answer in client.answers()]


@pytest.mark.parametrize("request_bytes", [GET, POST, CHUNKED])
def test_a_server_that_leaves_soon_answers_once_more_on_each_connection(rig, request_bytes):
    kept = rig.connect()
    kept.send(GET)
    rig.connections.end_soon()
    new = rig.connect()
    assert not kept.transport.closed
    for client in (kept, new):
        client.send(request_bytes)
        assert client.transport.closed
    assert ends(kept) == [False, True]
    assert ends(new) == [True]
    assert {*kept.statuses(), *new.statuses()} == {200}


@pytest.mark.parametrize("request_bytes", [GET, POST, CHUNKED])
@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_pipelined_is_answered_first(rig, request_bytes, at_once):
    rig.app.patient = not at_once
    client = rig.connect()
    if at_once:
        rig.connections.end_soon()
        client.send(request_bytes * 3)
    else:
        client.send(request_bytes, request_bytes, request_bytes)
        rig.connections.end_soon()
        for request in rig.app.handled:
            rig.app.answer(request)
    assert ends(client) == [False, False, True]
    assert client.transport.half_closed  # it lingers: a client that pipelines may have sent more


def test_requests_that_could_not_be_begun_yet_are_answered_first(rig_with):
    rig = rig_with(max_pipelined=1)
    rig.app.patient = True
    client = rig.connect()
    client.send(GET + GET)
    rig.connections.end_soon()
    for n in range(2):
        rig.app.answer(rig.app.handled[n])
    assert ends(client) == [False, True]


def test_a_head_or_a_body_that_has_begun_is_waited_for(rig):
    client = rig.connect()
    rig.connections.end_soon()
    client.send(GET + GET[:9])
    assert ends(client) == [False]
    client.send(GET[9:] + POST[:-2])
    assert ends(client) == [False, False]
    client.send(POST[-2:])
    assert ends(client) == [False, False, True]


def test_a_refusal_is_a_last_answer_too(rig):
    rig.connections.end_soon()
    client = rig.connect()
    rig.app.refusing = rig.app.refuse(404, "no")
    client.send(GET)
    assert ends(client) == [True]
    assert client.transport.closed


@pytest.mark.parametrize("behind", [b"", GET])
def test_a_refused_body_is_the_end_unless_more_has_come(rig, behind):
    rig.connections.end_soon()
    client = rig.connect()
    rig.app.refusing = rig.app.refuse(404, "no")
    client.send(POST + behind)
    assert ends(client) == ([False, True] if behind else [True])
    assert client.transport.half_closed == (not behind)


@pytest.mark.parametrize(("drawn", "age"), [(0.0, 90.0), (0.5, 100.0), (1.0, 110.0)])
def test_a_connection_ends_with_its_first_answer_after_its_age_which_is_spread(rig_with, drawn, age):
    rig = rig_with(max_connection_age=100.0)
    rig.drawn = drawn
    client = rig.connect(handshake=5.0)
    made = rig.now
    rig.now = made + age - 0.001
    client.send(GET)
    assert ends(client) == [False]
    rig.sweep(made + age + 1.0)
    assert not client.transport.closed  # age alone ends nothing
    client.send(GET)
    assert ends(client) == [False, True]
    assert client.transport.closed
