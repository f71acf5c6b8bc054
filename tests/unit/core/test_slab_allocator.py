"""Where a piece lies, and which free pages go back to the system."""

from __future__ import annotations

import math
from random import Random

import pytest

from penstock.core.slab_allocator import PAGE_BYTES, SlabAllocator
from rows import each

PAGE = PAGE_BYTES
ALL = 1 << 40
"""More bytes than any slab here."""


def slab(pages):
    return SlabAllocator(pages * PAGE)


def taken(allocator, *pages, now=0.0):
    """Take a piece of each of these numbers of pages: the pages at which they begin."""
    offsets = [allocator.take(n * PAGE) for n in pages]
    assert None not in offsets
    return [offset // PAGE for offset in offsets]


def idle(allocator, now, most_bytes=ALL):
    """The idle runs in pages: where each begins, and how many."""
    return [(offset // PAGE, nbytes // PAGE) for offset, nbytes in allocator.idle_runs(now, most_bytes)]


# -- where a piece lies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nbytes", "pages"), [(0, 0), (PAGE - 1, 0), (PAGE, 1), (3 * PAGE - 1, 2), (3 * PAGE, 3)])
def test_a_slab_has_the_whole_pages_of_its_size(nbytes, pages):
    allocator = SlabAllocator(nbytes)
    assert (allocator.nbytes, allocator.used_bytes) == (pages * PAGE, 0)
    assert allocator.take(pages * PAGE + 1) is None
    assert allocator.is_free(0, 1) is (pages > 0)


def test_a_slab_without_pages_has_room_for_nothing():
    allocator = SlabAllocator(0)
    assert allocator.take(1) is None
    assert not allocator.take_at(0, 1)
    allocator.touch_free(0.0)
    assert not allocator.has_touched
    assert idle(allocator, 1e9) == []


def test_a_piece_lies_at_the_lowest_address_with_room_for_all_of_it():
    allocator = slab(20)
    taken(allocator, 1, 2, 1, 3, 1)  # to page 8
    allocator.give_back(4 * PAGE, 0.0)
    allocator.give_back(1 * PAGE, 0.0)
    assert taken(allocator, 3) == [4]
    assert taken(allocator, 3) == [8]
    assert taken(allocator, 1, 1, 1) == [1, 2, 11]


@pytest.mark.parametrize("offset", [PAGE, 2 * PAGE, 2 * PAGE + 1, 1, -PAGE, -1, 100 * PAGE, 1 << 200])
def test_only_a_piece_is_given_back(offset):
    allocator = slab(4)
    taken(allocator, 2)  # pages 0 and 1
    with pytest.raises(ValueError, match=f"no piece starts at {offset}"):
        allocator.give_back(offset, 0.0)
    assert allocator.used_bytes == 2 * PAGE
    assert taken(allocator, 2) == [2]


def test_a_piece_has_a_byte_at_least():
    with pytest.raises(AssertionError):
        slab(4).take(0)


# -- a piece at a place that somebody else says -----------------------------------------------------------------------


@each(
    ("offset", "nbytes"),
    [
        (1, 1),
        (4 * PAGE + 1, 1),
        (5 * PAGE - 1, PAGE),
        (-1, 1),
        (-PAGE, PAGE),
        (-PAGE, 9 * PAGE),
        (4 * PAGE, 0),
        (4 * PAGE, -1),
        (4 * PAGE, -PAGE),
        (4 * PAGE, -(1 << 80)),
        (2 * PAGE, 1),  # taken
        (3 * PAGE, PAGE),
        (0, 3 * PAGE),  # its last page is taken
        (0, 2 * PAGE + 1),
        (3 * PAGE, 2 * PAGE),  # its first page is taken
        (0, 8 * PAGE),
        (4 * PAGE, 4 * PAGE + 1),  # beyond the end
        (7 * PAGE, 2 * PAGE),
        (8 * PAGE, 1),
        (9 * PAGE, PAGE),
        (1 << 80, PAGE),
        (4 * PAGE, 1 << 80),
        (-(1 << 80), 1 << 80),
        (-(1 << 80), (1 << 80) + PAGE),
    ],
)
def test_numbers_that_are_no_free_pages_take_nothing(offset, nbytes):
    allocator = slab(8)
    assert allocator.take_at(2 * PAGE, 2 * PAGE)
    assert not allocator.is_free(offset, nbytes)
    assert not allocator.take_at(offset, nbytes)
    assert allocator.used_bytes == 2 * PAGE
    assert allocator.is_free(0, 2 * PAGE)
    assert allocator.is_free(4 * PAGE, 4 * PAGE)


# -- pages that nobody uses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [0.0, 0.5, 100.0, 100.001, 100.999, 5e6 + 0.25])
def test_a_page_goes_back_a_minute_after_its_last_use_or_a_second_later(begin):
    for seconds, expected in ((0.0, []), (1.0, []), (59.999, []), (61.0, [(0, 2)]), (1e9, [(0, 2)])):
        allocator = slab(4)
        taken(allocator, 2, now=begin - 1000.0)
        allocator.give_back(0, begin)
        assert allocator.has_touched
        assert idle(allocator, begin + seconds) == expected


def test_no_more_bytes_go_back_at_once_than_are_wanted_and_the_highest_first():
    allocator = slab(9)
    taken(allocator, 2, 2, 1, 3)
    for first in (0, 2, 5):
        allocator.give_back(first * PAGE, 0.0)
    assert idle(allocator, 100.0, -1) == []
    assert idle(allocator, 100.0, 0) == []
    assert idle(allocator, 100.0, PAGE - 1) == []
    assert idle(allocator, 100.0, 2 * PAGE - 1) == [(7, 1)]
    assert idle(allocator, 100.0, 4 * PAGE) == [(5, 2), (2, 2)]
    assert idle(allocator, 100.0, 4 * PAGE) == [(0, 2)]
    assert idle(allocator, 100.0, 4 * PAGE) == []
    assert allocator.has_touched  # page 4 is taken


@pytest.mark.parametrize("pause", [150.0, 191.0, 192.0, 193.0, 254.0, 255.0, 256.0, 1e4, 1e9])
def test_however_long_nobody_asked_no_page_goes_back_early(pause):
    allocator = slab(8)
    taken(allocator, 1, 1, 1, 1)
    allocator.give_back(0, 0.0)
    allocator.give_back(2 * PAGE, pause)
    assert idle(allocator, pause + 30.0) == [(0, 1)]
    assert idle(allocator, pause + 59.9) == []
    assert idle(allocator, pause + 61.0) == [(2, 1)]
    assert idle(allocator, 2 * pause + 500.0) == []
    allocator.give_back(PAGE, 2 * pause + 500.0)
    allocator.give_back(3 * PAGE, 3 * pause + 540.0)
    assert idle(allocator, 3 * pause + 599.0) == [(1, 1)]
    assert idle(allocator, 3 * pause + 601.0) == [(3, 1)]


def test_where_the_time_goes_back_a_page_is_late_and_never_early():
    allocator = slab(4)
    taken(allocator, 2, 2, now=100.0)
    allocator.give_back(0, 100.0)
    allocator.give_back(2 * PAGE, 50.0)
    assert idle(allocator, 111.0) == []
    assert idle(allocator, 90.0) == []
    assert idle(allocator, 161.0) == [(0, 4)]


# -- how full a slab becomes ------------------------------------------------------------------------------------------


def share_without_room(full):
    """Of bodies of 64 KiB to 16 MiB, each size as likely in logarithms, how many find no room in 256 MiB.

    Before each one pieces at random are given back, until all are no more than `full` of the slab.
    """
    random, allocator, held, without_room = Random(1), SlabAllocator(256 << 20), [], 0
    for _ in range(5000):
        nbytes = int(math.exp(random.uniform(math.log(64 << 10), math.log(16 << 20))))
        while allocator.used_bytes + nbytes > full * allocator.nbytes:
            allocator.give_back(held.pop(random.randrange(len(held))), 0.0)
        offset = allocator.take(nbytes)
        if offset is None:
            without_room += 1
        else:
            held.append(offset)
    return without_room / 5000


def test_nearly_every_body_finds_room_in_a_slab_that_is_70_percent_full_and_a_third_none_at_90_percent():
    assert share_without_room(0.7) < 0.004
    assert 0.25 < share_without_room(0.9) < 0.45
