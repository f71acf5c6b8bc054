"""Random histories of a slab against a list that has the owner of each page, and when it was used."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from night import histories
from penstock.core.slab_allocator import IDLE_SECONDS, PAGE_BYTES, SlabAllocator

HISTORIES = histories(120)
STEPS = 150
SLACK = 1.0
"""So many seconds late a page may go back."""


class PlainSlab:
    """The pages of a slab: `owners` has the number of a piece or None, `used` a moment, or None where untouched."""

    def __init__(self, pages):
        self.pages = pages
        self.owners = [None] * pages
        self.used = [None] * pages

    def is_free(self, first, pages):
        return (
            first >= 0
            and first + pages <= self.pages
            and not any(owner is not None for owner in self.owners[first : first + pages])
        )

    def lowest(self, pages):
        return next((first for first in range(self.pages) if self.is_free(first, pages)), None)

    def take(self, first, pages, piece):
        self.owners[first : first + pages] = [piece] * pages

    def give_back(self, piece, now):
        for page, owner in enumerate(self.owners):
            if owner == piece:
                self.owners[page], self.used[page] = None, now

    def touch_free(self, now):
        self.used = [now if owner is None else used for owner, used in zip(self.owners, self.used, strict=True)]

    def idle(self, now, seconds):
        return {
            page
            for page, (owner, used) in enumerate(zip(self.owners, self.used, strict=True))
            if owner is None and used is not None and now - used >= seconds
        }


class History:
    """One random history, played to both slabs."""

    def __init__(self, seed):
        self.seed = seed
        self.random = Random(seed)
        pages = self.random.choice((1, 5, 40, 40, 120))
        self.slab = SlabAllocator(pages * PAGE_BYTES + self.random.choice((0, 1, PAGE_BYTES - 1)))
        self.plain = PlainSlab(pages)
        self.pieces = {}
        """Where each piece begins, by its number."""
        self.count = 0
        self.now = self.random.choice((0.0, 17.3, 12345.678))
        self.pauses = self.random.choice(((0.0, 0.25, 1.0, 7.5, 59.5), (0.0, 1.0, 30.0, 61.0, 200.0, 1e6)))

    def play(self):
        steps = [self.take] * 3 + [self.take_at] + [self.give_back] * 4 + [self.idle_runs] * 2
        if self.random.random() < 0.5:
            steps.append(self.touch_free)
        for _ in range(STEPS):
            if self.random.random() < 0.4:
                self.now += self.random.choice(self.pauses)
            self.random.choice(steps)()
            self.compare()
        self.end()

    def size(self):
        """Of a piece, in bytes."""
        pages = self.random.choice((1, 1, 2, 3, 8, 20))
        return pages * PAGE_BYTES - self.random.choice((0, 1, PAGE_BYTES - 1))

    def take(self):
        nbytes = self.size()
        pages = -(-nbytes // PAGE_BYTES)
        first = self.plain.lowest(pages)
        assert self.slab.take(nbytes) == (None if first is None else first * PAGE_BYTES), self
        if first is not None:
            self.has_taken(first, pages)

    def take_at(self):
        """At a place that may be free or not, or is none."""
        nbytes = self.random.choice((0, -1, 1 << 70, self.size(), self.size(), self.size()))
        page = self.random.randrange(-2, self.plain.pages + 2)
        offset = page * PAGE_BYTES + self.random.choice((0, 0, 0, 1, -1, 1 << 70))
        pages = -(-nbytes // PAGE_BYTES)
        first = offset // PAGE_BYTES
        is_free = nbytes > 0 and offset % PAGE_BYTES == 0 and self.plain.is_free(first, pages)
        assert self.slab.is_free(offset, nbytes) is is_free, self
        assert self.slab.take_at(offset, nbytes) is is_free, self
        if is_free:
            self.has_taken(first, pages)

    def has_taken(self, first, pages):
        self.count += 1
        self.pieces[self.count] = first * PAGE_BYTES
        self.plain.take(first, pages, self.count)

    def give_back(self):
        if self.random.random() < 0.1:
            offset = self.random.randrange(-1, self.plain.pages + 1) * PAGE_BYTES + self.random.choice((0, 1))
            if offset not in self.pieces.values():
                with pytest.raises(ValueError, match="no piece starts"):
                    self.slab.give_back(offset, self.now)
        elif self.pieces:
            piece = self.random.choice(list(self.pieces))
            self.slab.give_back(self.pieces.pop(piece), self.now)
            self.plain.give_back(piece, self.now)

    def touch_free(self):
        self.slab.touch_free(self.now)
        self.plain.touch_free(self.now)

    def idle_runs(self):
        """What goes back is idle, is whole runs from the highest down, and is all that must go but for the bound."""
        most_bytes = self.random.choice((0, PAGE_BYTES - 1, 3 * PAGE_BYTES, 3 * PAGE_BYTES + 1, 1 << 40, 1 << 40))
        runs = self.slab.idle_runs(self.now, most_bytes)
        for (offset, _), (lower, nbytes) in pairwise(runs):
            assert lower + nbytes < offset, self
        pages = [
            page for offset, nbytes in runs for page in range(offset // PAGE_BYTES, (offset + nbytes) // PAGE_BYTES)
        ]
        assert all(offset % PAGE_BYTES == nbytes % PAGE_BYTES == 0 < nbytes for offset, nbytes in runs), self
        assert set(pages) <= self.plain.idle(self.now, IDLE_SECONDS), self
        assert len(pages) == len(set(pages)), self
        assert len(pages) * PAGE_BYTES <= most_bytes, self
        left = self.plain.idle(self.now, IDLE_SECONDS + SLACK) - set(pages)
        if left:
            assert len(pages) == most_bytes // PAGE_BYTES, self
            assert not pages or max(left) < min(pages), self
        for page in pages:
            self.plain.used[page] = None

    def compare(self):
        slab, plain = self.slab, self.plain
        taken = [owner is not None for owner in plain.owners]
        assert (slab.nbytes, slab.used_bytes) == (plain.pages * PAGE_BYTES, sum(taken) * PAGE_BYTES), self
        touched = any(taken) or any(used is not None for used in plain.used)
        assert slab.has_touched is touched, self
        for _ in range(3):
            first = self.random.randrange(plain.pages)
            pages = self.random.choice((1, 2, 5))
            assert slab.is_free(first * PAGE_BYTES, pages * PAGE_BYTES) is plain.is_free(first, pages), self

    def end(self):
        """Give everything back: the slab is one free run, and all of it that was touched goes back."""
        for piece, offset in self.pieces.items():
            self.slab.give_back(offset, self.now)
            self.plain.give_back(piece, self.now)
        self.pieces = {}
        self.now += IDLE_SECONDS + SLACK
        self.idle_runs()
        self.slab.idle_runs(self.now, 1 << 40)
        assert (self.slab.used_bytes, self.slab.has_touched) == (0, False), self
        assert self.slab.is_free(0, self.plain.pages * PAGE_BYTES), self
        assert self.slab.take(self.plain.pages * PAGE_BYTES) == 0, self

    def __str__(self):
        return f"history {self.seed}"


def test_a_slab_answers_as_a_list_of_owners_would():
    for seed in range(HISTORIES):
        History(seed).play()
