"""How large slabs are: as large as was set, or as is fair to a small machine."""

from __future__ import annotations

import pytest

from penstock.core.slab_sizes import DEFAULT_BYTES, PAGE_BYTES, slab_bytes_each
from penstock.errors import ConfigError
from rows import each

MIB = 1024 * 1024
GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("memories", "limit", "each"),
    [
        (2, None, 256 * MIB),
        (2, 64 * GIB, 256 * MIB),
        (2, 2 * GIB, 256 * MIB),  # a quarter of the limit, to the byte
        (2, 2 * GIB - 1, 256 * MIB - PAGE_BYTES),
        (1, GIB, 256 * MIB),
        (4, GIB, 64 * MIB),
        (2, 128 * MIB, 16 * MIB),
        (3, 128 * MIB, 10 * MIB + 2 * MIB // 3 - 2 * MIB // 3 % PAGE_BYTES),
        (2, 8 * PAGE_BYTES, PAGE_BYTES),
        (2, 8 * PAGE_BYTES - 1, 0),
        (2, 0, 0),
    ],
)
def test_the_default_takes_a_quarter_of_the_limit_at_most(memories, limit, each):
    assert slab_bytes_each(None, memories, limit) == each
    if limit is not None:
        assert each * memories <= limit / 4


@each("memories", [1, 2, 3, 7])
@each("limit", [1, 4097, 65_535, 1_000_003, 123_456_789, 5_000_000_001])
def test_the_default_is_whole_pages_and_as_many_as_there_may_be(memories, limit):
    each = slab_bytes_each(None, memories, limit)
    assert each % PAGE_BYTES == 0
    assert each * memories * 4 <= limit
    assert each == DEFAULT_BYTES or (each + PAGE_BYTES) * memories * 4 > limit


@each(
    ("wanted", "each"),
    [
        (0, 0),
        (1, 0),
        (PAGE_BYTES - 1, 0),
        (PAGE_BYTES, PAGE_BYTES),
        (PAGE_BYTES + 1, PAGE_BYTES),
        (3 * GIB, 3 * GIB),
        (10_000_000, 2441 * PAGE_BYTES),
    ],
)
@each("limit", [None, 6 * GIB])
def test_what_was_set_is_rounded_down_to_pages(wanted, each, limit):
    assert slab_bytes_each(wanted, 2, limit) == each


def test_what_was_set_may_be_all_that_there_is():
    assert slab_bytes_each(512 * MIB, 2, GIB) == 512 * MIB


def test_what_was_set_to_more_is_refused_with_both_numbers_and_with_what_to_do():
    with pytest.raises(ConfigError) as refused:
        slab_bytes_each(512 * MIB + 1, 2, GIB)
    assert str(refused.value) == (
        "shm_bytes=536870913 for 2 slabs needs 1073741826 bytes, but the machine, the cgroup or `ulimit -v` allows "
        "1073741824 bytes of memory for everything, processes included: set less than 536870912, or 0 for no shared "
        "memory"
    )
    assert slab_bytes_each(536870912, 2, GIB) == 512 * MIB


def test_no_shared_memory_is_no_error_on_the_smallest_machine():
    assert slab_bytes_each(0, 9, 0) == 0


def test_what_other_services_of_the_process_have_is_left_out():
    assert slab_bytes_each(None, 2, 2 * GIB, GIB) == 128 * MIB
    assert slab_bytes_each(None, 2, GIB, 2 * GIB) == 0
    assert slab_bytes_each(None, 2, None, GIB) == 256 * MIB
    assert slab_bytes_each(256 * MIB, 2, GIB, 512 * MIB) == 256 * MIB
    with pytest.raises(ConfigError) as refused:
        slab_bytes_each(256 * MIB + 1, 2, GIB, 512 * MIB)
    assert str(refused.value) == (
        "shm_bytes=268435457 for 2 slabs needs 536870914 bytes, but the machine, the cgroup or `ulimit -v` allows "
        "1073741824 bytes of memory for everything, processes included, of which slabs of other services use "
        "536870912: set less than 268435456, or 0 for no shared memory"
    )
