"""Decide which pages of a slab a piece gets.  Pure: it knows numbers of pages, not the memory, and is told the time.

Contract
--------
* A piece is a run of whole pages.  No two pieces overlap.
* A piece lies at the lowest address where there is room: so pages that were touched are used again.  The first write to
  a page costs seven times what a later one does.
* Pieces given back are one run with the free pages beside them.  So there is room for a piece exactly where so many
  pages in a row are free.
* Free pages that nobody has used for `IDLE_SECONDS` are told of, and go back to the system (`core/page_ages.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from penstock.core.page_ages import PageAges

PAGE_BYTES: Final = 4096
"""A piece begins at a multiple of so many bytes, and takes whole multiples."""

IDLE_SECONDS: Final = 60.0
"""Free pages that nobody has used for so long go back to the system."""


class SlabAllocator:
    """The pages of a slab, or of a part of one, of `nbytes` bytes; what is no whole page is left out.

    Offsets and sizes are in bytes.  Whoever has a piece remembers its offset.
    """

    def __init__(self, nbytes: int) -> None:
        pages = nbytes // PAGE_BYTES
        self.nbytes = pages * PAGE_BYTES
        """How many bytes there are to be had."""
        self.used_bytes = 0
        """How many of them are taken, in whole pages."""
        # The free runs by their addresses, in pages.  No two touch each other.
        self._starts: list[int] = [0] if pages else []
        self._sizes: list[int] = [pages] if pages else []
        self._pieces: dict[int, int] = {}
        """How many pages a piece has, by its first one."""
        self._ages = PageAges(pages, IDLE_SECONDS)

    @property
    def has_touched(self) -> bool:
        """Whether `idle_runs` may find something, now or later."""
        return self._ages.has_touched

    def take(self, nbytes: int) -> int | None:
        """Where a piece of `nbytes`, 1 or more, begins from now on; None where there is no room for it."""
        assert nbytes > 0
        pages = _pages(nbytes)
        run = 0
        for size in self._sizes:
            if size >= pages:
                break
            run += 1
        else:
            return None
        first = self._starts[run]
        self._cut(run, first, pages)
        return first * PAGE_BYTES

    def take_at(self, offset: int, nbytes: int) -> bool:
        """Take a piece of `nbytes` that begins at `offset`; False where `is_free` says no."""
        run = self._run_around(offset, nbytes)
        if run < 0:
            return False
        self._cut(run, offset // PAGE_BYTES, _pages(nbytes))
        return True

    def give_back(self, offset: int, now: float) -> None:
        """The piece that begins at `offset` is free; it may have been written to until `now`.

        Raises:
            ValueError: no piece begins there.
        """
        first = offset // PAGE_BYTES
        pages = 0 if offset % PAGE_BYTES else self._pieces.pop(first, 0)
        if pages == 0:
            raise ValueError(f"no piece starts at {offset}")
        self.used_bytes -= pages * PAGE_BYTES
        self._ages.give_back(first, pages, now)
        self._join(first, pages)

    def is_free(self, offset: int, nbytes: int) -> bool:
        """Whether a piece of `nbytes` could begin at `offset`.

        The numbers may be any: it could not where `offset` is not that of a page, and where `nbytes` is less than 1.
        """
        return self._run_around(offset, nbytes) >= 0

    def idle_runs(self, now: float, most_bytes: int) -> list[tuple[int, int]]:
        """Free pages that were touched and that nobody has used for `IDLE_SECONDS`: offsets and sizes, highest first.

        They are at most `most_bytes` in all, and untouched from now on: the caller gives them back to the system.  None
        comes too early, and none more than a second late.
        """
        runs = self._ages.take_idle(now, most_bytes // PAGE_BYTES)
        return [(first * PAGE_BYTES, pages * PAGE_BYTES) for first, pages in runs]

    def touch_free(self, now: float) -> None:
        """Any free page may have been written to until `now`, though nobody took it: all count as touched."""
        self._ages.touch_free(now)

    def _run_around(self, offset: int, nbytes: int) -> int:
        """Which free run has all pages of such a piece; -1 where none has."""
        if offset % PAGE_BYTES or nbytes < 1:
            return -1
        first = offset // PAGE_BYTES
        run = bisect_right(self._starts, first) - 1
        if run < 0 or first + _pages(nbytes) > self._starts[run] + self._sizes[run]:
            return -1
        return run

    def _cut(self, run: int, first: int, pages: int) -> None:
        """Take these pages out of a free run that has them all."""
        start = self._starts[run]
        before = first - start
        after = self._sizes[run] - before - pages
        if before:
            self._sizes[run] = before
            if after:
                self._starts.insert(run + 1, first + pages)
                self._sizes.insert(run + 1, after)
        elif after:
            self._starts[run] = first + pages
            self._sizes[run] = after
        else:
            del self._starts[run]
            del self._sizes[run]
        self._pieces[first] = pages
        self.used_bytes += pages * PAGE_BYTES
        self._ages.take(first, pages)

    def _join(self, first: int, pages: int) -> None:
        """Add these pages to the free runs: one run with those that touch them."""
        run = bisect_right(self._starts, first)  # the free run behind them
        if run < len(self._starts) and self._starts[run] == first + pages:
            pages += self._sizes[run]
            del self._starts[run]
            del self._sizes[run]
        if run > 0 and self._starts[run - 1] + self._sizes[run - 1] == first:
            self._sizes[run - 1] += pages
        else:
            self._starts.insert(run, first)
            self._sizes.insert(run, pages)


def _pages(nbytes: int) -> int:
    return (nbytes + PAGE_BYTES - 1) // PAGE_BYTES
