"""Decide how many requests may be in flight: more while they succeed, half as many once the server refuses for room.

Contract
--------
* There may be `limit` requests in flight, at least 1 and at most `most`; the first limit is `FIRST_LIMIT`.
* After as many successes as the limit is, it grows by one.
* A refusal halves it.  Those that were in flight then were sent before anybody knew, so no end of theirs changes it
  again: it is halved at most once in a round trip.
* Where it cannot be halved, since it is 1, and the last end that counted was a refusal too, there is a pause: nothing
  is sent.  A refusal takes hardly any time, so a client that goes on with one request after the other is refused as
  often as it has callers, before anybody leaves room.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

FIRST_LIMIT: Final = 8


class End(Enum):
    """How a try ended, for the limit."""

    SUCCESS = "success"
    REFUSAL = "refusal"
    """The server had no room."""
    NEITHER = "neither"


class FlowLimit:
    """The limit of one client."""

    def __init__(self, most: int) -> None:
        self.limit = min(FIRST_LIMIT, most)
        self.in_flight = 0
        self._most = most
        self._successes = 0
        """Since the limit changed."""
        self._round = 0
        """How often it was halved."""
        self._refused = False
        """Whether the last end that counted was a refusal."""
        self._paused = False

    @property
    def has_room(self) -> bool:
        """Whether one more request may be sent."""
        return self.in_flight < self.limit and not self._paused

    def begin(self) -> int:
        """Count a request that is sent; gives its round, which `end` wants to know."""
        self.in_flight += 1
        return self._round

    def end(self, begun_in: int, how: End) -> bool:
        """Count the end of a try that began in the round `begun_in`; whether a pause begins, which `go_on` ends."""
        self.in_flight -= 1
        if how is End.NEITHER or begun_in != self._round:
            return False
        if how is End.REFUSAL:
            self._paused = self._refused and self.limit == 1
            self._refused = True
            self.limit = max(1, self.limit // 2)
            self._round += 1
            self._successes = 0
            return self._paused
        self._refused = False
        self._successes += 1
        if self._successes >= self.limit:
            self._successes = 0
            self.limit = min(self.limit + 1, self._most)
        return False

    def go_on(self) -> None:
        """End the pause."""
        self._paused = False
