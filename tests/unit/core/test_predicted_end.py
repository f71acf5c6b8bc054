"""When a newcomer would end, by the runs that were seen."""

from __future__ import annotations

import heapq
import math
from random import Random

import pytest

from night import histories
from penstock.core.predicted_end import (
    StageLoad,
    predicted_end,
    seconds_others_miss,
    seconds_to_clear,
    seconds_until_free,
)
from rows import each


def load(waiting=0, held=0, size=1, run=1.0, free=(0.0,)):
    return StageLoad(waiting, held, size, run, list(free))


@pytest.mark.parametrize(
    ("runs", "elapsed", "seconds"),
    [
        ([], 99.0, 0.0),
        ([2.0], 0.0, 2.0),
        ([2.0], 1.5, 0.5),
        ([2.0], 2.0, 0.0),
        ([2.0], 32.0, 30.0),
        ([2.0, 2.0], 1.5, 2.5),
        ([2.0, 5.0, 2.0], 0.0, 9.0),
    ],
)
def test_a_worker_is_free_once_it_has_run_all_that_it_holds(runs, elapsed, seconds):
    assert seconds_until_free(runs, elapsed) == seconds


def test_who_finds_an_idle_worker_ends_after_one_run():
    assert predicted_end([load()]) == 1.0


def test_who_waits_goes_with_the_batch_that_those_before_it_fill():
    ends = [predicted_end([load(waiting, size=4, free=[0.5])]) for waiting in (0, 3, 4, 7, 8)]
    assert ends == [1.5, 1.5, 2.5, 2.5, 3.5]


def test_workers_take_batches_as_they_become_free():
    ends = [predicted_end([load(waiting, free=[0.25, 0.75])]) for waiting in range(5)]
    assert ends == [1.25, 1.75, 2.25, 2.75, 3.25]


def test_a_worker_that_is_held_up_for_long_gets_nothing_for_so_long():
    ends = [predicted_end([load(waiting, free=[30.0, 0.0])]) for waiting in (0, 1, 29, 30, 31)]
    assert ends == [1.0, 2.0, 30.0, 31.0, 31.0]


def test_the_share_of_the_lane_behind_makes_batches_smaller():
    assert predicted_end([load(8, size=4 * 0.5)]) == 5.0
    assert math.isfinite(predicted_end([load(8, size=0.0)])), "whoever has no share at all is not divided by it"


def test_a_second_stage_begins_when_the_newcomer_has_come_there():
    assert predicted_end([load(run=2.0), load(run=1.0)]) == 3.0


def test_a_second_stage_first_does_all_that_comes_there_before_the_newcomer():
    first = load(waiting=3, held=1, run=0.1, free=[0.1])
    assert predicted_end([first, load(waiting=2)]) == 7.0, "three that wait, one that runs, two that are there"


def test_those_whom_a_newcomer_overtakes_go_one_batch_later_where_theirs_was_full():
    one = load(waiting=1, size=2, free=[0.0])
    behind = [2.0, 2.0, 3.0, 3.0]  # without the newcomer they end at 1.0, 2.0, 2.0, 3.0; with it at 2.0, 2.0, 3.0, 3.0
    assert seconds_others_miss([one], 0.0, behind) == 0.0
    assert seconds_others_miss([one], 0.25, behind) == 0.25
    assert seconds_others_miss([one], 0.0, [2.0, 2.0, 2.5, 3.0]) == 0.5
    assert one.waiting == 1, "the load is as it was"


def test_who_would_be_late_anyhow_keeps_nobody_out():
    assert seconds_others_miss([load()], 0.0, [0.5]) == 0.0
    assert seconds_others_miss([load()], 0.0, [1.5]) == 0.5
    assert seconds_others_miss([load()], 0.0, []) == 0.0


def test_nothing_takes_no_time():
    assert seconds_to_clear([load(), load()]) == 0.0


def test_what_is_in_hand_takes_as_long_as_its_last_item():
    assert seconds_to_clear([load(waiting=8, size=4, free=[0.5])]) == 2.5
    assert seconds_to_clear([load(held=1, free=[0.5])]) == 0.5
    assert seconds_to_clear([load(held=1, free=[0.5]), load(run=2.0)]) == 2.5, "one that runs comes there"
    assert seconds_to_clear([load(), load(waiting=1, run=2.0)]) == 2.0


def test_a_long_queue_beside_a_worker_that_hangs_is_predicted_at_once():
    """No loop over the batches: of so many it would take longer than any test may."""
    many = 10**12
    assert predicted_end([load(many, run=0.001, free=[0.0, 600.0])]) == pytest.approx(many * 0.001 / 2 + 300.0)
    assert predicted_end([load(many, run=0.001, free=[0.0, 1e12])]) == pytest.approx(many * 0.001)
    assert predicted_end([load(10, run=5e-324, free=[0.0, 600.0])]) == pytest.approx(0.0)


def one_by_one(loads):
    """The same, for the end of a newcomer, with each batch given out by itself."""
    end, before = 0.0, 0
    for one in loads:
        before += one.waiting
        workers = list(one.free)
        heapq.heapify(workers)
        for _ in range(int(before // one.size)):
            heapq.heappush(workers, heapq.heappop(workers) + one.run)
        end = max(end, workers[0]) + one.run
        before += one.held
    return end


@each("seed", range(histories(50)))
def test_the_end_is_that_of_giving_out_each_batch_by_itself(seed):
    random = Random(seed)
    for _ in range(20):
        loads = []
        for _ in range(random.randrange(1, 4)):
            free = [random.choice((0.0, random.uniform(0, 9))) for _ in range(random.randrange(1, 9))]
            run = random.choice((0.01, 0.25, 1.0, 3.0))
            loads.append(
                load(
                    random.choice((random.randrange(60), random.randrange(3000))),
                    random.randrange(9),
                    random.choice((1, 4, 8)),
                    run,
                    free,
                )
            )
        assert predicted_end(loads) == pytest.approx(one_by_one(loads)), seed
