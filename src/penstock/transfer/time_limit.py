"""How long one transfer may take, and whether it must stop now."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.errors import TransferCancelled, TransferFailed

GLANCE_SECONDS = 0.2
"""How long a transfer that waits goes without looking whether it must stop."""


class TimeLimit:
    """The end of one transfer's time, and somebody who may end it sooner.

    Args:
        what: the transfer, as messages name it; without secrets.
        seconds: how long it may take from now on, all in all.
        stopped: whether it must stop; asked between two chunks, and while it waits.
        now: the time in seconds, on a clock that only goes forward.
    """

    def __init__(
        self,
        what: str,
        seconds: float,
        stopped: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = what
        self.now = now
        self._seconds = seconds
        self._stopped = stopped
        self._end = now() + seconds

    def left(self) -> float:
        """The seconds that are left, more than 0.

        Raises:
            TransferCancelled: it must stop.
            TransferFailed: none are left.
        """
        if self._stopped():
            raise TransferCancelled(f"{self.what}: transfer cancelled")
        left = self._end - self.now()
        if left <= 0:
            raise TransferFailed(
                f"{self.what}: transfer timed out after {self._seconds:g} s (transfer_timeout, or timeout of a stage)"
            )
        return left

    def glance(self) -> float:
        """How long to wait before the next look, in seconds.  Raises as `left` does."""
        return min(self.left(), GLANCE_SECONDS)
