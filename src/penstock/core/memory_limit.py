"""Decide how large the batches of a stage may be after it ran out of memory.  It is told the time."""

from __future__ import annotations

from typing import Final

GROW_AFTER_SECONDS: Final = 60.0
"""How long batches stay as small as memory had them, before they may be twice as large."""


class MemoryLimit:
    """The most items of a batch, `size`, at most `max_size`.

    A shortage halves it at most: a single giant item costs smaller batches for a while, and no more.  After each minute
    without another the size doubles.
    """

    def __init__(self, max_size: int) -> None:
        self.size = max_size
        self._max_size = max_size
        self._grows_at = 0.0

    def ran_out(self, failed: int, ran: int, now: float) -> bool:
        """Note that there was no memory for `failed` items at once, and for `ran`; True where batches get smaller."""
        self._grows_at = now + GROW_AFTER_SECONDS
        before = self.size
        self.size = max(1, min(before, max(ran, (failed + 1) // 2)))
        return self.size < before

    def grow(self, now: float) -> bool:
        """Allow larger batches where that is due; True where it was."""
        if self.size >= self._max_size or now < self._grows_at:
            return False
        self.size = min(2 * self.size, self._max_size)
        self._grows_at = now + GROW_AFTER_SECONDS
        return True

    @property
    def lifted(self) -> bool:
        """Whether batches are as large as they may ever be."""
        return self.size >= self._max_size
