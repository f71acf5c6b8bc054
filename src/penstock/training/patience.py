"""Ask a run's file again while it is locked or its disk is full: an hour's work is not lost for a moment's trouble."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.errors import RunUnavailable

T = TypeVar("T")

PATIENCE_SECONDS: Final = 60.0
"""For how long somebody is waited for who keeps the file locked, or who makes room on the disk."""
AGAIN_SECONDS: Final = 0.5


class Patience:
    """Tries again for `seconds`.  `tell` hears of the first trouble, `now` and `sleep` are the clock."""

    def __init__(
        self,
        seconds: float,
        tell: Callable[[str], None],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._tell = tell
        self._now = now
        self._sleep = sleep

    def ask(self, call: Callable[[], T]) -> T:
        """What `call` returns.

        Raises:
            RunUnavailable: the file could not be used all the time.
        """
        until = self._now() + self._seconds
        told = False
        while True:
            try:
                return call()
            except RunUnavailable as error:
                if self._now() >= until:
                    raise
                if not told:
                    self._tell(f"cannot use the file of the run, trying again for {self._seconds:g} s: {error}")
                    told = True
            self._sleep(AGAIN_SECONDS)
