"""Watch whether the store answers: for how long it has not, and since when no work should come here.

A store that is gone ends nothing by itself.  What is held goes on, and the store is asked again with growing rests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.leases import reconnect_delay
from penstock.errors import PenstockError
from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.jobs")

DOWN_SECONDS: Final = 30.0
"""For how long a store may be gone until the process is no longer ready."""


class StoreWatch:
    """What is known of the store of one consumer; `now` tells the time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: float | None = None
        self._failed_claims = 0
        self.why = ""
        """Why the last call was not answered, or "" where it was."""

    @property
    def up(self) -> bool:
        """Whether the store answered the last call."""
        return self._since is None

    def answered(self, error: PenstockError | None) -> None:
        """Note that the store has answered, or that it has not, because of `error`."""
        if error is None:
            if self._since is not None:
                log.info("job store available again after %.1f s", self._now() - self._since)
            self._since, self.why = None, ""
            return
        if self._since is None:
            self._since = self._now()
        if str(error) != self.why:
            log.warning("job store unavailable: %s; trying again, jobs in flight continue", error)
        self.why = str(error)

    def claim_answered(self) -> None:
        """Note that the store has answered a claim."""
        self._failed_claims = 0
        self.answered(None)

    def claim_failed(self, error: PenstockError, draw: float) -> float:
        """Note that it has not; returns the seconds until it is asked again."""
        self._failed_claims += 1
        self.answered(error)
        return reconnect_delay(self._failed_claims, draw)

    def unready_because(self) -> str:
        """Why no work should come here, or ""."""
        gone = 0.0 if self._since is None else self._now() - self._since
        return "" if gone < DOWN_SECONDS else f"job store unavailable for {gone:.0f} s: {self.why}"
