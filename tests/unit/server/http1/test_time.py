"""The sweep: what it ends and when, told the time."""

import pytest

from penstock.config import ServerOptions
from penstock.server.http1.refusals import LINGER_BYTES, LINGER_SECONDS
from penstock.server.http1.states import LINGERING, READING_HEAD, SKIPPING, ConnectionState
from penstock.server.http1.time_limits import TimeLimits

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SIZED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
BIG = bytes(100_000)


def test_a_head_that_takes_too_long_is_answered_408(rig):
    client = rig.connect()
    rig.now = 2000.0
    client.send(GET[:5])
    rig.now = 2005.0
    client.send(GET[5:-1])  # a sign of life buys no time
    rig.sweep(2009.9)
    assert client.answers() == []
    rig.sweep(2010.0)
    assert client.statuses() == [408]
    assert client.transport.half_closed


@pytest.mark.parametrize("start", [SIZED + b"01234", SIZED, CHUNKED + b"5\r\n012", CHUNKED])
def test_a_stalled_body_is_answered_408(rig, start):
    client = rig.connect()
    client.send(start)
    rig.sweep(rig.now + 29.9)
    assert client.answers() == []
    rig.sweep(rig.now + 0.1)
    assert client.statuses() == [408]
    assert client.transport.half_closed
    assert rig.app.handled == rig.app.cancelled == []
    assert rig.app.held.total() == 0


def test_a_body_that_moves_is_not_stalled(rig):
    client = rig.connect()
    client.send(SIZED)
    for n in range(10):
        rig.sweep(rig.now + 29.0)
        client.send(b"%d" % n)
    assert client.answers()[0].body == b"0123456789"


@pytest.mark.parametrize(
    ("start", "piece"), [(SIZED.replace(b"10", b"1000"), b"x"), (CHUNKED, b"1\r\nx\r\n")], ids=["sized", "chunked"]
)
def test_a_trickle_ends_when_its_request_has_no_time_left(rig, start, piece):
    client = rig.connect()
    rig.app.patience = 60.0
    client.send(start)
    for seconds in (29.0, 29.0, 1.9):
        client.send(piece)
        rig.sweep(rig.now + seconds)
    assert client.answers() == []
    rig.sweep(rig.now + 0.1)
    assert client.statuses() == [408]
    assert client.transport.half_closed
    assert rig.app.handled == rig.app.cancelled == []
    assert rig.app.held.total() == 0


def test_waiting_for_our_continue_is_not_stalling(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + SIZED.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    rig.sweep(rig.now + 1000.0)
    rig.app.answer(rig.app.handled[0])
    rig.sweep(rig.now + 29.0)
    client.send(b"0123456789")
    rig.app.answer(rig.app.handled[1])
    assert client.statuses() == [200, 200]


def test_an_idle_connection_is_closed_without_a_word_counted_from_its_last_answer(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.sweep(rig.now + 1000.0)
    assert not client.transport.closed
    rig.app.answer(rig.app.handled[0])
    rig.sweep(rig.now + 74.9)
    assert not client.transport.closed
    rig.sweep(rig.now + 0.1)
    assert (client.transport.closed, client.transport.aborted) == (True, False)
    assert client.statuses() == [200]


def test_a_connection_that_never_asks_gets_the_time_of_a_head(rig):
    client = rig.connect()
    rig.sweep(rig.now + 9.9)
    assert not client.transport.closed
    rig.sweep(rig.now + 0.1)
    assert client.transport.closed
    assert client.transport.sent == b""


def test_a_refused_body_that_trickles_ends_the_connection(rig):
    client = rig.connect()
    client.send(SIZED.replace(b"10\r", b"1000\r\nContent-Encoding: gzip\r"))
    for _ in range(4):
        assert not client.transport.closed
        client.send(b"0")
        rig.sweep(rig.now + 29.0)
    client.send(b"0")
    rig.sweep(rig.now + 4.0)
    assert client.transport.closed


def test_a_client_that_reads_nothing_is_aborted(rig):
    client = rig.connect()
    client.send(GET)
    client.transport.unread = 50
    rig.sweep(rig.now)
    assert rig.app.held.total() == 50
    rig.sweep(rig.now + 29.9)
    assert not client.transport.closed
    rig.sweep(rig.now + 0.2)
    assert client.transport.aborted
    client.connection.connection_lost(None)
    assert rig.app.held.total() == 0


def test_a_client_that_reads_slowly_is_kept(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.app.answer(rig.app.handled[0], bytes(1024 * 1024))
    for unread in range(1024 * 1024, 0, -64 * 1024):
        client.transport.unread = unread
        rig.sweep(rig.now + 29.0)
        assert rig.app.held.total() == unread
    client.transport.unread = 0
    rig.sweep(rig.now + 29.0)
    assert not client.transport.closed
    assert rig.app.held.total() == 0


def test_a_trickle_is_not_reading(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.app.answer(rig.app.handled[0], BIG)
    for taken in range(31):
        client.transport.unread = len(BIG) - taken
        rig.sweep(rig.now + 1.0)
    assert client.transport.aborted


def test_a_closed_connection_whose_answer_stays_unread_is_aborted(rig):
    client = rig.connect()
    client.send(GET.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    assert client.transport.closed
    client.transport.unread = 100
    rig.sweep(rig.now)
    rig.sweep(rig.now + 30.1)
    assert client.transport.aborted


def test_a_slow_reader_is_not_read(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.app.answer(rig.app.handled[0], BIG)
    client.transport.unread = len(BIG)
    client.connection.pause_writing()
    assert not client.transport.reading
    assert rig.app.held.total() == len(BIG)
    client.send(GET)  # what was already on its way
    assert len(rig.app.admitted) == 1
    client.transport.unread = 0
    client.connection.resume_writing()
    assert client.transport.reading
    assert rig.app.held.total() == 0
    assert len(rig.app.admitted) == 2


def test_a_slow_reader_is_not_blamed_for_the_body_we_do_not_read(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + SIZED + b"0")
    rig.app.answer(rig.app.handled[0], BIG)
    client.connection.pause_writing()
    rig.sweep(rig.now + 100.0)
    client.connection.resume_writing()
    rig.sweep(rig.now + 29.0)
    client.send(b"123456789")
    rig.app.answer(rig.app.handled[1])
    assert client.statuses() == [200, 200]


def test_a_body_behind_an_answer_that_is_read_slowly_has_no_longer_than_its_request(rig):
    client = rig.connect()
    rig.app.patient = True
    rig.app.patience = 60.0
    client.send(GET + SIZED.replace(b"10\r", b"1000\r") + bytes(900))
    rig.app.answer(rig.app.handled[0], 3 * BIG)
    client.transport.unread = 3 * len(BIG)
    client.connection.pause_writing()
    for _ in range(59):
        client.transport.unread -= 2500  # enough to be only slow
        rig.sweep(rig.now + 1.0)
    assert rig.app.held.total() - rig.app.answer_bytes == 900
    rig.sweep(rig.now + 1.0)
    assert client.statuses() == [200, 408]
    assert rig.app.held.total() == rig.app.answer_bytes
    assert client.transport.half_closed
    assert client.transport.reading  # to learn that the client leaves


def test_such_a_body_is_refused_after_the_answers_before_it(rig):
    client = rig.connect()
    rig.app.patient = True
    rig.app.patience = 60.0
    client.send(GET + GET + SIZED + bytes(9))
    rig.app.answer(rig.app.handled[0], BIG)
    client.connection.pause_writing()
    rig.sweep(rig.now + 60.0)
    assert client.transport.reading
    assert client.statuses() == [200]
    client.send(b"0" + GET)
    rig.app.answer(rig.app.handled[1])
    assert client.statuses() == [200, 200, 408]
    assert client.transport.half_closed
    assert len(rig.app.admitted) == 3


def test_a_slow_reader_is_not_blamed_for_the_head_we_do_not_read(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + GET[:5])
    rig.app.answer(rig.app.handled[0], BIG)
    client.connection.pause_writing()
    rig.sweep(rig.now + 100.0)
    client.connection.resume_writing()
    rig.sweep(rig.now + 9.0)
    client.send(GET[5:])
    rig.app.answer(rig.app.handled[1])
    assert client.statuses() == [200, 200]


def test_a_connection_that_ends_is_read_so_that_its_end_is_seen(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET + GET.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    rig.app.answer(rig.app.handled[0], BIG)
    client.connection.pause_writing()
    assert client.transport.reading


def test_what_is_charged_to_one_answer_is_given_back_to_it(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET * 2)
    one, two = rig.app.handled
    rig.app.answer(one, b"small")
    client.transport.unread = 100
    rig.sweep(rig.now)
    rig.app.answer(two, BIG)
    client.transport.unread = len(BIG)
    rig.sweep(rig.now)
    assert (rig.app.held[id(one)], rig.app.held[id(two)]) == (100, len(BIG) - 100)
    client.transport.unread = len(BIG) - 150  # what was written first is read first
    rig.sweep(rig.now)
    assert (rig.app.held[id(one)], rig.app.held[id(two)]) == (0, len(BIG) - 150)
    # the fixture checks that each owner's sum is 0 in the end


def test_answers_to_one_who_does_not_read_are_charged_as_they_are_written(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET * 3)
    client.transport.stuck = True
    one, two, three = rig.app.handled
    rig.app.answer(one, bytes(65 * 1024))
    client.connection.pause_writing()  # as a transport does past its high mark
    rig.app.answer(two, bytes(31 * 1024))
    rig.app.answer(three, BIG)
    held = [rig.app.held[id(request)] for request in (one, two, three)]
    assert sum(held) == len(client.transport.sent)
    assert [size > body for size, body in zip(held, (65 * 1024, 31 * 1024, len(BIG)), strict=True)] == [True] * 3


def test_a_request_that_was_answered_keeps_neither_body_nor_answer(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(SIZED + b"0123456789" + GET)
    one, two = rig.app.handled
    rig.app.answer(two, b"second")
    assert two.body == b""
    rig.app.answer(one)
    client.transport.unread = 100
    rig.sweep(rig.now)
    assert rig.app.held[id(two)] == 100
    assert (one.body, one.response, two.response) == (b"", None, None)


def test_a_draining_connection_with_a_started_head_keeps_its_time_limit(rig):
    client = rig.connect()
    client.send(GET[:5])
    rig.connections.drain()
    assert not client.transport.closed
    rig.sweep(rig.now + 10.0)
    assert client.statuses() == [408]


@pytest.mark.parametrize("refused", [b"", b"Content-Encoding: gzip\r\n"], ids=["taken", "skipped"])
def test_the_time_of_a_body_starts_with_its_head_however_long_the_client_was_idle(rig, refused):
    client = rig.connect()
    client.send(GET)
    rig.now += 60.0
    client.send(SIZED.replace(b"Host", refused + b"Host"))
    rig.sweep(rig.now + 29.9)
    assert client.statuses() == [200] + [415] * bool(refused)
    client.send(b"0123456789" + GET)
    assert len(client.answers()) == 3


@pytest.mark.parametrize("more", [(), (b"more",)])
def test_a_client_whose_head_was_late_does_not_linger_for_ever(rig, more):
    client = rig.connect()
    client.send(GET[:5])
    rig.sweep(rig.now + 10.0)
    assert client.transport.half_closed
    client.send(*more)
    rig.sweep(rig.now + LINGER_SECONDS)
    assert client.transport.aborted


@pytest.mark.parametrize(("cap", "unread"), [(1, GET), (32, GET[:5])])
def test_a_draining_connection_does_not_linger_for_ever_over_what_is_unread(rig_with, cap, unread):
    rig = rig_with(max_pipelined=cap)
    rig.app.patient = True
    client = rig.connect()
    client.send(GET + unread)
    rig.connections.drain()
    rig.app.answer(rig.app.handled[0])
    assert client.transport.half_closed
    rig.sweep(rig.now + LINGER_SECONDS)
    assert client.transport.aborted


@pytest.mark.parametrize("state", sorted(set(ConnectionState) - {READING_HEAD, SKIPPING, LINGERING}))
def test_idleness_ends_no_connection_that_is_owed_something_or_closed(state):
    assert not TimeLimits(ServerOptions()).end_idle(state, True, 1e9, 1e9)


def test_what_comes_behind_a_late_head_is_not_kept_while_its_answer_waits(rig_with):
    rig = rig_with(max_pipelined=2)
    rig.app.patient = True
    client = rig.connect()
    client.send(GET + GET[:5])
    rig.sweep(rig.now + 10.0)
    piece = bytes(1024 * 1024)
    for _ in range(LINGER_BYTES // len(piece)):
        client.send(piece)
    assert not client.transport.closed
    client.send(b"0")
    assert client.transport.aborted


# -- while more answers are held than may be --------------------------------------------------------------------------


def with_unread(rig, nbytes):
    """A client that leaves so many bytes of its answer unread from now on."""
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.app.answer(rig.app.handled[-1], bytes(nbytes))
    client.transport.unread = nbytes
    client.connection.pause_writing()
    return client


def test_a_slow_reader_has_unread_timeout_in_all_while_too_many_answers_are_held(rig):
    rig.app.most_answers = 1024 * 1024
    client = with_unread(rig, 100 * 1024 * 1024)
    for _ in range(29):
        client.transport.unread -= 1024 * 1024
        rig.sweep(rig.now + 1.0)
        assert not client.transport.closed
    client.transport.unread -= 1024 * 1024
    rig.sweep(rig.now + 1.0)
    assert client.transport.aborted
    assert rig.app.held.total() == 0, "given back at once"


def test_a_slow_reader_keeps_its_time_while_no_more_is_held_than_may_be(rig):
    rig.app.most_answers = 1024 * 1024
    client = with_unread(rig, 1024 * 1024)
    for _ in range(15):
        client.transport.unread -= 64 * 1024
        rig.sweep(rig.now + 29.0)
        assert not client.transport.closed


def test_the_largest_is_cut_first_and_nobody_once_that_is_enough(rig):
    rig.app.most_answers = 100
    clients = [with_unread(rig, nbytes) for nbytes in (40, 90, 60)]
    rig.sweep(rig.now + 30.0 - 0.1)
    assert not any(client.transport.closed for client in clients)
    for client in clients:
        client.transport.unread -= 1
        client.connection._unread._taken_since = rig.now  # as if it had made progress
    rig.sweep(rig.now + 0.1)
    assert [client.transport.aborted for client in clients] == [False, True, False]
    assert rig.app.answer_bytes == 39 + 59


def test_an_answer_that_came_late_has_its_time_still(rig):
    rig.app.most_answers = 100
    rig.app.patient = True
    client = rig.connect()
    client.send(GET)
    rig.sweep(rig.now + 100.0)
    rig.app.answer(rig.app.handled[0])
    client.transport.unread = 101
    client.connection.pause_writing()
    rig.sweep(rig.now + 29.9)
    assert not client.transport.closed
    rig.sweep(rig.now + 0.1)
    assert client.transport.aborted


def test_an_answer_that_waits_for_its_turn_is_overdue_as_well(rig):
    rig.app.most_answers = 100
    rig.app.patient = True
    client = rig.connect()
    client.send(GET * 2)
    rig.app.answer(rig.app.handled[1], bytes(101))
    rig.sweep(rig.now + 29.9)
    assert not client.transport.closed
    rig.sweep(rig.now + 0.1)
    assert client.transport.aborted
    assert rig.app.answer_bytes == 0


def test_the_time_of_an_answer_that_waited_for_its_turn_began_when_it_was_ready(rig):
    rig.app.most_answers = 200_000
    rig.app.patient = True
    client = rig.connect()
    client.send(GET * 2)
    rig.app.answer(rig.app.handled[1], BIG)
    rig.now += 20.0
    rig.app.answer(rig.app.handled[0], BIG)
    client.transport.unread = 200_001
    client.connection.pause_writing()
    rig.sweep(rig.now + 9.9)
    assert not client.transport.closed
    client.transport.unread -= 100_000  # the first was taken; the second is ready for 29.9 s
    rig.app.most_answers = 100_000
    rig.sweep(rig.now + 0.05)
    assert not client.transport.closed
    rig.sweep(rig.now + 0.05)
    assert client.transport.aborted


def test_a_connection_that_closes_but_is_not_read_is_cut_too(rig):
    rig.app.most_answers = 100
    client = rig.connect()
    client.send(GET.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    client.transport.unread = 200_000
    rig.sweep(rig.now)
    client.transport.unread = 100_000  # progress
    rig.sweep(rig.now + 30.0)
    assert client.transport.aborted
