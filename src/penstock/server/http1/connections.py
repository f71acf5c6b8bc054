"""What the connections of one listener have in common, and the sweep that is their only clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from penstock.config import ServerOptions
from penstock.server.application import Application
from penstock.server.http1.answers import AnswerHeads
from penstock.server.http1.heads import HeadReader

CROWD: Final = 256
"""Connections beyond `max_connections` that are answered 503; past these they are cut without a word."""


class OpenConnection(Protocol):
    """What a connection does when all of them are told to."""

    def sweep(self, now: float) -> None:
        """End what has taken too long at `now`."""

    def drain(self) -> None:
        """Close if nothing is in hand; otherwise end with the last answer owed."""

    def abort(self) -> None:
        """End now, and cancel what is in hand."""


class Connections:
    """The application, the options and the open connections, `turned_away` of which only wait for their 503 to be read.

    `clock` gives monotonic seconds; `sweep` must be called about once a second, with its time.  `crowd` is the most
    that are turned away with an answer at a time.
    """

    def __init__(
        self,
        app: Application,
        options: ServerOptions,
        clock: Callable[[], float] = time.monotonic,
        crowd: int = CROWD,
    ) -> None:
        self.app = app
        self.options = options
        self.clock = clock
        self.heads = HeadReader(options)
        self.answers = AnswerHeads()
        self.answers.renew(time.time())
        self.open: set[OpenConnection] = set()
        self.crowd = crowd
        self.turned_away = 0
        self.draining = False
        self._empty = asyncio.Event()

    def leave(self, connection: OpenConnection) -> None:
        """Forget a connection that was lost."""
        self.open.discard(connection)
        if not self.open:
            self._empty.set()

    def sweep(self, now: float) -> None:
        """Renew the date, and end what has taken too long at `now`."""
        self.answers.renew(time.time())
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
        """Wait until no connection is open, at most `within` seconds; whether that came to be."""
        self._empty.clear()
        if not self.open:
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), within)
        except TimeoutError:
            return False
        return True
