"""Which worker is next, how much room is behind a stage, and whom a death makes suspect."""

from __future__ import annotations

import pytest

from penstock.core.dispatch import (
    FrameHolder,
    SentFrame,
    count_taking,
    has_begun,
    least_busy,
    may_have_run,
    may_hold_another,
    reclaim,
    room_after,
    room_for_answers,
    room_for_back,
)
from penstock.core.item import OFFER, SEND, ItemState


def holder(ready, frames=0):
    made = FrameHolder()
    made.ready = ready
    made.frames.extend(SentFrame(i, [], made) for i in range(frames))
    return made


# -- a frame in a worker's hands --------------------------------------------------------------------------------------


def test_a_worker_runs_the_oldest_of_its_frames():
    worker = holder(True, frames=2)
    running, ahead = worker.frames
    assert (running.frame_id, ahead.frame_id) == (0, 1)
    assert (running.running, ahead.running) == (True, False)
    worker.frames.popleft()
    assert (running.running, ahead.running) == (False, True)
    worker.frames.clear()
    assert not ahead.running


def test_a_frame_counts_its_items_down_wherever_it_is():
    worker = holder(True)
    sent = SentFrame(0, [None] * 2, worker)
    worker.frames.append(sent)
    assert sent.unsettled == 2
    sent.settled()
    assert sent.unsettled == 1
    sent.settled()  # its holder is told: a slot acts on it
    worker.frames.clear()
    assert sent.unsettled == 0


def test_a_frame_is_sent_ahead_while_another_is_before_it():
    first, second = (worker := holder(True, frames=2)).frames
    strange = SentFrame(9, [None], worker)
    assert [frame.sent_ahead for frame in (first, second, strange)] == [False, True, False]
    strange.settled()  # it was answered: nobody is told
    worker.frames.append(SentFrame(2, [None], worker))
    worker.frames[2].settled()  # its holder is told: a slot has it left out
    worker.frames.popleft()
    assert not second.sent_ahead


# -- which worker -----------------------------------------------------------------------------------------------------


def test_nobody_ready_means_nobody():
    assert least_busy([], 2) is None
    assert least_busy([holder(False)], 2) is None


def test_an_idle_worker_is_served_before_a_busy_one():
    busy, idle = holder(True, 1), holder(True, 0)
    assert least_busy([busy, idle], 2) is idle
    assert least_busy([idle, busy], 2) is idle


def test_of_equals_the_first_is_served():
    for held in (0, 1):
        workers = [holder(True, held) for _ in range(3)]
        assert least_busy(workers, 2) is workers[0]


def test_a_worker_never_gets_more_than_its_window():
    worker = holder(True, 1)
    assert least_busy([worker], 2) is worker
    assert least_busy([worker], 1) is None


def test_a_worker_that_is_not_ready_gets_nothing_even_if_it_holds_nothing():
    busy = holder(True, 1)
    assert least_busy([holder(False), busy], 2) is busy


def batches(*frames):
    """A ready worker that holds a frame of so many items for each of `frames`."""
    made = holder(True)
    made.frames.extend(SentFrame(i, [None] * n, made) for i, n in enumerate(frames))
    return made


@pytest.mark.parametrize(("most", "more"), [(None, True), (1, False), (3, False), (4, True)])
def test_workers_together_hold_no_more_batches_than_the_bound(most, more):
    idle = holder(True)
    workers = [batches(1, 2), idle, batches(4)]
    assert may_hold_another(workers, most) is more
    assert least_busy(workers, 2, most) is (idle if more else None)


def test_a_frame_without_items_is_no_batch_and_takes_no_room_of_the_bound():
    workers = [batches(0), batches(0, 0)]
    assert may_hold_another(workers, 1)
    assert least_busy(workers, 2, 1) is workers[0]
    assert may_hold_another([], 1)


def test_the_batches_of_a_worker_that_is_not_ready_count_until_it_has_ended():
    leaves, idle = batches(1), holder(True)
    leaves.ready = False
    assert least_busy([leaves, idle], 2, 1) is None
    leaves.frames.clear()
    assert least_busy([leaves, idle], 2, 1) is idle


@pytest.mark.parametrize(
    ("queued", "nbytes", "room"),
    [(0, 0, True), (0, 101, True), (1, 100, True), (1, 101, False), (3, 100, True), (4, 4, False), (5, 5, False)],
)
def test_items_of_back_are_sent_on_while_few_of_them_wait_for_the_next_stage(queued, nbytes, room):
    assert room_for_back(queued, nbytes, most=4, max_bytes=100) is room


# -- how much room ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queued", "nbytes", "on_the_way", "max_queued", "room"),
    [
        (0, 0, 0, None, None),
        (9, 100, 9, None, None),
        (1, 101, 0, None, 0),
        (0, 101, 0, None, None),
        (0, 101, 0, 5, 5),
        (1, 101, 0, 5, 0),
        (1, 100, 0, 5, 4),
        (1, 1, 2, 5, 2),
        (2, 1, 3, 5, 0),
        (2, 1, 9, 5, 0),
    ],
)
def test_room_is_what_the_queue_behind_may_still_have(queued, nbytes, on_the_way, max_queued, room):
    assert room_after(queued, nbytes, on_the_way, max_queued=max_queued, max_bytes=100) == room


def test_the_last_stage_is_sent_nothing_while_answers_take_more_than_they_may():
    assert room_for_answers(0, max_bytes=100) is None
    assert room_for_answers(100, max_bytes=100) is None
    assert room_for_answers(101, max_bytes=100) == 0


# -- whose death it is ------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(item):
    """Frames of a worker, each of so many items, oldest first."""

    def send(*sizes):
        worker = FrameHolder()
        for frame_id, size in enumerate(sizes):
            items = [item() for _ in range(size)]
            for one in items:
                one.state = SEND[OFFER[one.state]]
            worker.frames.append(SentFrame(frame_id, items, worker))
        return list(worker.frames)

    return send


def sorted_out(frames, *, innocent=False, retry=True):
    found = reclaim(frames, innocent=innocent, retry=retry)
    return found.returned, found.suspects, found.lost


def test_only_the_oldest_frame_is_suspect_and_what_lay_behind_it_returns(sent):
    a, b, c = sent(2, 1, 2)
    assert sorted_out([a, b, c]) == (b.items + c.items, a.items, [])


def test_a_second_death_is_the_end_of_an_item(sent):
    (frame,) = sent(1)
    frame.items[0].suspect = True
    assert sorted_out([frame]) == ([], [], frame.items)


def test_a_suspect_that_was_sent_ahead_returns(sent):
    a, b = sent(1, 1)
    b.items[0].suspect = True
    assert sorted_out([a, b]) == (b.items, a.items, [])


def test_without_retry_the_first_death_is_the_end(sent):
    a, b = sent(2, 1)
    assert sorted_out([a, b], retry=False) == (b.items, [], a.items)


@pytest.mark.parametrize("retry", [False, True])
def test_a_worker_that_was_ended_by_us_makes_nobody_suspect(sent, retry):
    a, b = sent(1, 2)
    a.items[0].suspect = True
    assert sorted_out([a, b], innocent=True, retry=retry) == (a.items + b.items, [], [])
    assert [item.ran for item in a.items + b.items] == [True] * len(a.items) + [False] * len(b.items)


def test_what_a_worker_ran_that_was_ended_by_us_may_have_run_and_what_lay_behind_it_has_not(sent):
    ran, behind = sent(1, 1)
    sorted_out([ran, behind], innocent=True)
    ran.holder.frames.clear()
    assert [may_have_run(frame.items[0]) for frame in (ran, behind)] == [True, False]
    assert not has_begun(ran.items[0]), "no attempt is counted"


@pytest.mark.parametrize("innocent", [False, True])
def test_what_was_taken_back_from_a_worker_that_ended_is_not_queued_again(sent, innocent):
    a, b = frames = sent(2, 2)
    for frame in frames:
        frame.recalled = frame.items[:1]
    found = reclaim(frames, innocent=innocent, retry=True)
    # It is not known whether the worker had begun with the oldest; it may have died of that.
    expected = (a.items[:1], a.items[1:], []) if innocent else ([], [], a.items)
    assert (found.recalled[:-1], found.returned[:-1], found.suspects) == expected
    assert (found.recalled[-1], found.returned[-1]) == (b.items[0], b.items[1])


def test_what_is_settled_already_is_nowhere(sent):
    a, b = sent(2, 2)
    a.items[0].state = b.items[1].state = ItemState.SETTLED
    assert sorted_out([a, b]) == (b.items[:1], a.items[1:], [])


def test_who_runs_an_example_or_is_checked_or_is_not_ready_may_be_given_no_batch(item):
    idle, busy, checked, leaving = FrameHolder(), FrameHolder(), FrameHolder(), FrameHolder()
    for worker in (idle, busy, checked):
        worker.ready = True
    busy.frames.append(SentFrame(1, [item()], busy))
    checked.frames.append(SentFrame(2, [], checked))
    leaving.frames.append(SentFrame(3, [item()], leaving))
    assert count_taking([idle, busy, checked, leaving]) == 2
