"""The connections of one listener: what they have in common, and the sweep that tells them the time."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from penstock.config import ServerOptions
from penstock.core.clock import Clock, calling_later
from penstock.core.idleness import Guest, IdleOrder
from penstock.server.application import PROBES, Application
from penstock.server.http1.answers import AnswerHeads
from penstock.server.http1.heads import HeadReader
from penstock.server.http1.large_bodies import HEAD_ROOM_BYTES
from penstock.server.http1.time_limits import TimeLimits
from penstock.server.overdue import cut_overdue

EXCESS_CONNECTIONS: Final = 256
"""Most connections beyond `max_connections` at a time."""
TURN_SECONDS: Final = 0.002
"""How long one connection may go on with what it has read, before others have their turn.

It is enough for the requests that a client which waits for answers pipelines, and all others wait no longer than that.
"""


AGE_SPREAD: Final = 0.1
"""The share of `max_connection_age` by which connections end sooner or later: those that came together end apart."""


class Entry(IntEnum):
    """What becomes of a new connection."""

    SERVED = 0
    EXCESS = 1
    """There are too many: it may ask for probes."""
    ABORTED = 2
    """The server drains: it gets no answer."""


SERVED: Final[Entry] = Entry.SERVED
EXCESS: Final[Entry] = Entry.EXCESS
ABORTED: Final[Entry] = Entry.ABORTED


class OpenConnection(Guest, Protocol):
    """What all open connections can be asked, and told to do."""

    def sweep(self, now: float) -> None:
        """End what has taken too long at `now`."""

    def go_on(self) -> None:
        """Use what it kept when its last turn was over."""

    def overdue_bytes(self, now: float) -> int:
        """The bytes of its finished answers that were ready `write_timeout` ago, where too many are held."""

    def end_soon(self) -> None:
        """End with the next answer behind which nothing has come."""

    def drain(self) -> None:
        """Close if nothing is in hand; otherwise end with the last answer owed."""

    def make_way(self) -> None:
        """Close to make room: the connection is idle."""

    def abort(self) -> None:
        """End now, and cancel what is in hand."""


class Connections:
    """The application, the options and the open connections.

    `sweep` must be called about once a second, with the time of `clock`.  `wall_time` gives seconds since the epoch,
    for the Date field.  `persistent` says whether a connection is kept after an answer.  `draw` gives numbers from 0 to
    1, which spread the ends of connections by age.

    At most `max_connections` are served.  `max_excess` more may be open: those in `excess`, which came when there were
    too many, and those in `leaving`, which were closed to make room and are not lost yet.  Where that is exceeded one
    is aborted: the first that was told to leave, or else the one that has been silent longest.

    A connection whose turn is over waits for the next one.  In each turn of the event loop one of those that wait goes
    on, in the order in which they began to wait.  So however many there are, all others wait for only one.  Who comes
    with bytes meanwhile may begin one request, and then waits with them.
    """

    def __init__(
        self,
        app: Application,
        options: ServerOptions,
        clock: Clock,
        wall_time: Callable[[], float] = time.time,
        max_excess: int = EXCESS_CONNECTIONS,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.app = app
        self.options = options
        self.clock = clock
        self.limits = TimeLimits(options)
        self.persistent = options.keepalive_timeout > 0
        self.probes = PROBES if options.health_path is None else PROBES | {options.health_path.encode()}
        """The paths that are answered also to a connection in excess."""
        self.heads = HeadReader(options)
        self.head_room = memoryview(bytearray(HEAD_ROOM_BYTES))
        """For the heads of large bodies, of one connection at a time."""
        self.answers = AnswerHeads()
        self.answers.renew(wall_time())
        self.open: set[OpenConnection] = set()
        self.max_excess = max_excess
        self.excess: dict[OpenConnection, None] = {}
        """In the order in which they were last heard of."""
        self.leaving: dict[OpenConnection, None] = {}
        """In the order in which they were closed."""
        self.draining = False
        self._ending = False
        """Whether each connection ends with its next answer."""
        self._age = options.max_connection_age
        self._draw = draw
        self._resting: deque[OpenConnection] = deque()
        """Those that wait for their next turn, in their order."""
        self._giving = False
        """Whether one of them goes on now."""
        self._idle: IdleOrder[OpenConnection] = IdleOrder()
        self._wall_time = wall_time
        self._empty = asyncio.Event()

    def enter(self, connection: OpenConnection) -> Entry:
        """Count a connection that was made, and say what becomes of it."""
        entry = ABORTED if self.draining else SERVED if self._has_room() else EXCESS
        self.open.add(connection)
        if entry is EXCESS:
            self.excess[connection] = None
        self._cut()
        return entry

    def last_answer_from(self, now: float) -> float:
        """From when on a connection that is made at `now` ends with its next answer."""
        if self._ending:
            return -math.inf
        return now + self._age * (1.0 + AGE_SPREAD * (2.0 * self._draw() - 1.0))

    def heard(self, connection: OpenConnection) -> None:
        """Note that a connection came with bytes: of those in excess it has now been silent for the shortest time."""
        if connection in self.excess:
            del self.excess[connection]
            self.excess[connection] = None

    def promote(self, connection: OpenConnection) -> bool:
        """Serve a connection in excess from now on, if there is room by now; says whether there is."""
        if not self._has_room():
            return False
        del self.excess[connection]
        self._cut()
        return True

    def leave(self, connection: OpenConnection) -> None:
        """Forget a connection that was lost."""
        self.open.discard(connection)
        self.excess.pop(connection, None)
        self.leaving.pop(connection, None)
        if not self.open:
            self._empty.set()

    def turn_is_over(self, seconds: float) -> bool:
        """Whether the connection that has had `seconds` in this turn must rest before its next request."""
        return seconds >= TURN_SECONDS or (not self._giving and bool(self._resting))

    def rest(self, connection: OpenConnection) -> None:
        """Tell `connection` to go on once it is its turn again.  It does not rest yet."""
        self._resting.append(connection)
        if len(self._resting) == 1:
            self.clock.call_later(0.0, self._give_turn)

    def _give_turn(self) -> None:
        connection = self._resting.popleft()
        if self._resting:  # before the connection goes on: it may rest again, and then be the only one
            self.clock.call_later(0.0, self._give_turn)
        self._giving = True
        try:
            connection.go_on()
        finally:
            self._giving = False

    @property
    def free_places(self) -> int:
        """How many more can be served."""
        return self.options.max_connections - (len(self.open) - len(self.excess) - len(self.leaving))

    def _has_room(self) -> bool:
        """Whether one more can be served.  For that, one that has been idle for long enough is closed."""
        if self.free_places > 0:
            return True
        idle = self._idle.take(self.open, self.clock.now())
        if idle is None:
            return False
        self.leaving[idle] = None
        idle.make_way()
        return True

    def _cut(self) -> None:
        """Abort one connection if there are more than may be beyond those that are served."""
        if len(self.excess) + len(self.leaving) <= self.max_excess:
            return
        beyond = self.leaving or self.excess
        connection = next(iter(beyond))
        del beyond[connection]
        self.open.discard(connection)  # at once: its socket is closed before the loop reports the loss
        connection.abort()

    def sweep(self, now: float) -> None:
        """Renew the date, and end what has taken too long at `now`.

        The connections are asked first, so that each has reported what its client leaves unread.
        """
        self.answers.renew(self._wall_time())
        self._idle.forget(now)
        for connection in tuple(self.open):
            connection.sweep(now)
        if self.open and self.app.any_answers_overfull():
            cut_overdue(self.open, now)

    def end_soon(self) -> None:
        """Have each connection end with its next answer, those that are made from now on too."""
        self._ending = True
        for connection in tuple(self.open):
            connection.end_soon()

    def drain(self) -> None:
        """Close what is idle, and let every other connection end with the answers it is owed."""
        self.draining = True
        for connection in tuple(self.open):
            connection.drain()

    def abort(self) -> None:
        """End every connection now; what was in hand is cancelled."""
        for connection in tuple(self.open):
            connection.abort()

    async def until_empty(self, within: float) -> bool:
        """Wait until no connection is open, at most `within` seconds; returns whether none is open."""
        self._empty.clear()
        if not self.open:
            return True
        with calling_later(self.clock, within, self._empty.set):
            await self._empty.wait()
        return not self.open
