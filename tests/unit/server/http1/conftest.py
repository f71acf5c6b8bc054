"""Here belongs what one connection reads and writes as HTTP/1: a test feeds it bytes, and tells it the time.

There is no socket: a transport remembers, and an application answers when a test says so.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import Counter
from dataclasses import dataclass, field

import pytest

from penstock.config import ServerOptions
from penstock.core.arriving import ArrivingBody
from penstock.server.application import HttpRequest, Response
from penstock.server.http1.connection import Connection
from penstock.server.http1.connections import Connections


class MemoryTransport(asyncio.Transport):
    """`sent` is what the client would have received; `unread` is set by the test, or grows where `stuck`."""

    def __init__(self, peername=None) -> None:
        super().__init__({"peername": peername})
        self.protocol = None
        self.exchanges = 0
        """How often the protocol was exchanged."""
        self.sent = bytearray()
        self.unread = 0
        self.stuck = False
        self.encrypted = False
        self.reading = True
        self.closed = self.aborted = self.half_closed = False

    def write(self, data):
        assert not self.closed
        assert not self.half_closed
        self.sent += data
        if self.stuck:
            self.unread += len(data)

    def writelines(self, pieces):
        for piece in pieces:
            self.write(piece)

    def get_write_buffer_size(self):
        return self.unread

    def set_write_buffer_limits(self, high=None, low=None):
        self.limits = high, low

    def can_write_eof(self):
        return not self.encrypted  # TLS has no end of one side

    def write_eof(self):
        assert not self.encrypted
        self.half_closed = True

    def get_protocol(self):
        return self.protocol

    def set_protocol(self, protocol):
        assert protocol is not self.protocol
        self.protocol = protocol
        self.exchanges += 1

    def pause_reading(self):
        assert self.reading
        assert not self.closed
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        assert not self.closed
        self.reading = True

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True

    def is_closing(self):
        return self.closed


class Pages(bytearray):
    """The pages of a piece.  A weak reference tells when the last view of them is gone."""


class MemoryApp:
    """Echoes bodies at once, or keeps requests until `answer` where `patient`; gives pieces where it `has_pieces`."""

    def __init__(self) -> None:
        self.has_pieces = False
        self.asked: list[ArrivingBody] = []
        """The bodies for which a piece was wanted."""
        self.arriving: list[ArrivingBody] = []
        """Those in arrival that have got one."""
        self.pieces: list[weakref.ref[Pages]] = []
        self.handled_types: list[type] = []
        self.patient = False
        self.patience = math.inf
        """Seconds a body may take in all."""
        self.refusing: Response | None = None
        self.full: Response | None = None
        self.admitted: list[HttpRequest] = []
        self.handled: list[HttpRequest] = []
        self.bodies: dict[int, bytes] = {}
        """By the id of the request; with its answer a connection lets go of its body."""
        self.replies = {}
        self.cancelled: list[HttpRequest] = []
        self.answers: list[tuple[HttpRequest, int, int]] = []
        self.held: Counter[int | None] = Counter()
        self.answer_bytes = 0
        self.most_held = 0
        self.most_answers = math.inf
        """The bytes of answers that may be held."""

    def admit(self, request):
        assert request.body == b""
        self.admitted.append(request)
        request.id = b"id-%d" % len(self.admitted)
        return self.refusing

    def handle(self, request, reply):
        self.handled.append(request)
        self.handled_types.append(type(request.body))
        self.bodies[id(request)] = bytes(request.body)
        self.replies[id(request)] = reply
        if not self.patient:
            self.answer(request)

    def answer(self, request, body=None, status=200):
        self.replies[id(request)](Response(status, b"text/plain", self.body_of(request) if body is None else body))

    def body_of(self, request):
        return self.bodies[id(request)]

    def cancel(self, request):
        assert request in self.admitted
        self.cancelled.append(request)

    def refuse(self, status, detail, request=None):
        assert detail
        return Response(status, b"application/problem+json", b"{}")

    def hold(self, request, nbytes):
        self.held[None if request is None else id(request)] += nbytes
        self.most_held = max(self.most_held, self.held.total())

    def hold_answer(self, request, nbytes):
        self.answer_bytes += nbytes
        self.hold(request, nbytes)

    def answers_overfull(self, request):
        return self.answer_bytes > self.most_answers

    def any_answers_overfull(self):
        return self.answer_bytes > self.most_answers

    def overfull(self, request, own):
        assert own == self.held[id(request)]
        return self.full

    def piece_for(self, request, body):
        assert request in self.admitted
        assert body.came or body.chunked
        self.asked.append(body)
        if body.chunked or not self.has_pieces:
            return None
        self.arriving.append(body)
        return self.piece(body.announced)

    def piece(self, nbytes):
        pages = Pages(nbytes)
        self.pieces.append(weakref.ref(pages))
        return memoryview(pages)

    def arrived(self, request, body):
        assert request in self.admitted
        assert request not in self.handled
        self.arriving.remove(body)

    def lying(self):
        """How many pieces somebody holds."""
        return sum(piece() is not None for piece in self.pieces)

    def body_due(self, request):
        return request.arrived + self.patience

    def answered(self, request, status, nbytes):
        self.answers.append((request, status, nbytes))


@dataclass
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


@dataclass
class Client:
    """The other end of one connection."""

    connection: Connection
    transport: MemoryTransport
    methods: list[str] = field(default_factory=list)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.transport.closed:
                self.deliver(piece)

    def deliver(self, data: bytes) -> None:
        """Hand `data` over as an event loop does, to whichever protocol is set."""
        while data and not self.transport.closed:
            protocol = self.transport.protocol
            if not isinstance(protocol, asyncio.BufferedProtocol):
                protocol.data_received(data)
                return
            room = protocol.get_buffer(-1)
            nbytes = min(len(room), len(data))
            assert nbytes
            room[:nbytes] = data[:nbytes]
            del room
            protocol.buffer_updated(nbytes)
            data = data[nbytes:]

    def send_bytewise(self, data: bytes) -> None:
        self.send(*(data[i : i + 1] for i in range(len(data))))

    def leave(self) -> None:
        self.transport.protocol.eof_received()
        self.transport.protocol.connection_lost(None)

    def answers(self, heads_of: tuple[int, ...] = ()) -> list[Answer]:
        """What was received; the answers numbered in `heads_of` have no body, whatever length they announce."""
        data, found = bytes(self.transport.sent), []
        while data:
            head, _, data = data.partition(b"\r\n\r\n")
            line, *fields = head.split(b"\r\n")
            assert line.startswith(b"HTTP/1.1 ")
            status = int(line.split(b" ")[1])
            if status == 100:
                continue
            headers = dict(f.split(b": ", 1) for f in fields)
            assert len(headers) == len(fields)
            assert status == 204 or b"content-length" in headers
            length = 0 if len(found) in heads_of else int(headers.get(b"content-length", 0))
            found.append(Answer(status, headers, data[:length]))
            assert len(found[-1].body) == length
            data = data[length:]
        return found

    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers()]


class RigTimer:
    """A timer of a rig's clock: the test calls `callback` when it is due."""

    def __init__(self, due, callback) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class RigClock:
    """Tells a rig's time, and remembers its timers."""

    def __init__(self, rig) -> None:
        self.now = lambda: rig.now
        self.timers: list[RigTimer] = []

    def call_later(self, delay, callback):
        self.timers.append(RigTimer(self.now() + delay, callback))
        return self.timers[-1]

    def ring(self):
        """Make the calls that are due, and not those that they ask for."""
        due = [timer for timer in self.timers if timer.due <= self.now() and not timer.cancelled]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.callback()
        return len(due)


class Rig:
    """One listener's worth of connections at a time that the test sets."""

    def __init__(self, **options) -> None:
        self.now = 1000.0
        self.wall_time = 1e9
        self.drawn = 0.5
        """What the next connection draws, of 0 to 1."""
        self.app = MemoryApp()
        self.clock = RigClock(self)
        self.connections = Connections(
            self.app,
            ServerOptions(**options),
            self.clock,
            wall_time=lambda: self.wall_time,
            draw=lambda: self.drawn,
        )
        self.clients: list[Client] = []

    def connect(self, handshake: float = 0.0, peername=None) -> Client:
        """A new connection, whose socket is ready `handshake` seconds after it was accepted."""
        client = Client(Connection(self.connections), MemoryTransport(peername))
        client.transport.protocol = client.connection
        self.now += handshake
        client.connection.connection_made(client.transport)
        self.clients.append(client)
        return client

    def sweep(self, now: float) -> None:
        self.now = now
        self.connections.sweep(now)

    def check_promises(self) -> None:
        """After everybody left: each admitted request was answered once, and nothing is held."""
        for client in self.clients:
            if client.connection in self.connections.open:
                client.connection.connection_lost(None)
        assert not self.connections.open
        ended = Counter(id(request) for request, _, _ in self.app.answers)
        assert ended == Counter(id(request) for request in self.app.admitted)
        assert not {owner: held for owner, held in self.app.held.items() if held}
        assert self.app.answer_bytes == 0
        assert self.app.arriving == []
        assert self.app.lying() == 0


@pytest.fixture
def rig_with():
    """Makes a rig of these options; its promises are checked when the test is over."""
    rigs = []

    def make(**options):
        rigs.append(Rig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.check_promises()


@pytest.fixture
def rig(rig_with):
    return rig_with()
