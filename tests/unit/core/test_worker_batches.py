"""Which batches are with the workers of a stage, as far as its batching has to know."""

from __future__ import annotations

import math

import pytest

from penstock.core.run_times import RunTimes
from penstock.core.worker_batches import WorkerBatches


@pytest.fixture
def runs():
    """Each batch runs for 0.016 s, of whatever size."""
    times = RunTimes()
    times.add(0.016, 1)
    return times


def test_a_worker_is_free_until_it_is_given_a_batch_and_once_its_last_is_back():
    batches = WorkerBatches(2)
    assert batches.free == 2
    batches.sent(0, 3, 1.0)
    batches.sent(0, 3, 1.0)
    assert batches.free == 1
    batches.sent(1, 3, 1.0)
    assert batches.free == 0
    batches.back(0, 0, 2.0)
    assert batches.free == 0
    batches.back(0, 0, 3.0)
    assert batches.free == 1


def test_that_a_worker_came_free_is_told_until_it_was_looked_at():
    batches = WorkerBatches(1)
    assert not batches.came_free
    batches.sent(0, 3, 1.0)
    batches.sent(0, 3, 1.0)
    batches.back(0, 0, 2.0)
    assert not batches.came_free, "it has another batch"
    batches.back(0, 0, 3.0)
    assert batches.came_free


def test_what_comes_back_from_a_worker_that_has_nothing_changes_nothing():
    batches = WorkerBatches(1)
    batches.in_hand(5)
    batches.back(0, 0, 1.0)
    batches.sent(0, 1, 2.0)
    batches.unsent(0, 0)
    batches.back(0, 0, 3.0)
    assert (batches.free, batches.came_free) == (1, False)
    assert batches.all_here(0), "that was no answer"


@pytest.mark.parametrize(("most", "live", "free"), [(None, 3, 2), (5, 3, 2), (3, 3, 2), (2, 2, 1), (1, 1, 0)])
def test_no_more_workers_run_and_are_free_than_there_may_be_batches(most, live, free):
    batches = WorkerBatches(3, most)
    batches.sent(0, 1, 1.0)
    assert (batches.live, batches.free) == (live, free)


def test_a_batch_sent_ahead_counts_among_those_that_there_may_be():
    batches = WorkerBatches(3, 2)
    batches.sent(0, 1, 1.0)
    batches.sent(0, 1, 1.0)
    assert batches.free == 0


def test_nobody_is_free_where_fewer_workers_are_left_than_have_batches():
    batches = WorkerBatches(2)
    batches.sent(0, 1, 1.0)
    batches.sent(1, 1, 1.0)
    batches.workers = 1
    assert batches.free == 0


# -- the most in hand -------------------------------------------------------------------------------------------------


def test_all_are_here_where_as_many_wait_as_were_in_hand_between_two_answers():
    batches = WorkerBatches(1)
    batches.in_hand(1)
    batches.sent(0, 1, 1.0)
    batches.in_hand(3)  # with the one that is out
    assert batches.all_here(0), "nothing was answered yet"
    batches.back(0, 3, 2.0)
    assert not batches.all_here(3)
    assert batches.all_here(4)


def test_where_no_worker_is_left_all_are_here_as_for_one():
    batches = WorkerBatches(1)
    batches.in_hand(5)
    batches.sent(0, 1, 1.0)
    batches.back(0, 4, 2.0)
    batches.workers = 0
    assert not batches.all_here(4)
    assert batches.all_here(5)


def answer(batches, *, waiting=0):
    batches.sent(0, 1, 1.0)
    batches.back(0, waiting, 2.0)


def test_the_most_in_hand_counts_for_eight_answers():
    batches = WorkerBatches(1)
    batches.in_hand(50)
    answer(batches)
    for _ in range(7):
        answer(batches)
        assert not batches.all_here(49)
    answer(batches)
    assert batches.all_here(1)


def test_after_an_answer_the_count_begins_with_those_who_are_still_in_hand():
    batches = WorkerBatches(1)
    batches.sent(0, 7, 1.0)
    batches.sent(0, 1, 1.0)
    batches.back(0, 5, 2.0)
    batches.in_hand(5)  # before they leave
    batches.back(0, 0, 3.0)
    assert not batches.all_here(12)
    assert batches.all_here(13), "five waited, and eight were out"
    for _ in range(7):
        answer(batches)
    assert not batches.all_here(5)
    assert batches.all_here(6), "five waited, and one was out"


def test_what_was_not_sent_or_is_lost_is_in_hand_until_then():
    for forget in (lambda batches: batches.unsent(0, 3), lambda batches: batches.lost(0, 3)):
        batches = WorkerBatches(1)
        batches.sent(0, 20, 1.0)
        forget(batches)
        answer(batches)
        assert not batches.all_here(22)
        assert batches.all_here(23)
        for _ in range(8):
            answer(batches)
        assert batches.all_here(1)


# -- not sent, lost ---------------------------------------------------------------------------------------------------


def test_the_latest_batch_of_a_worker_can_be_unsent():
    batches = WorkerBatches(2, 2)
    batches.sent(0, 3, 1.0)
    batches.sent(0, 4, 2.0)
    batches.unsent(0, 0)
    assert batches.free == 1
    batches.unsent(0, 0)
    assert (batches.free, batches.came_free) == (2, False)


def test_a_lost_worker_takes_its_batches_with_it_and_answers_nothing():
    batches = WorkerBatches(2, 2)
    batches.in_hand(9)
    batches.sent(0, 3, 1.0)
    batches.sent(0, 4, 2.0)
    assert batches.free == 0
    batches.lost(0, 0)
    assert (batches.free, batches.came_free) == (2, False)
    assert batches.all_here(1)


def test_a_lost_worker_that_had_nothing_changes_nothing():
    batches = WorkerBatches(2)
    batches.lost(0, 0)
    batches.sent(0, 1, 1.0)
    batches.back(0, 0, 2.0)
    batches.lost(0, 0)
    assert batches.free == 2
    assert batches.idle_for(0, 3.0) == 0.0


# -- how long free, how soon ------------------------------------------------------------------------------------------


def test_how_long_a_worker_had_been_free_is_known_once_it_had_a_batch():
    batches = WorkerBatches(1)
    assert batches.idle_for(0, 5.0) == 0.0
    batches.sent(0, 1, 1.0)
    assert batches.idle_for(0, 5.0) == 0.0
    batches.back(0, 0, 2.0)
    assert batches.idle_for(0, 5.0) == 3.0
    assert batches.idle_for(1, 5.0) == 0.0


def test_some_worker_has_been_free_as_long_as_the_one_that_was_it_the_longest():
    batches = WorkerBatches(2)
    assert batches.free_for(5.0) == math.inf, "none has had a batch"
    batches.sent(0, 1, 1.0)
    assert batches.free_for(5.0) == math.inf, "one has had none"
    batches.sent(1, 1, 1.0)
    assert batches.free_for(5.0) == 0.0, "none is free"
    batches.back(0, 0, 2.0)
    assert batches.free_for(5.0) == 3.0
    batches.back(1, 0, 4.0)
    assert batches.free_for(5.0) == 3.0
    batches.sent(0, 1, 5.0)
    assert batches.free_for(5.0) == 1.0


def test_no_worker_has_been_free_where_as_many_batches_are_out_as_may_be():
    batches = WorkerBatches(2, 1)
    batches.sent(0, 1, 1.0)
    assert batches.free_for(5.0) == 0.0


def test_a_batch_that_was_sent_ahead_and_unsent_again_leaves_the_one_before_as_it_was(runs):
    batches = WorkerBatches(1)
    batches.sent(0, 1, 1.0)
    batches.sent(0, 1, 1.010)
    batches.unsent(0, 0)
    assert batches.soonest(runs, 1.010) == pytest.approx(0.006)


def test_the_first_of_the_workers_that_have_one_batch_is_soon_free(runs):
    batches = WorkerBatches(3)
    assert batches.soonest(runs, 1.0) == math.inf
    batches.sent(0, 1, 1.0)
    batches.sent(1, 1, 1.004)
    assert batches.soonest(runs, 1.010) == pytest.approx(0.006)
    batches.sent(0, 1, 1.010)
    assert batches.soonest(runs, 1.010) == pytest.approx(0.010), "the other has a batch sent ahead"
    batches.back(0, 0, 1.012)
    assert batches.soonest(runs, 1.012) == pytest.approx(0.008), "that one begins when the one before is back"
    assert batches.soonest(runs, 1.024) == 0.0
    assert batches.soonest(runs, 1.030) == 0.0, "never in the past"
