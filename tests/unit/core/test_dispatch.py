"""Which worker is next, how much room is behind a stage, and whom a death makes suspect.

Each is compared with a plain model over random histories; the seed in a message is the history to replay.
"""

from __future__ import annotations

from random import Random

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
from rows import each

HISTORIES = 60
STEPS = 150


def holder(ready, frames=0):
    made = FrameHolder()
    made.ready = ready
    made.frames.extend(SentFrame(i, [], made) for i in range(frames))
    return made


# -- a frame in a worker's hands --------------------------------------------------------------------------------------


def test_a_holder_starts_empty_and_not_ready():
    made = FrameHolder()
    assert not made.ready
    assert len(made.frames) == 0


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


@each("seed", range(HISTORIES))
def test_the_least_busy_worker_is_the_one_a_plain_count_finds(seed):
    random = Random(seed)
    workers, window = [FrameHolder() for _ in range(random.randrange(1, 6))], random.randrange(1, 5)
    held = [0] * len(workers)
    ready = [False] * len(workers)
    for _ in range(STEPS):
        step = random.random()
        place = random.randrange(len(workers))
        if step < 0.3:
            ready[place] = workers[place].ready = not ready[place]
        elif step < 0.5 and held[place]:
            held[place] -= 1
            workers[place].frames.popleft()
        able = [i for i in range(len(workers)) if ready[i] and held[i] < window]
        expected = min(able, key=lambda i: (held[i], i), default=None)
        found = least_busy(workers, window)
        assert found is (None if expected is None else workers[expected]), seed
        if found is not None and step > 0.4:
            held[expected] += 1
            found.frames.append(SentFrame(1, [], found))


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


@each("seed", range(HISTORIES))
def test_a_stage_that_heeds_the_room_never_overfills_the_queue_behind_it(seed):
    random = Random(seed)
    max_queued, max_bytes = random.choice((None, 1, 4, 9)), random.choice((0, 30, 10**6))
    on_the_way, behind = [], []  # the bytes of each item
    for _ in range(STEPS):
        room = room_after(len(behind), sum(behind), len(on_the_way), max_queued=max_queued, max_bytes=max_bytes)
        places = [] if max_queued is None else ["free"] * max_queued
        for _ in [*behind, *on_the_way]:
            places[:1] = []
        blocked = bool(behind) and sum(behind) > max_bytes
        assert room == (0 if blocked else None if max_queued is None else len(places)), seed
        step = random.random()
        if step < 0.4 and room != 0:
            size = random.randrange(1, 6)
            on_the_way += [random.randrange(20) for _ in range(size if room is None else min(size, room))]
        elif step < 0.7 and on_the_way:
            behind.append(on_the_way.pop(0))
        elif behind:
            behind.pop(0)
        assert max_queued is None or len(behind) <= max_queued, seed


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


def test_a_worker_that_held_nothing_leaves_nothing():
    assert sorted_out([]) == ([], [], [])


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


def test_what_is_settled_already_is_nowhere(sent):
    a, b = sent(2, 2)
    a.items[0].state = b.items[1].state = ItemState.SETTLED
    assert sorted_out([a, b]) == (b.items[:1], a.items[1:], [])


class PlainPool:
    """A stage that counts the deaths of each item: none may die more than `tries` times."""

    def __init__(self, tries):
        self.tries = tries
        self.deaths = {}
        """For each item id, how often its worker died while it ran it."""
        self.queue, self.lost = [], []

    def died(self, frames, settled, innocent):
        """The ids in `frames`; what becomes of them, as lists of ids."""
        running = [] if innocent or not frames else [i for i in frames[0] if i not in settled]
        returned = [i for frame in frames for i in frame if i not in settled and i not in running]
        for i in running:
            self.deaths[i] = self.deaths.get(i, 0) + 1
        lost = [i for i in running if self.deaths[i] >= self.tries]
        return returned, [i for i in running if i not in lost], lost


@each("seed", range(HISTORIES))
def test_items_are_sorted_as_one_who_counts_their_deaths_would(seed, item):
    random = Random(seed)
    retry = random.random() < 0.7
    plain, worker = PlainPool(tries=2 if retry else 1), FrameHolder()
    queue = []
    for _ in range(STEPS):
        step = random.random()
        if step < 0.3:
            queue += [item() for _ in range(random.randrange(4))]
        elif step < 0.6 and queue and len(worker.frames) < 3:
            alone = 1 if queue[0].suspect else random.randrange(1, 4)
            items = [queue.pop(0) for _ in range(min(alone, len(queue)))]
            worker.frames.append(SentFrame(0, items, worker))
        elif step < 0.7 and worker.frames:
            for one in worker.frames.popleft().items:
                one.state = ItemState.SETTLED
        elif step < 0.8 and worker.frames:
            random.choice(random.choice(worker.frames).items).state = ItemState.SETTLED  # its caller left
        else:
            innocent = random.random() < 0.3
            frames = [[one.id for one in frame.items] for frame in worker.frames]
            settled = {i.id for frame in worker.frames for i in frame.items if i.state is ItemState.SETTLED}
            found = reclaim(list(worker.frames), innocent=innocent, retry=retry)
            worker.frames.clear()
            lists = [[one.id for one in items] for items in (found.returned, found.suspects, found.lost)]
            assert tuple(lists) == plain.died(frames, settled, innocent), seed
            for one in found.suspects:
                one.suspect = True
            for one in found.lost:
                one.state = ItemState.SETTLED
            queue[:0] = found.suspects + found.returned


def test_who_runs_an_example_or_is_checked_or_is_not_ready_may_be_given_no_batch(item):
    idle, busy, checked, leaving = FrameHolder(), FrameHolder(), FrameHolder(), FrameHolder()
    for worker in (idle, busy, checked):
        worker.ready = True
    busy.frames.append(SentFrame(1, [item()], busy))
    checked.frames.append(SentFrame(2, [], checked))
    leaving.frames.append(SentFrame(3, [item()], leaving))
    assert count_taking([idle, busy, checked, leaving]) == 2
