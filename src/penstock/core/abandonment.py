"""Decide how long a worker may go on with a batch for which nobody waits any more.

Pure: it is told how long runs took.  A batch is *deserted* once its last item has expired or its caller has left.  The
worker cannot be asked to stop, and whatever waits behind that batch waits with it.
"""

from __future__ import annotations

SHORTEST_SECONDS = 30.0
RUNS = 10
"""A deserted batch may run as long as so many of the stage's longest runs."""
FIRST_RUN_SECONDS = 300.0
"""The least for the first batch of a worker that has run no example: a first run may compile."""
WARNING_SECONDS = 10.0
"""The log tells of a deserted batch after so long, or after half of the time it has, if that is less."""


class Abandonment:
    """The limit of one stage.  `setting` is in seconds, or None for a limit that follows from what the stage does."""

    def __init__(self, setting: float | None, *, has_examples: bool) -> None:
        self._setting = setting
        self._has_examples = has_examples
        self._longest_run = 0.0
        self._factor = 1.0

    def answered(self, seconds: float) -> None:
        """A worker of the stage answered a batch that ran for `seconds`."""
        self._factor = 1.0
        self._longest_run = max(self._longest_run, seconds)

    def abandoned(self) -> None:
        """A worker was killed because of this limit: it may have been too short, so the next one is twice as long."""
        self._factor *= 2

    def limit(self, *, start_seconds: float, has_answered: bool) -> float:
        """How many seconds a deserted batch may run on.

        `start_seconds` is how long its worker took to become ready; `has_answered` says whether it has answered a batch
        since.
        """
        if self._setting is not None:
            return self._setting
        longest = max(SHORTEST_SECONDS, RUNS * self._longest_run, start_seconds)
        if not has_answered and not self._has_examples:
            longest = max(longest, FIRST_RUN_SECONDS)
        return longest * self._factor


def warning_after(limit: float) -> float:
    """How many seconds after a batch was deserted the log tells of it, where it may run on for `limit` seconds."""
    return min(WARNING_SECONDS, limit / 2)
