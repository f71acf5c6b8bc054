"""Decide which free pages of a slab go back to the system.  Pure: it is told the time.

Contract
--------
* A free page that was touched, and that nobody has used for `idle_seconds`, is idle.  No page is idle too early, and
  none more than a second late, however long nobody asked: times are kept in whole seconds, rounded up.
* An idle page is told of once.  It counts as untouched from then on, until it is taken again.
* Where the time goes back it stands still here: pages are late then, and never early.

A page has one byte, its stamp: the number of the second in which it was used last.  The numbers are few, so from time
to time all are made smaller.  Pages that are idle already then have the least number, whatever they had before.
"""

from __future__ import annotations

import math
from typing import Final

UNTOUCHED: Final = 0
OLDEST: Final = 1
NEWEST: Final = 254
TAKEN: Final = 255
"""What a stamp says: never written to since the system has the page, the numbers of seconds, and in use."""


class PageAges:
    """The stamps of the pages of one slab, which are numbered from 0.  At first all `pages` are untouched.

    `idle_seconds` is a whole number from 1 to 120.
    """

    def __init__(self, pages: int, idle_seconds: float) -> None:
        self._stamps = bytearray(pages)
        self._touched_end = 0
        """From this page on all are untouched: what is never used costs nothing."""
        self._idle_after = int(idle_seconds) + 1
        """So many seconds after the one of its stamp a page is idle: it may have been used until that one's end."""
        self._present = OLDEST + self._idle_after
        """The number of the present second."""
        self._present_ends = 0.0
        """When the next second begins; a whole number."""

    @property
    def has_touched(self) -> bool:
        """Whether there may be a page that is touched, be it free or taken."""
        return self._touched_end > 0

    def take(self, first: int, pages: int) -> None:
        """So many pages from `first` on are in use."""
        end = first + pages
        self._stamps[first:end] = _stamps(TAKEN, pages)
        self._touched_end = max(self._touched_end, end)

    def give_back(self, first: int, pages: int, now: float) -> None:
        """So many pages from `first` on are free; they were used until `now`."""
        if now >= self._present_ends:
            self._go_on(now)
        self._stamps[first : first + pages] = _stamps(self._present, pages)

    def touch_free(self, now: float) -> None:
        """Every free page may have been written to until `now`."""
        if now >= self._present_ends:
            self._go_on(now)
        self._stamps = self._stamps.translate(_stamps(self._present, TAKEN) + _stamps(TAKEN, 1))
        self._touched_end = len(self._stamps)

    def take_idle(self, now: float, most_pages: int) -> list[tuple[int, int]]:
        """The idle pages as runs, each its first page and how many; at most `most_pages` in all, the highest first.

        The highest go first because the lowest are taken first: those are wanted again soon.
        """
        if now >= self._present_ends:
            self._go_on(now)
        end = self._touched_end
        idle = self._present - self._idle_after
        table = b"\0" + _stamps(1, idle) + bytes(TAKEN - idle)
        is_idle = self._stamps[:end].translate(table)
        runs: list[tuple[int, int]] = []
        while most_pages > 0:
            end = is_idle.rfind(1, 0, end) + 1
            if end == 0:
                break
            first = max(is_idle.rfind(0, 0, end) + 1, end - most_pages)
            self._stamps[first:end] = bytes(end - first)
            runs.append((first, end - first))
            most_pages -= end - first
            end = first
        if runs:
            self._touched_end = len(self._stamps[: self._touched_end].rstrip(b"\0"))
        return runs

    def _go_on(self, now: float) -> None:
        """Let the second that `now` is in be the present one."""
        passed = math.floor(now - self._present_ends) + 1
        self._present_ends += passed
        self._present += passed
        if self._present > NEWEST:
            # The present becomes as small as it can be: then a page is idle whose stamp is OLDEST, and no other.
            less = self._present - (OLDEST + self._idle_after)
            numbers = bytes([max(OLDEST, stamp - less) for stamp in range(OLDEST, TAKEN)])
            self._stamps = self._stamps.translate(_stamps(UNTOUCHED, 1) + numbers + _stamps(TAKEN, 1))
            self._present -= less


def _stamps(stamp: int, pages: int) -> bytes:
    return bytes((stamp,)) * pages
