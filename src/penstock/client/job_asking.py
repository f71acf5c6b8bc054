"""Decide how the end of a job is asked for: how long the server is to wait, and how long to pause between two asks.

A server that drains answers at once.  Behind an answer that came sooner than was asked for there is a pause, each twice
as long as the one before, so that nobody asks all the time.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.client.retry_rules import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from penstock.errors import ConfigError

LONGEST_ASK_SECONDS: Final = 20.0
"""How long the server is asked to wait for the end of a job; proxies give up on requests of a minute."""


class Asking:
    """One wait for a job, of `timeout` seconds from `now`; 0 asks once, None waits for ever."""

    def __init__(self, timeout: float | None, now: float) -> None:
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            raise ConfigError(f"timeout must be at least 0 seconds, or None to wait without limit, got {timeout!r}")
        self.timeout = math.inf if timeout is None else float(timeout)
        self._until = now + self.timeout
        self._soon = 0
        """How many answers came too soon, one after another."""

    def wait_seconds(self, now: float) -> float:
        """How long the server is to wait in the ask that begins now."""
        return min(LONGEST_ASK_SECONDS, self._left(now))

    def deadline(self, now: float) -> float | None:
        """When the answer to the ask that begins now is too late; None leaves it to the limit of a call."""
        return self._until if 0 < self._left(now) < math.inf else None

    def pause_seconds(self, waited: float, took: float, now: float) -> float | None:
        """How long to pause, now that a job has not ended; None where the time is up.

        Args:
            waited: how long the server was asked to wait.
            took: after how long it has answered.
            now: the time.
        """
        left = self._left(now)
        if left <= 0:
            return None
        if took >= waited / 2:
            self._soon = 0
            return 0.0
        self._soon += 1
        return min(left, LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._soon - 1, 10))

    def _left(self, now: float) -> float:
        return max(0.0, self._until - now)
