"""Decide which lines of output wait to be written, and which are dropped.  Pure: it keeps none of them.

Contract
--------
* At most `max_bytes` wait, what is being written included.
* What finds room is taken.  What finds none is dropped whole and counted in `dropped`.
* Each line that was dropped is told once, in a notice that stands where the lines are missing: before the next that
  is taken, or, if none comes, behind all that waited.  Room for the notice is kept.
* A line that was taken and could not be written is counted too, and told where somebody says that it may be (`owe`).
"""

from __future__ import annotations

NOTICE_BYTES = 256
"""Room for one notice.  A longer one counts as this."""


class Backlog:
    """What was handed over to be written and is not written yet, in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.waiting = 0
        self.dropped = 0
        """Lines dropped so far."""
        self.untold = 0
        """Lines dropped since the last notice."""

    def offer(self, nbytes: int) -> bool:
        """Whether `nbytes` more are taken.  If not, the caller says by `drop` how many lines they were."""
        needed = nbytes + NOTICE_BYTES if self.untold else nbytes
        if self.waiting + needed > self.max_bytes:
            return False
        self.waiting += nbytes
        return True

    def drop(self, lines: int) -> None:
        """Count lines that were not taken."""
        self.dropped += lines
        self.untold += lines

    def lose(self, lines: int) -> None:
        """Count lines that were taken and could not be written; a notice could not be written either."""
        self.dropped += lines

    def owe(self, lines: int) -> None:
        """Have lines told that were lost: something can be written again."""
        self.untold += lines

    def tell(self) -> int:
        """How many lines a notice tells of; it waits from now on.  0: none is due.

        It is asked before what `offer` has taken is put behind the rest, and when nothing waits.
        """
        count, self.untold = self.untold, 0
        if count:
            self.waiting += NOTICE_BYTES
        return count

    def written(self, nbytes: int) -> None:
        """Give back the room of what no longer waits: it was written, or could not be."""
        self.waiting -= nbytes
