"""Decide which idle guest makes way for a newcomer.  Told the time.

Contract
--------
* Only who has been idle for `IDLE_SECONDS` makes way: first those that never asked anything, then the longest idle.
* While there is such a guest, one is found.
* However many newcomers there are, all guests are looked at only once in `IDLE_SECONDS`.

The last two hold together, because whoever has been idle for so long was idle at the last look already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

IDLE_SECONDS: Final = 1.0
"""A guest that has been idle for less than this does not make way: its next request may be on its way."""


class Guest(Protocol):
    """Who may make way."""

    def idle_since(self) -> float:
        """When it fell idle; inf while it is not idle, and where it has nothing to give up."""
        ...

    def has_asked(self) -> bool:
        """Whether it ever asked anything."""
        ...


AnyGuest = TypeVar("AnyGuest", bound=Guest)


class IdleOrder(Generic[AnyGuest]):
    """The guests that were idle at the last look, in the order in which they make way."""

    def __init__(self) -> None:
        # The next of each line is at its end, where it is taken off cheaply.
        self._never_asked: list[tuple[float, AnyGuest]] = []
        self._asked: list[tuple[float, AnyGuest]] = []
        self._looked = -math.inf

    def take(self, guests: Iterable[AnyGuest], now: float) -> AnyGuest | None:
        """The one of all `guests` that makes way at `now`, or None.  It must be idle no longer afterwards."""
        if now - self._looked >= IDLE_SECONDS:
            self._look(guests, now)
        return self._next(self._never_asked, now) or self._next(self._asked, now)

    def forget(self, now: float) -> None:
        """Let go of guests that only the next look would judge rightly; called now and then, it keeps nobody alive."""
        if now - self._looked >= IDLE_SECONDS:
            self._never_asked = []
            self._asked = []

    def _look(self, guests: Iterable[AnyGuest], now: float) -> None:
        self._looked = now
        self._never_asked = []
        self._asked = []
        for guest in guests:
            since = guest.idle_since()
            if since != math.inf:
                line = self._asked if guest.has_asked() else self._never_asked
                line.append((since, guest))
        self._never_asked.sort(key=_since, reverse=True)
        self._asked.sort(key=_since, reverse=True)

    def _next(self, line: list[tuple[float, AnyGuest]], now: float) -> AnyGuest | None:
        while line and now - line[-1][0] >= IDLE_SECONDS:
            since, guest = line.pop()
            if guest.idle_since() == since:  # it did nothing after the look
                return guest
        return None


def _since(entry: tuple[float, Guest]) -> float:
    return entry[0]
