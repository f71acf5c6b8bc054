"""No client keeps the others waiting: what one connection has read is used in short turns."""

from random import Random

import pytest

from night import histories
from penstock.server.application import Response
from penstock.server.http1.bodies import CHUNKS_PER_FEED
from penstock.server.http1.connections import TURN_SECONDS
from rows import each

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY_CHUNKS = CHUNKED + b"1\r\nx\r\n" * (10 * CHUNKS_PER_FEED) + b"0\r\n\r\n"


@pytest.fixture
def rig(rig_with):
    """One whose application answers at once, and takes more than half a turn for each request that it admits."""
    return slow(rig_with())


def slow(rig, seconds=0.6 * TURN_SECONDS):
    admit = rig.app.admit

    def admit_slowly(request):
        rig.now += seconds
        return admit(request)

    rig.app.admit = admit_slowly
    return rig


def slow_clock(rig):
    """Let more than half a turn pass each time when somebody asks for the time."""

    def now():
        rig.now += 0.6 * TURN_SECONDS
        return rig.now

    rig.clock.now = now
    return rig


def finish(rig):
    """Let the event loop turn until nobody rests; returns how often it did."""
    turns = 0
    while rig.clock.ring():
        turns += 1
    return turns


def test_who_pipelines_what_is_answered_at_once_has_short_turns(rig):
    client = rig.connect()
    client.send(GET * 100)
    assert len(client.answers()) == 3
    assert not client.transport.reading
    assert finish(rig) == 33
    assert client.statuses() == [200] * 100
    assert client.transport.reading


def test_requests_refused_at_the_head_have_short_turns_too(rig):
    rig.app.refusing = Response(401, b"text/plain", b"no")
    client = rig.connect()
    client.send(GET * 100)
    assert len(client.answers()) == 3
    finish(rig)
    assert client.statuses() == [401] * 100


def test_one_request_in_each_piece_needs_no_turn(rig):
    client = rig.connect()
    client.send(*[GET] * 100)
    assert client.statuses() == [200] * 100
    assert rig.clock.timers == []


def test_however_many_pipeline_all_others_wait_for_one_turn(rig):
    pipelining = [rig.connect() for _ in range(10)]
    for client in pipelining:
        client.send(GET * 10)
    assert [len(client.answers()) for client in pipelining] == [3] + [1] * 9
    for _ in range(3):
        before = sum(len(client.answers()) for client in pipelining)
        assert rig.clock.ring() == 1
        assert sum(len(client.answers()) for client in pipelining) == before + 3
        bystander = rig.connect()
        bystander.send(GET)
        assert bystander.statuses() == [200]
    assert [len(client.answers()) for client in pipelining] == [6, 4, 4] + [1] * 7
    finish(rig)
    assert [client.statuses() for client in pipelining] == [[200] * 10] * 10


def test_what_comes_while_a_connection_rests_waits_behind_what_it_kept(rig):
    client = rig.connect()
    client.send(*[b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % (n + m) for m in range(10)) for n in (0, 10, 20)])
    assert len(client.answers()) == 3
    finish(rig)
    assert [request.path for request in rig.app.handled] == [b"/%d" % n for n in range(30)]
    assert client.statuses() == [200] * 30


@pytest.mark.parametrize("most", [1, 2])
def test_many_small_chunks_have_short_turns(rig_with, most):
    rig = slow_clock(rig_with(max_pipelined=most))
    client = rig.connect()
    client.send(TINY_CHUNKS + GET)
    assert client.answers() == []
    assert not client.transport.reading
    assert 0 < rig.app.held.total() < 10 * CHUNKS_PER_FEED
    assert finish(rig) >= 4
    assert [answer.body for answer in client.answers()] == [b"x" * 10 * CHUNKS_PER_FEED, b""]
    assert client.transport.reading


def test_a_body_whose_client_does_not_read_goes_on_when_it_does(rig_with):
    rig = slow_clock(rig_with())
    client = rig.connect()
    client.send(TINY_CHUNKS)
    client.transport.unread = 1
    client.connection.pause_writing()
    finish(rig)
    assert rig.app.handled == []
    client.transport.unread = 0
    client.connection.resume_writing()
    finish(rig)
    assert client.answers()[0].body == b"x" * 10 * CHUNKS_PER_FEED


def test_nothing_is_done_for_a_client_whose_socket_is_broken(rig):
    client = rig.connect()
    client.send(GET * 100)
    client.transport.closed = True  # a write failed; the loss is not reported yet
    finish(rig)
    assert len(rig.app.admitted) == 3


@pytest.mark.parametrize("end", ["leave", "abort", "connection_lost"])
def test_who_goes_while_it_rests_is_forgotten(rig, end):
    client, other = rig.connect(), rig.connect()
    client.send(GET * 100)
    other.send(GET * 2)
    {
        "leave": client.leave,
        "abort": client.connection.abort,
        "connection_lost": lambda: client.connection.connection_lost(None),
    }[end]()
    assert finish(rig) == 2
    assert len(client.answers()) == 3
    assert other.statuses() == [200, 200]


def test_a_drain_ends_a_connection_that_rests_with_its_next_answer_and_reads_on(rig):
    client = rig.connect()
    client.send(GET * 100)
    rig.connections.drain()
    assert not client.transport.closed
    finish(rig)
    assert len(client.answers()) == 4
    assert client.answers()[-1].headers[b"connection"] == b"close"
    assert client.transport.half_closed
    client.send(GET * 100)  # what the socket still had: to close without having read it would reset the answers
    assert not client.transport.closed
    assert len(client.answers()) == 4


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_drain_after_the_rest_closes_where_it_cannot_close_one_side(rig, encrypted):
    client = rig.connect()
    client.transport.encrypted = encrypted
    rig.app.patient = True
    client.send(GET * 4)
    finish(rig)
    rig.connections.drain()
    for request in rig.app.handled:
        rig.app.answer(request)
    assert client.statuses() == [200] * 4
    assert (client.transport.closed, client.transport.half_closed) == (encrypted, not encrypted)


def test_a_connection_that_rests_makes_no_way(rig_with):
    rig = slow(rig_with(max_connections=1))
    client = rig.connect()
    client.send(GET * 100)
    rig.now += 10.0
    newcomer = rig.connect()
    newcomer.send(GET)
    assert newcomer.statuses() == [503]
    assert not client.transport.closed


def test_one_that_is_blocked_after_its_rest_goes_on_with_an_answer(rig_with):
    rig = slow(rig_with(max_pipelined=4))
    rig.app.patient = True
    client = rig.connect()
    client.send(GET * 10)
    assert len(rig.app.admitted) == 3
    finish(rig)
    assert len(rig.app.admitted) == 4
    for n in range(10):
        rig.app.answer(rig.app.handled[n], b"%d" % n)
        finish(rig)
    assert [answer.body for answer in client.answers()] == [b"%d" % n for n in range(10)]
    assert client.transport.reading


@each("seed", range(histories(40)))
def test_the_outcome_does_not_depend_on_the_turns(rig_with, seed):
    random = Random(seed)
    wire = b"".join(
        random.choice(
            [
                GET,
                TINY_CHUNKS,
                CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
                GET.replace(b"Host: x", b"Host: x\r\nContent-Encoding: gzip\r\nContent-Length: 2") + b"ab",
            ]
        )
        for _ in range(12)
    )
    rigs = [rig_with(max_pipelined=limit) for limit in (random.choice([1, 3, 32]),) * 2]
    slow(rigs[1], TURN_SECONDS / random.choice([1, 3, 9]))
    if random.random() < 0.5:
        slow_clock(rigs[1])
    pieces = [wire[at : at + 4000] for at in range(0, len(wire), 4000)]
    clients = [rig.connect() for rig in rigs]
    for rig, client in zip(rigs, clients, strict=True):
        rig.app.patient = True
        for piece in pieces:
            client.send(piece)
            if random.random() < 0.5:
                rig.clock.ring()
        while rig.app.replies or rig.clock.timers:
            rig.clock.ring()
            if rig.app.replies and random.random() < 0.5:
                rig.app.replies.pop(random.choice(list(rig.app.replies)))(Response(200, b"text/plain", b""))
    first, second = ([(answer.status, answer.body) for answer in client.answers()] for client in clients)
    assert first == second
    assert len(first) == 12
    bodies = [[bytes(rig.app.body_of(request)) for request in rig.app.handled] for rig in rigs]
    assert bodies[0] == bodies[1]
    assert all(client.transport.reading for client in clients)
