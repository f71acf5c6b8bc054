"""The connections of one listener: what they have in common, and the sweep that tells them the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from penstock.config import ServerOptions
from penstock.core.clock import Clock, calling_later
from penstock.server.application import Application
from penstock.server.http1.answers import AnswerHeads
from penstock.server.http1.heads import HeadReader
from penstock.server.http1.time_limits import TimeLimits

EXCESS_CONNECTIONS: Final = 256
"""Connections beyond `max_connections` that are answered 503 at a time; any more are aborted without an answer."""


class Entry(IntEnum):
    """What becomes of a new connection."""

    SERVED = 0
    REFUSED = 1
    """There are too many: it is answered 503."""
    ABORTED = 2
    """There are far too many, or the server drains: it gets no answer."""


SERVED: Final[Entry] = Entry.SERVED
REFUSED: Final[Entry] = Entry.REFUSED
ABORTED: Final[Entry] = Entry.ABORTED


class OpenConnection(Protocol):
    """What all open connections can be told to do."""

    def sweep(self, now: float) -> None:
        """End what has taken too long at `now`."""

    def drain(self) -> None:
        """Close if nothing is in hand; otherwise end with the last answer owed."""

    def abort(self) -> None:
        """End now, and cancel what is in hand."""


class Connections:
    """The application, the options and the open connections.

    `sweep` must be called about once a second, with the time of `clock`.  `wall_time` gives seconds since the epoch,
    for the Date field.  `excess` counts the open connections that came when there were too many: they only wait for
    their 503 to be read, and there are at most `max_excess` of them.  `persistent` says whether a connection is kept
    after an answer.
    """

    def __init__(
        self,
        app: Application,
        options: ServerOptions,
        clock: Clock,
        wall_time: Callable[[], float] = time.time,
        max_excess: int = EXCESS_CONNECTIONS,
    ) -> None:
        self.app = app
        self.options = options
        self.clock = clock
        self.limits = TimeLimits(options)
        self.persistent = options.keep_alive > 0
        self.heads = HeadReader(options)
        self.answers = AnswerHeads()
        self.answers.renew(wall_time())
        self.open: set[OpenConnection] = set()
        self.max_excess = max_excess
        self.excess = 0
        self.draining = False
        self._wall_time = wall_time
        self._empty = asyncio.Event()

    def enter(self, connection: OpenConnection) -> Entry:
        """Count a connection that was made, and say what becomes of it."""
        full = len(self.open) - self.excess >= self.options.max_connections
        self.open.add(connection)
        if self.draining or (full and self.excess >= self.max_excess):
            return ABORTED
        if full:
            self.excess += 1
            return REFUSED
        return SERVED

    def leave(self, connection: OpenConnection, refused: bool) -> None:
        """Forget a connection that was lost; `refused` says what `enter` said of it."""
        if connection in self.open and refused:
            self.excess -= 1
        self.open.discard(connection)
        if not self.open:
            self._empty.set()

    def sweep(self, now: float) -> None:
        """Renew the date, and end what has taken too long at `now`."""
        self.answers.renew(self._wall_time())
        for connection in tuple(self.open):
            connection.sweep(now)

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
