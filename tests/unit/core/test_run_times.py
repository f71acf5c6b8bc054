"""What is learned of how long batches run, one sentence of its contract at a time."""

from __future__ import annotations

import math
from random import Random

import pytest

from night import histories
from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.run_times import RunTimes
from rows import each


def learned(*runs):
    """What was learned of `runs`, each of them (seconds, size)."""
    times = RunTimes()
    for seconds, size in runs:
        times.add(seconds, size)
    return times


def plain_known(runs):
    """Those of `runs` that are known: all of them since three long ones in a row, these included."""
    known, long = [], 0
    for i, (seconds, size) in enumerate(runs):
        a, b = plain_fit(known) if known else (math.inf, 0.0)
        long = long + 1 if seconds > 2 * (a + b * size) else 0
        known.append((seconds, size))
        if long == 3:
            known, long = runs[i - 2 : i + 1], 0
    return known


def plain_fit(runs):
    """(a, b) as the contract says, from all runs at once."""
    classes = {}
    for seconds, size in runs:
        classes.setdefault(math.ceil(math.log2(size)), []).append((size, seconds))
    points = []
    for seen in classes.values():
        size = time = 0.0
        for count, (n, seconds) in enumerate(seen, start=1):
            weight = max(1 / count, 0.05)
            size, time = (1 - weight) * size + weight * n, (1 - weight) * time + weight * seconds
        points.append((min(len(seen), 20) / time**2, size, time))
    w = sum(weight for weight, _, _ in points)
    wn = sum(weight * n for weight, n, _ in points)
    wnn = sum(weight * n * n for weight, n, _ in points)
    ws = sum(weight * s for weight, _, s in points)
    wns = sum(weight * n * s for weight, n, s in points)
    b = (w * wns - wn * ws) / (w * wnn - 0.99 * wn * wn) if len(points) > 1 else 0.0
    b = min(max(b, 0.0), ws / wn)
    return (ws - b * wn) / w, b


def test_before_the_first_run_nothing_is_known_and_0_is_expected():
    times = learned()
    assert not times.known
    assert (times.fixed, times.each, times.expected(7)) == (0.0, 0.0, 0.0)
    times.add(0.5, 1)
    assert times.known


def test_a_run_of_several_items_is_expected_to_take_a_and_b_for_each():
    times = learned((0.011, 1), (0.042, 32))
    assert times.fixed == pytest.approx(0.010, rel=0.01)
    assert times.each == pytest.approx(0.001, rel=0.01)
    assert times.expected(16) == pytest.approx(times.fixed + times.each * 16, rel=0.01)


@pytest.mark.parametrize("slower", [0.1, 2.0, 10.0, 1000.0])
def test_a_stage_that_has_become_slower_or_faster_is_believed_after_a_few_runs_of_any_size(slower):
    times = learned(*[(0.005 + 0.0001 * n, n) for n in (1, 2, 4, 8, 16, 32)] * 20)
    for _ in range(20):
        times.add(slower * (0.005 + 0.0001 * 32), 32)
    assert times.expected(32) == pytest.approx(slower * 0.0082, rel=0.05)
    for _ in range(1000):
        times.add(slower * (0.005 + 0.0001 * 32), 32)
    assert times.expected(32) == pytest.approx(slower * 0.0082, rel=0.001)


@pytest.mark.parametrize("power", [1.2, 1.5, 2.0])
def test_batches_that_take_more_than_in_proportion_are_believed_where_they_are_what_runs(power):
    times = learned(*[(0.001 * n**power, n) for n in (1, 2, 4, 8, 16, 32)] * 20)
    for _ in range(20):
        times.add(0.001 * 32**power, 32)
    assert times.expected(32) == pytest.approx(0.001 * 32**power, rel=0.05)


def test_a_worker_that_says_0_moves_what_is_expected_by_its_share_and_no_more():
    times = learned(*[(0.01 + 0.001 * n, n) for n in (1, 2, 4, 8, 16, 32)] * 60)
    for _ in range(200):
        times.add(0.0, 1)
        times.add(0.042, 32)
    assert 0.4 * 0.042 < times.expected(32) < 1.1 * 0.042


@pytest.mark.parametrize("sizes", [(1,), (2,), (3, 4), (5, 6, 7, 8), (9, 16), (17, 32)])
def test_sizes_are_learned_in_classes_each_twice_as_wide_as_the_one_before(sizes):
    times = learned(*[(0.010 * size, size) for size in sizes])
    assert times.each == 0.0, "all are of one class"
    for neighbour in (sizes[0] - 1, sizes[-1] + 1):
        if neighbour:
            assert learned(*[(0.010 * n, n) for n in (*sizes, neighbour)]).each > 0.0


@each("seed", range(histories(40)))
def test_the_line_is_as_plainly_computed_from_all_runs(seed):
    random = Random(seed)
    a, b = random.choice(((0.010, 0.001), (0.0, 0.002), (0.020, 0.0), (0.001, 0.0001)))
    runs = []
    times = RunTimes()
    for _ in range(random.choice((2, 5, 60))):
        size = random.choice((1, 2, 3, 5, 7, 12, 32, 1000))
        runs.append(((a + b * size) * random.uniform(0.5, 2.0), size))
        times.add(*runs[-1])
        assert (times.fixed, times.each) == (
            pytest.approx(plain_fit(plain_known(runs))[0], rel=1e-6, abs=1e-12),
            pytest.approx(plain_fit(plain_known(runs))[1], rel=1e-6, abs=1e-12),
        )


def test_a_class_weighs_its_count_at_most_20():
    often = learned(*[(0.010, 1)] * 20, (0.030, 2), (0.030, 4))
    oftener = learned(*[(0.010, 1)] * 2000, (0.030, 2), (0.030, 4))
    seldom = learned((0.010, 1), (0.030, 2), (0.030, 4))
    assert (often.fixed, often.each) == (pytest.approx(oftener.fixed), pytest.approx(oftener.each))
    assert (often.fixed, often.each) != (pytest.approx(seldom.fixed), pytest.approx(seldom.each))


def test_runs_of_no_time_and_of_negative_time_are_learned_as_0():
    times = learned((0.0, 1), (-5.0, 2), (0.0, 4))
    assert (times.fixed, times.each) == (0.0, 0.0)
    assert learned((-5.0, 1)).fixed == 0.0


@pytest.mark.parametrize("huge", [1e9, 1e300, math.inf])
def test_huge_runs_count_as_30_years_and_leave_numbers(huge):
    assert learned((huge, 1)).fixed == 1e9
    for runs in (
        [(huge, 1), (0.0, 2)],
        [(0.0, 1), (huge, 2)],
        [(huge, 1), (huge, 1_000_000)],
        [(1e-300, 1), (huge, 9)],
    ):
        times = learned(*runs)
        assert 0.0 <= times.fixed <= 1e9
        assert 0.0 <= times.each <= 1e9


def test_where_the_last_three_runs_were_shorter_than_the_fixed_part_it_is_the_longest_of_them():
    times = learned((0.3, 1), (0.3, 1), (0.3, 1), (0.3, 1))
    assert times.lately_fixed == times.fixed == 0.3
    times.add(0.002, 1)
    times.add(0.001, 1)
    assert times.lately_fixed == times.fixed > 0.1, "one of the three was long"
    times.add(0.0005, 1)
    assert times.fixed > 0.1
    assert times.lately_fixed == 0.002
    times.add(0.0004, 1)
    assert times.lately_fixed == 0.001
    times.add(0.3, 1)
    assert times.lately_fixed == times.fixed


EACH_SIZE = [(0.001, n) for n in (1, 2, 4, 8)] * 30


@pytest.mark.parametrize("slower", [2.1, 20.0, 1e6])
def test_where_the_last_three_runs_took_more_than_twice_as_long_only_they_are_known(slower):
    long, longer = 0.001 * slower, 0.0011 * slower
    times = learned(*EACH_SIZE, (long, 4), (longer, 4))
    assert times.fixed < 0.0015, "two of them may be chance"
    times.add(longer, 4)
    mean = (long + 2 * longer) / 3
    assert (times.fixed, times.each) == (pytest.approx(mean), 0.0)
    assert times.lately_fixed == times.fixed
    assert times.expected(4) == pytest.approx(mean, rel=0.02)


def test_a_stage_that_took_no_time_at_all_is_known_by_the_three_runs_that_did():
    times = learned((0.0, 1), (0.0, 2), (0.02, 2), (0.02, 2), (0.02, 2))
    assert (times.fixed, times.each) == (pytest.approx(0.02), 0.0)


def test_only_batches_of_one_call_teach():
    queue = BatchQueue(Batch(max_wait="auto"))
    queue.ran(5.0, 4, 1.0, calls=2)
    queue.ran(5.0, 4, 1.0, calls=0)
    queue.ran(5.0, 0, 1.0, calls=1)
    assert not queue.runs.known
    queue.ran(0.5, 4, 2.0, calls=1)
    assert queue.expected_run(4) == 0.5


def test_runs_of_back_alone_are_learned_apart():
    queue = BatchQueue(Batch(max_wait="auto"))
    queue.ran(5.0, 4, 1.0, back=True)
    assert (queue.expected_run(4), queue.expected_back_run(4)) == (0.0, 5.0)
    queue.ran(0.5, 4, 2.0)
    assert (queue.expected_run(4), queue.expected_back_run(4)) == (0.5, 5.0)
