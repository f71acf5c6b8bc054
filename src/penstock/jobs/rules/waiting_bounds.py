"""Decide whether a queue takes more jobs: how many may wait in it, and how many bytes their inputs may have.

A job waits while it is scheduled or queued.  Jobs that go back, or are retried, are never refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import QueueFull


@dataclass(frozen=True, slots=True)
class WaitingBounds:
    """The bounds of one queue; None is no bound."""

    jobs: int | None = None
    """The most jobs that wait; 0 takes none."""
    nbytes: int | None = None
    """The most bytes of their inputs in the store."""

    @property
    def any(self) -> bool:
        """Whether there is a bound."""
        return self.jobs is not None or self.nbytes is not None

    def check(self, queue: str, *, waiting: int, waiting_bytes: int, new: int, new_bytes: int) -> None:
        """Raise QueueFull where `new` jobs of `new_bytes` do not fit beside those that wait."""
        for bound, name, there, more, what in (
            (self.jobs, "max_waiting", waiting, new, "waiting jobs"),
            (self.nbytes, "max_waiting_bytes", waiting_bytes, new_bytes, "bytes of waiting inputs"),
        ):
            if bound is not None and there + more > bound:
                raise QueueFull(
                    f"queue {queue} is full: {there} {what} and {more} more submitted exceed {name} ({bound})"
                )


NO_BOUNDS = WaitingBounds()
