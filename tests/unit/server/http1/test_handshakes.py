"""Connections over TLS are accepted as long as that can be done.  The clock stands still; the sockets are real."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct

import pytest

from penstock.config import ServerOptions
from penstock.server.http1 import handshakes
from penstock.server.http1.connections import Connections
from penstock.server.http1.handshakes import PAUSE_SECONDS, QUIET_SECONDS, TICK_SECONDS, Handshakes
from penstock.testing.virtual_clock import VirtualClock, rest

PART_OF_A_HELLO = b"\x16\x03\x01"
SECONDS = 60.0
"""How long a client may take over its handshake."""


class Door(socket.socket):
    """A socket that listens, and whose `accept` first meets these errors."""

    def __init__(self, *errors) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.errors = list(errors)
        self.accepted = 0
        self.setblocking(False)
        self.bind(("127.0.0.1", 0))
        self.listen()

    def accept(self):
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        found = super().accept()
        self.accepted += 1
        return found


class NoApplication:
    """No request comes so far as to meet it."""


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def accept_at(clock):
    """Accepts what comes to a `Door`, for so many places and two beyond.

    A handshake lasts until the test is over, because its client says nothing.
    """
    made = []

    def start(door, places=1):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        connections = Connections(NoApplication(), ServerOptions(max_connections=places), clock, max_excess=2)
        made.append(Handshakes(connections, clock, lambda: context, seconds=SECONDS, goodbye_seconds=1.0))
        made[-1].listen(door)
        return made[-1]

    yield start
    for each in made:
        each.close()
        await each.abort(10.0)
        assert len(each) == 0
    await rest()  # their sockets are closed now


@pytest.fixture
def knock():
    """Connects to a `Door`, and says nothing."""
    opened = []

    def connect(door):
        opened.append(socket.create_connection(door.getsockname()))
        opened[-1].setblocking(False)
        return opened[-1]

    yield connect
    for sock in opened:
        sock.close()


def ended(sock):
    """Whether the server has hung up."""
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await rest()
    raise AssertionError("waited in vain")


@pytest.mark.parametrize("said", [b"", PART_OF_A_HELLO], ids=["silent", "begun"])
async def test_of_those_that_say_equally_much_the_oldest_makes_way(accept_at, knock, said):
    door = Door()
    found = accept_at(door)
    clients = []
    for n in range(5):
        clients.append(knock(door))
        clients[-1].send(said)
        await until(lambda n=n: door.accepted == n + 1)
        await until(lambda: not said or not found._silent)
    await until(lambda: all(map(ended, clients[:3])))
    assert not any(map(ended, clients[3:]))
    assert len(found) == 2


async def test_who_says_nothing_makes_way_for_who_said_something_and_the_other_way_round(accept_at, knock):
    door = Door()
    found = accept_at(door, places=4)
    talking, silent = [], []
    for n in range(6):
        talking.append(knock(door))
        talking[-1].send(PART_OF_A_HELLO)
        await until(lambda n=n: door.accepted == n + 1 and not found._silent)
    await until(lambda: all(map(ended, talking[:2])))
    for n in range(6):
        silent.append(knock(door))
        await until(lambda n=n: door.accepted == n + 7)
    await until(lambda: all(map(ended, silent[:4] + talking[:4])))
    assert not any(map(ended, talking[4:] + silent[4:]))


@pytest.mark.parametrize("reset", [False, True])
async def test_nobody_makes_way_for_those_that_left_without_a_word(accept_at, knock, reset):
    door = Door()
    found = accept_at(door, places=4)
    talking, *leaving = [knock(door) for _ in range(4)]
    talking.send(PART_OF_A_HELLO)
    await until(lambda: len(found._silent) == 3)
    for sock in leaving:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
        sock.close()
    knock(door)
    await until(lambda: door.accepted == 5)
    await until(lambda: len(found) == 2)
    assert not ended(talking)


async def test_who_says_nothing_in_its_time_is_cut(accept_at, knock, clock):
    door = Door()
    found = accept_at(door)
    early = knock(door)
    await until(lambda: door.accepted == 1)
    await clock.advance(1.0)
    late = knock(door)
    await until(lambda: door.accepted == 2)
    await clock.advance(SECONDS - 1.5)
    found.sweep(clock.now())
    assert len(found) == 2
    await clock.advance(0.5)
    found.sweep(clock.now())
    assert len(found) == 1
    await until(lambda: ended(early))
    assert not ended(late)
    await clock.advance(1.0)
    found.sweep(clock.now())
    assert len(found) == 0


async def test_what_is_left_of_its_time_is_for_the_handshake(accept_at, knock, clock, monkeypatch):
    door = Door()
    found = accept_at(door)
    given = []

    async def shake_hands(sock, seconds):
        found._lasting.pop(sock)
        sock.close()
        given.append(seconds)

    monkeypatch.setattr(found, "_shake_hands", shake_hands)
    clients = [knock(door) for _ in range(2)]
    await until(lambda: door.accepted == 2)
    for n, seconds in enumerate((SECONDS - 1.0, 2.0)):
        await clock.advance(seconds)
        clients[n].send(PART_OF_A_HELLO)
        await until(lambda n=n: len(given) == n + 1)
    assert given == [pytest.approx(1.0), TICK_SECONDS]


async def test_handshakes_may_take_the_free_places_of_those_that_are_served(accept_at, knock):
    door = Door()
    found = accept_at(door, places=4)
    clients = [knock(door) for _ in range(5)]
    await until(lambda: door.accepted == 5)
    await until(lambda: ended(clients[0]))
    assert not any(map(ended, clients[1:]))
    found._connections.open.update({"one", "another", "a third"})
    knock(door)
    await until(lambda: door.accepted == 6)
    assert len(found) == 2


async def test_a_client_that_left_before_it_was_accepted_keeps_nobody_out(accept_at, knock, clock):
    door = Door(errno.ECONNABORTED, errno.ECONNABORTED)
    accept_at(door)
    knock(door)
    await until(lambda: door.accepted == 1)
    assert clock.waiting == []


async def test_without_files_nothing_is_accepted_for_a_while_and_the_log_is_told_once(accept_at, knock, clock, caplog):
    door = Door(*[errno.EMFILE] * 3)
    accept_at(door)
    knock(door)
    for left in (2, 1, 0):
        await until(lambda left=left: len(door.errors) == left)
        assert (door.accepted, clock.waiting) == (0, [PAUSE_SECONDS])
        await clock.advance(PAUSE_SECONDS)
    await until(lambda: door.accepted == 1)
    assert caplog.messages == ["accept() failed: [Errno 24] Too many open files"]
    await clock.advance(QUIET_SECONDS)
    door.errors = [errno.ENFILE]
    knock(door)
    await until(lambda: clock.waiting != [])
    assert len(caplog.messages) == 2


async def test_a_door_that_is_closed_in_its_pause_stays_closed(accept_at, knock, clock):
    door = Door(errno.EMFILE)
    found = accept_at(door)
    knock(door)
    await until(lambda: clock.waiting != [])
    found.close()
    assert (clock.waiting, door.fileno()) == ([], -1)


async def test_a_crowd_is_accepted_in_parts(accept_at, knock, monkeypatch):
    monkeypatch.setattr(handshakes, "ACCEPTED_PER_TURN", 2)
    door = Door()
    accept_at(door, places=9)
    clients = [knock(door) for _ in range(5)]
    await until(lambda: door.accepted == 5)
    assert not any(map(ended, clients))
