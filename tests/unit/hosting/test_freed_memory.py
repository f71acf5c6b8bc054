"""Freed memory is given back, as often as it is worth it."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest

from penstock.hosting import freed_memory
from penstock.hosting.freed_memory import KEPT_BYTES, freed_memory_returned, resident_bytes, trim_heap
from penstock.testing.virtual_clock import VirtualClock


class Heap:
    """A heap that keeps what was freed until it is trimmed; a trim takes `seconds`."""

    def __init__(self):
        self.clock = VirtualClock()
        self.resident = 100 * KEPT_BYTES
        self.seconds = 0.0
        self.trims = []

    def trim(self):
        self.trims.append(self.clock.now() - 1000.0)
        self.clock._now += self.seconds

    def watched(self):
        return freed_memory_returned(self.clock, lambda: self.resident, self.trim)


@pytest.fixture
def heap():
    return Heap()


async def test_a_process_that_has_not_grown_is_left_alone(heap):
    with heap.watched():
        heap.resident += KEPT_BYTES
        await heap.clock.advance(60)
    assert heap.trims == []


async def test_a_process_that_has_grown_gives_back_every_ten_seconds(heap):
    with heap.watched():
        await heap.clock.advance(10)
        heap.resident += KEPT_BYTES + 1
        await heap.clock.advance(25)
        heap.resident -= 1
        await heap.clock.advance(25)
    assert heap.trims == [20, 30]


async def test_where_it_takes_long_it_is_done_less_often(heap):
    heap.seconds = 0.16
    with heap.watched():
        heap.resident *= 2
        await heap.clock.advance(100)
    assert heap.trims == pytest.approx([10, 50.16, 90.32])


async def test_afterwards_nobody_looks(heap):
    with heap.watched():
        pass
    assert heap.clock.waiting == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
@pytest.mark.parametrize(("flags", "least", "most"), [(mmap.MAP_PRIVATE, 0.9, 1.5), (mmap.MAP_SHARED, -0.5, 0.5)])
def test_resident_memory_is_that_of_this_process_alone(flags, least, most):
    before = resident_bytes()
    # From the kernel, and not from the heap, which may have room that another test has left.
    with mmap.mmap(-1, nbytes := 64 * 1024 * 1024, flags=flags | mmap.MAP_ANONYMOUS) as held:
        held[:: mmap.PAGESIZE] = bytes(nbytes // mmap.PAGESIZE)
        grown = resident_bytes() - before
    assert nbytes * least < grown < nbytes * most


def test_where_the_system_does_not_tell_it_is_as_if_nothing_were_used(monkeypatch, tmp_path):
    monkeypatch.setattr(freed_memory, "Path", lambda _: tmp_path / "none")
    assert resident_bytes() == 0


def test_where_the_c_library_cannot_nothing_happens(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    trim_heap()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_freed_memory_goes_back_to_the_system():
    blocks = [bytes(60_000) for _ in range(1600)]
    del blocks[::2]  # what stays keeps the C library from giving back the rest by itself
    full = resident_bytes()
    trim_heap()
    assert resident_bytes() < full - 30_000_000
