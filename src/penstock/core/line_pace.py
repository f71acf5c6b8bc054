"""Decide which lines of the log are written where others decide how many there are.  Pure: it is told the time.

So many lines are written in each second.  Those that are left out are counted, and the next line says how many.
"""

from __future__ import annotations

SECOND = 1.0


class LinePace:
    """The lines of one kind."""

    def __init__(self, per_second: int = 1) -> None:
        self._per_second = per_second
        self._begun = 0.0
        self._written = 0
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """How many lines were left out since the last one, if this one is to be written; None leaves it out."""
        if self._written and now - self._begun >= SECOND:
            self._written = 0
        if self._written == self._per_second:
            self._left_out += 1
            return None
        if not self._written:
            self._begun = now
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
