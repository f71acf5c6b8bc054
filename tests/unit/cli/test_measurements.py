"""Which sizes are measured, how often, and what follows from what was measured."""

from __future__ import annotations

import pytest

from penstock.cli.findings import BatchRan, Memory, MemoryShort, SetupTook
from penstock.cli.measurements import (
    SEEN_ON_DEVICE,
    SEEN_RESIDENT,
    STAGE_SECONDS,
    SeenMemory,
    StageFigures,
    begins,
    memory_of_an_item,
    recommended_size,
    runs_again,
    sizes_up_to,
)

MIB = 2**20


def ran(size, peak, *, before=0, seconds=1.0, runs=3, on_device=False):
    return BatchRan(size, seconds, runs, Memory(before, on_device), Memory(peak, on_device))


@pytest.mark.parametrize(
    ("max_size", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (12, [1, 2, 4, 8, 12]), (32, [1, 2, 4, 8, 16, 32])],
)
def test_the_sizes_double_up_to_the_largest_which_is_one_of_them(max_size, sizes):
    assert sizes_up_to(max_size) == sizes


@pytest.mark.parametrize(
    ("timed", "size_seconds", "again"),
    [(0, 0.0, True), (2, 5.0, True), (3, 5.0, False), (3, 0.1, True), (1000, 0.2, False)],
)
def test_a_size_runs_three_times_and_more_often_where_that_takes_little(timed, size_seconds, again):
    assert runs_again(8, timed, size_seconds, 9.9) is again


def test_when_the_time_is_over_only_the_first_size_still_gets_a_time():
    over = STAGE_SECONDS
    assert begins(1, over)
    assert begins(2, over - 0.1)
    assert not begins(2, over)
    assert runs_again(1, 0, 0.0, over)
    assert not runs_again(1, 1, 5.0, over)
    assert not runs_again(2, 0, 0.0, over)


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 1.0, 4: 1.0}, 4),
        ({1: 1.0, 2: 1.0, 4: 1.89, 8: 3.78}, 4),
        ({1: 1.0, 2: 1.0, 4: 1.91, 8: 3.82}, 2),
        ({1: 1.0, 2: 2.0, 4: 4.0}, 1),
        ({1: 1.0, 2: 1.5, 4: 9.0}, 2),
        ({1: 0.0, 2: 0.0}, 2),
    ],
)
def test_the_size_to_use_is_the_smallest_that_does_nearly_as_many_items_as_the_best(seconds, size):
    assert recommended_size(seconds) == size


def test_one_more_item_takes_what_the_largest_batch_takes_more_than_the_smallest():
    sizes = [ran(1, 110 * MIB), ran(2, 500 * MIB), ran(4, 140 * MIB)]
    assert memory_of_an_item(sizes) == SeenMemory(10 * MIB, seen=True, on_device=False)


def test_memory_that_did_not_grow_is_too_little_to_be_seen_and_never_negative():
    assert memory_of_an_item([ran(1, 50 * MIB), ran(5, 40 * MIB)]) == SeenMemory(
        SEEN_RESIDENT // 4, seen=False, on_device=False
    )
    on_device = [ran(1, 5 * MIB, on_device=True), ran(5, 5 * MIB, on_device=True)]
    assert memory_of_an_item(on_device) == SeenMemory(SEEN_ON_DEVICE // 4, seen=False, on_device=True)


def test_a_single_size_is_compared_with_what_was_taken_before():
    assert memory_of_an_item([ran(1, 70 * MIB, before=50 * MIB)]).nbytes == 20 * MIB


def test_sizes_of_before_the_stage_computed_on_a_device_are_not_compared():
    begun = BatchRan(2, 1.0, 3, Memory(900 * MIB), Memory(8 * MIB, on_device=True))
    assert memory_of_an_item([ran(1, 900 * MIB), begun]) == SeenMemory(4 * MIB, seen=True, on_device=True)
    later = ran(4, 10 * MIB, before=0, on_device=True)
    assert memory_of_an_item([ran(1, 900 * MIB), begun, later]).nbytes == MIB


def figures(*reports, max_size=8, batched=True, concurrency=0, finished=True):
    found = StageFigures("a", max_size, batched, concurrency, finished=finished)
    for report in reports:
        found.take(report)
    return found


def test_the_rows_tell_the_memory_each_size_and_the_largest_that_ran():
    found = figures(SetupTook(Memory(200 * MIB)), ran(1, 3 * 2**30, seconds=0.5), ran(8, 10 * 2**30, seconds=1.0))
    assert found.rows() == [
        ("memory of setup", "200.0 MiB, resident"),
        ("memory of one more item", "1.0 GiB, resident"),
        ("batch of 1", "500.000 ms, 2.0 items/s"),
        ("batch of 8", "1000.000 ms, 8.0 items/s"),
        ("largest batch", "8 ran, which is max_size"),
    ]
    assert found.line() == "stage a: batch=ps.Batch(max_size=8)"


def test_a_waiting_stage_has_the_times_of_batches_alone_and_no_rate_and_no_line():
    found = figures(ran(1, 20 * MIB, seconds=0.5), ran(8, 20 * MIB, seconds=1.0), concurrency=64)
    assert found.rows()[1:3] == [
        ("batch of 1", "500.000 ms, alone; a worker has 64 in progress"),
        ("batch of 8", "1000.000 ms, alone; a worker has 64 in progress"),
    ]
    assert found.line() == ""


def test_a_stage_of_single_items_has_one_size_and_no_line():
    found = figures(ran(1, 20 * MIB), max_size=1, batched=False)
    assert [what for what, _ in found.rows()] == ["memory of one item", "batch of 1"]
    assert found.line() == ""


@pytest.mark.parametrize(
    ("reports", "finished", "words"),
    [
        ([MemoryShort(1)], True, "0 ran, but 1 ran out of memory (max_size is 8)"),
        ([ran(2, 1), MemoryShort(4)], True, "2 ran, but 4 ran out of memory (max_size is 8)"),
        ([ran(2, 1)], True, "2 ran before the 10 s of the stage were over (max_size is 8)"),
        ([ran(2, 1)], False, "2 ran before it failed (max_size is 8)"),
    ],
)
def test_the_largest_batch_is_told_with_why_there_was_no_larger_one(reports, finished, words):
    assert figures(*reports, finished=finished).rows()[-1] == ("largest batch", words)


def test_few_runs_and_none_are_said_to_be_so():
    found = figures(ran(1, 1, runs=1), ran(2, 1, runs=2), ran(4, 1, seconds=None, runs=0))
    assert dict(found.rows())["batch of 1"].endswith("items/s, by 1 run")
    assert dict(found.rows())["batch of 2"].endswith("items/s, by 2 runs")
    assert dict(found.rows())["batch of 4"] == "it ran, but the 10 s of the stage were over"
    assert found.line() == "stage a: batch=ps.Batch(max_size=2)"


def test_a_stage_of_which_nothing_ran_has_neither_rows_nor_a_line():
    assert (figures().rows(), figures().line()) == ([], "")


@pytest.mark.parametrize(
    ("nbytes", "words"), [(512, "512 bytes"), (1536, "1.5 KiB"), (MIB, "1.0 MiB"), (80 * 2**30, "80.0 GiB")]
)
def test_bytes_are_told_in_the_unit_that_fits(nbytes, words):
    assert str(SeenMemory(nbytes, seen=True, on_device=True)) == f"{words}, on the device"
