"""Decide what it means that no worker from outside is attached to a stage.  Pure: it is told what happened and when.

Contract
--------
* Until the first worker is ready the stage has never served, and its service is starting.
* When the last worker has gone, items wait for `grace` seconds.  If none is ready by then, the stage has failed.
* The next worker that is ready mends it, whenever it comes.
"""

from __future__ import annotations


class Presence:
    """Whether the workers of one stage are there, and since when they are not."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._absent_since: float | None = None
        """Since when no worker is ready; None while one is, and before the start."""
        self._served = False
        """Whether one has ever been."""

    def began(self, now: float) -> None:
        """The service starts: workers may attach from now on."""
        self._absent_since = now

    def became_ready(self) -> None:
        """A worker is ready."""
        self._served = True
        self._absent_since = None

    def all_gone(self, now: float) -> None:
        """No worker is ready any more."""
        if self._absent_since is None:
            self._absent_since = now

    def waited(self, now: float) -> float:
        """For how long the stage has waited for a worker; 0 while it has one."""
        return 0.0 if self._absent_since is None else now - self._absent_since

    @property
    def fails_at(self) -> float | None:
        """When the stage fails for want of a worker, or failed; None where it has one, and where it never had one."""
        return self._absent_since + self._grace if self._served and self._absent_since is not None else None

    def failed(self, now: float) -> bool:
        """Whether the stage has failed for want of a worker."""
        fails_at = self.fails_at
        return fails_at is not None and now >= fails_at
