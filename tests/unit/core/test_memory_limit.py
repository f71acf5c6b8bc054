"""How large batches may be after a shortage of memory: half of what failed at least, and twice as many a minute on."""

from __future__ import annotations

import pytest

from penstock.core.memory_limit import GROW_AFTER_SECONDS, MemoryLimit


@pytest.mark.parametrize(("ran", "size"), [(0, 16), (1, 16), (16, 16), (20, 20), (31, 31)])
def test_one_shortage_leaves_half_of_what_failed_or_what_ran(ran, size):
    limit = MemoryLimit(32)
    assert limit.ran_out(32, ran, now=1.0)
    assert (limit.size, limit.lifted) == (size, False)


def test_one_more_shortage_halves_again_down_to_single_items_and_an_older_one_raises_nothing():
    limit = MemoryLimit(32)
    for failed, size in [(32, 16), (16, 8), (8, 4), (4, 2), (2, 1), (1, 1)]:
        assert limit.ran_out(failed, 0, now=1.0) is (size < failed)
        assert limit.size == size
    assert not limit.ran_out(32, 20, now=1.0)
    assert limit.size == 1


def test_after_each_minute_without_another_the_size_doubles_up_to_what_the_policy_says():
    limit = MemoryLimit(25)
    limit.ran_out(25, 0, now=0.0)
    limit.ran_out(13, 0, now=10.0)
    sizes = []
    for second in range(10, 10 + 4 * int(GROW_AFTER_SECONDS)):
        if limit.grow(float(second)):
            sizes.append((second, limit.size, limit.lifted))
    assert sizes == [(70, 14, False), (130, 25, True)]
    assert not limit.grow(1000.0)
