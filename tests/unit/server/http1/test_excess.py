"""Connections beyond `max_connections`: what they may ask, who makes way for them, and who is cut."""

from __future__ import annotations

import gc

import pytest

from penstock.server.application import PROBES, Response
from penstock.server.http1.connection import Connection
from penstock.server.http1.connections import EXCESS_CONNECTIONS
from penstock.server.http1.refusals import LINGER_SECONDS

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"


def probe(path, *fields):
    return b"\r\n".join((b"GET %s HTTP/1.1" % path, b"Host: x", *fields, b"", b""))


@pytest.fixture
def crowded(rig_with):
    """A rig whose only place is taken by a client with a request in hand."""
    rig = rig_with(max_connections=1)
    rig.app.patient = True
    rig.connect().send(GET)
    rig.app.patient = False
    return rig


def finish(rig, request=0):
    """Answer a request that was in hand."""
    rig.app.answer(rig.app.handled[request], b"at last")


@pytest.mark.parametrize("path", sorted(PROBES))
def test_beyond_the_bound_a_probe_is_answered_and_the_connection_ends(crowded, path):
    extra = crowded.connect()
    assert extra.transport.sent == b""
    extra.send(probe(path))
    (answer,) = extra.answers()
    assert (answer.status, answer.headers[b"connection"]) == (200, b"close")
    assert extra.transport.closed
    assert not extra.transport.aborted


def test_the_health_path_of_the_options_is_a_probe_too(rig_with):
    rig = rig_with(max_connections=1, health_path="/health_check")
    rig.app.patient = True
    rig.connect().send(GET)
    rig.app.patient = False
    for path, status in ((b"/health_check", 200), (b"/livez", 200), (b"/health", 503)):
        extra = rig.connect()
        extra.send(probe(path))
        assert extra.statuses() == [status]


def test_a_probe_may_come_bytewise_by_head_or_with_a_query(crowded):
    for request in (LIVEZ, LIVEZ.replace(b"/livez", b"/livez?verbose"), LIVEZ.replace(b"GET", b"HEAD")):
        extra = crowded.connect()
        extra.send_bytewise(request)
        assert extra.answers(heads_of=(0,))[0].status == 200
        assert extra.transport.closed


def test_the_refusal_of_a_probe_by_the_application_is_its_answer(crowded):
    extra = crowded.connect()
    crowded.app.refusing = Response(401, b"text/plain", b"no key")
    extra.send(probe(b"/metrics"))
    assert extra.statuses() == [401]
    assert extra.transport.closed


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET,
        POST,
        probe(b"/health"),
        probe(b"/livez/"),
        probe(b"/livez", b"Content-Length: 3") + b"abc",
        probe(b"/livez", b"Transfer-Encoding: chunked"),
        POST.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    ],
    ids=["page", "item", "health", "slash", "body", "chunks", "expects"],
)
def test_beyond_the_bound_anything_else_is_503_and_the_end(crowded, request_bytes):
    extra = crowded.connect()
    extra.send(request_bytes)
    (answer,) = extra.answers()
    assert (answer.status, answer.headers[b"connection"]) == (503, b"close")
    assert extra.transport.closed or extra.transport.half_closed
    assert len(crowded.app.handled) == 1
    extra.send(GET)
    assert len(extra.answers()) == 1


def test_what_comes_behind_a_probe_is_not_answered(crowded):
    extra = crowded.connect()
    extra.send(LIVEZ + LIVEZ)
    assert extra.statuses() == [200]
    assert len(crowded.app.admitted) == 2


def test_a_head_that_makes_no_sense_is_told_so_beyond_the_bound_too(crowded):
    extra = crowded.connect()
    extra.send(b"nonsense\r\n\r\n")
    assert extra.statuses() == [400]


def test_who_asks_nothing_beyond_the_bound_gets_the_time_of_a_head(crowded):
    silent, slow = crowded.connect(), crowded.connect()
    slow.send(LIVEZ[:5])
    crowded.sweep(crowded.now + 9.9)
    assert not silent.transport.closed
    crowded.sweep(crowded.now + 0.1)
    assert silent.transport.closed
    assert silent.transport.sent == b""
    assert slow.statuses() == [408]
    crowded.sweep(crowded.now + LINGER_SECONDS)
    assert slow.transport.aborted


def test_where_all_places_are_taken_the_one_silent_longest_is_cut(crowded):
    crowd = [crowded.connect() for _ in range(EXCESS_CONNECTIONS)]
    crowd[0].send(LIVEZ[:5])
    assert not any(client.transport.closed for client in crowd)
    late = crowded.connect()
    assert [client.transport.aborted for client in crowd] == [False, True] + [False] * (EXCESS_CONNECTIONS - 2)
    late.send(LIVEZ)
    crowd[0].send(LIVEZ[5:])
    assert late.statuses() == crowd[0].statuses() == [200]
    assert not crowded.clients[0].transport.closed


def test_a_connection_that_was_cut_with_an_answer_unread_holds_nothing(crowded):
    slow = crowded.connect()
    slow.send(probe(b"/metrics"))
    slow.transport.unread = 100
    crowded.sweep(crowded.now)
    assert crowded.app.held.total() == 100
    for _ in range(EXCESS_CONNECTIONS):
        crowded.connect()
    assert slow.transport.aborted
    slow.connection.connection_lost(None)
    assert crowded.app.held.total() == 0


def test_who_asks_beyond_the_bound_is_served_and_kept_once_there_is_room(crowded):
    extra = crowded.connect()
    crowded.clients[0].leave()
    extra.send(POST + POST)
    assert extra.statuses() == [200, 200]
    assert not extra.transport.closed
    assert crowded.connect().transport.closed is False
    crowded.clients[-1].send(POST)
    assert crowded.clients[-1].statuses() == [503]


def test_a_probe_takes_no_place_even_where_there_is_room_by_now(crowded):
    extra = crowded.connect()
    crowded.clients[0].leave()
    extra.send(LIVEZ)
    assert extra.answers()[0].headers[b"connection"] == b"close"


def test_a_connection_idle_for_a_second_makes_way_without_a_word_and_not_before(rig_with):
    rig = rig_with(max_connections=1)
    idle = rig.connect()
    idle.send(GET)
    rig.now += 0.9
    early = rig.connect()
    early.send(POST)
    assert early.statuses() == [503]
    assert not idle.transport.closed
    rig.now += 0.1
    late = rig.connect()
    assert idle.transport.closed
    assert not idle.transport.aborted
    assert idle.statuses() == [200]
    late.send(POST)
    assert late.statuses() == [200]
    assert not late.transport.closed


def test_those_that_never_asked_make_way_first_and_then_the_longest_idle(rig_with):
    rig = rig_with(max_connections=4)
    first, second = rig.connect(), rig.connect()
    second.send(GET)
    rig.now += 0.5
    first.send(GET)
    rig.now += 0.5
    silent, silent_too = rig.connect(), rig.connect()
    rig.now += 5.0
    went = []
    for _ in range(4):
        rig.connect().send(GET)
        went.append([client.transport.closed for client in (silent, silent_too, second, first)])
    assert went[0] in ([True, False, False, False], [False, True, False, False])  # the two came together
    assert went[1:] == [[True, True, False, False], [True, True, True, False], [True, True, True, True]]
    assert rig.connect().transport.sent == b""
    assert len(rig.connections.excess) == 1


@pytest.mark.parametrize(
    "busy",
    ["request in hand", "unfinished head", "unfinished body", "skipped body", "answer unread", "kept request"],
)
def test_who_is_not_idle_never_makes_way(rig_with, busy):
    rig = rig_with(max_connections=1, max_pipelined=1)
    client = rig.connect()
    rig.app.patient = busy in ("request in hand", "kept request")
    match busy:
        case "request in hand":
            client.send(GET)
        case "unfinished head":
            client.send(GET + GET[:1])
        case "unfinished body":
            client.send(POST[:-1])
        case "skipped body":
            client.send(POST[:-1].replace(b"Host", b"Content-Encoding: gzip\r\nHost"))
        case "answer unread":
            client.send(GET)
            client.transport.unread = 1
        case "kept request":
            client.send(GET + GET)
    rig.app.patient = False
    rig.now += 5.0
    extra = rig.connect()
    extra.send(POST)
    assert extra.statuses() == [503]
    assert not client.transport.closed


def test_a_client_that_has_just_read_its_answer_is_not_idle_yet(rig_with):
    rig = rig_with(max_connections=1)
    client = rig.connect()
    client.send(GET)
    client.transport.unread = 100_000
    client.connection.pause_writing()
    rig.now += 5.0
    client.transport.unread = 0
    client.connection.resume_writing()
    rig.now += 0.9
    rig.connect()
    assert not client.transport.closed
    rig.now += 0.1
    rig.connect()
    assert client.transport.closed


def test_how_long_the_handshake_took_does_not_count_as_idle(rig_with):
    rig = rig_with(max_connections=1)
    client = rig.connect(handshake=9.0)
    extra = rig.connect()
    extra.send(POST)
    assert extra.statuses() == [503]
    assert not client.transport.closed


def test_a_closed_connection_whose_socket_stays_gives_its_place_up(rig_with):
    # Over TLS a client can leave our goodbye unanswered.
    rig = rig_with(max_connections=1)
    rude = rig.connect()
    rude.send(GET.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    assert rude.transport.closed
    rig.now += 1.0
    late = rig.connect()
    late.send(POST)
    assert late.statuses() == [200]
    assert rude.connection in rig.connections.leaving
    rude.connection.connection_lost(None)
    assert not rig.connections.leaving


def test_a_connection_beyond_the_bound_ends_with_a_drain(crowded):
    silent, slow = crowded.connect(), crowded.connect()
    slow.send(LIVEZ[:5])
    crowded.connections.drain()
    assert silent.transport.closed
    slow.send(LIVEZ[5:])
    assert slow.statuses() == [200]


def test_who_comes_while_the_server_drains_is_aborted_without_a_word(rig):
    rig.connections.drain()
    late = rig.connect()
    late.send(LIVEZ)
    assert late.transport.aborted
    assert late.transport.sent == b""


def test_the_sweep_lets_go_of_those_that_were_idle_once(rig_with):
    rig = rig_with(max_connections=2)
    before = living_connections()
    for _ in range(3):
        rig.connect()
        rig.now += 1.0
    for client in rig.clients:
        client.connection.connection_lost(None)
    rig.clients.clear()
    del client
    assert living_connections() > before
    rig.sweep(rig.now + 1.0)
    assert living_connections() == before


def living_connections() -> int:
    """How many there are in this process; counted, because a compiled object must not be referred to weakly."""
    gc.collect()
    return sum(type(found) is Connection for found in gc.get_objects())
