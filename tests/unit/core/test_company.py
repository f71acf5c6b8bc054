"""How long a free worker waits for company, one sentence of the rule at a time.

A run takes 16 ms where nothing else is said, whatever the size of the batch.  The moments of those who come are in
milliseconds after the start of a decision; `SPANS[6]` is 0.71 ms, for instance.
"""

from __future__ import annotations

import pytest

from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.company import ARRIVED, LONGEST_SPAN, SPANS, Company, Learned
from penstock.core.cuts import Reason
from penstock.core.lanes import Lane
from penstock.core.run_times import RunTimes
from penstock.core.worker_batches import WorkerBatches
from plain_average import plain_average

RUN = 0.016
MS = 0.001
THREE = (0.3, 0.4, 0.6)
"""When those come who are worth waiting for: until `SPANS[6]` all of them have."""


def auto(max_size=8, **fields):
    """A queue that learns, of a stage whose runs are known."""
    queue = BatchQueue(Batch(max_size=max_size, max_wait="auto"), **fields)
    queue.ran(RUN, 1, 0.0)
    return queue


def cut(queue, now, **fields):
    batch = queue.take(now, **fields)
    return None if batch is None else (len(batch.items), batch.reason)


def gather(queue, offered, at, joins, **fields):
    """Have others come so many milliseconds after `at`; returns the size, the reason and the moment of the batch."""
    found, moment = cut(queue, at, **fields), at
    for after in joins:
        while found is None and queue.next_deadline() <= at + after * MS:
            moment = queue.next_deadline()
            found = cut(queue, moment, **fields)
        offered(queue, at + after * MS)
        if found is None:
            moment = at + after * MS
            found = cut(queue, moment, **fields)
    while found is None:
        moment = queue.next_deadline()
        found = cut(queue, moment, **fields)
    return *found, moment


def serve_all(queue, size, now):
    """The batch comes back, and the callers of all others have left."""
    for item in list(queue):
        queue.discard(item)
    queue.ran(RUN, size, now, calls=2)


def arrive(queue, offered, at, joins=THREE, **fields):
    """One window that begins as a single comes where a worker is free; all are gone half a second later."""
    offered(queue, at)
    size, reason, moment = gather(queue, offered, at, joins, **fields)
    serve_all(queue, size, at + 0.5)
    return size, reason, moment


def come_free(queue, offered, at):
    """The one worker comes free at `at`, where a single waits."""
    offered(queue, at - 0.4, lane=Lane.BULK)
    assert cut(queue, at - 0.4) == (1, Reason.BULK)
    offered(queue, at - 0.3)
    queue.ran(RUN, 1, at, calls=2)


def free(queue, offered, at, joins=THREE):
    """One window that begins as the worker comes free where a single waits."""
    come_free(queue, offered, at)
    size, reason, moment = gather(queue, offered, at, joins)
    serve_all(queue, size, at + 0.5)
    return size, reason, moment


def taught(offered, joins=THREE, **fields):
    """A queue to which three came after each single, at 1, 2, 3 and 4 s: it knows by 5 s."""
    queue = auto(**fields)
    for at in (1.0, 2.0, 3.0, 4.0):
        assert arrive(queue, offered, at, joins)[:2] == (1, Reason.IDLE)
    return queue


def until(now, span, passed=0.0):
    """When a hold ends, for those who come within `span` of a decision that was so long ago."""
    return pytest.approx(now + 2 * (span - passed), abs=1e-9)


class Scene:
    """A `Company` by itself, where so many are in hand that all are never here."""

    def __init__(self, *, a=RUN, b=0.0, workers=1, most=None, step=MS):
        self.runs = RunTimes()
        self.runs.add(a + b, 1)
        if b:
            self.runs.add(a + 32 * b, 32)
        self.batches = WorkerBatches(workers, most)
        self.company = Company(self.runs, self.batches, step)
        self.answer(0, 0.25)

    def answer(self, worker, now):
        self.batches.sent(worker, 1, now)
        self.batches.in_hand(1000)
        self.batches.back(worker, 0, now)

    def arrive(self, now):
        self.company.arrived(now, 0)

    def free(self, now, worker=0):
        self.answer(worker, now)
        self.company.asked(now)

    def join(self, now):
        self.company.arrived(now, 1)

    def teach(self, *joins, kind=ARRIVED):
        """Have others come so many milliseconds after four decisions, and begin a fifth one, at 5 s."""
        for at in (1.0, 2.0, 3.0, 4.0):
            (self.arrive, self.free)[kind](at)
            for after in joins:
                self.join(at + after * MS)
        (self.arrive, self.free)[kind](5.0)
        return self

    def hold(self, now=5.0, *, waiting=1, room=100, worker=0, spent=0.0):
        return self.company.hold(waiting, room, worker, now, spent)


# -- decisions --------------------------------------------------------------------------------------------------------


def test_a_decision_begins_when_a_single_comes_where_none_waits_while_a_worker_is_free(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    assert queue.next_deadline() == until(5.0, SPANS[6])


def test_none_begins_when_a_single_comes_while_every_worker_is_busy():
    scene = Scene()
    for at in (1.0, 2.0, 3.0, 4.0, 5.0):
        scene.batches.sent(0, 1, at - 0.5)
        scene.arrive(at)
        scene.join(at + 0.0003)
        scene.answer(0, at + 0.25)
        scene.batches.back(0, 0, at + 0.25)
    scene.arrive(6.0)
    assert scene.hold(6.0) == 0.0


def test_a_decision_begins_at_the_first_take_after_a_worker_came_free_while_singles_wait(offered):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0):
        assert free(queue, offered, at)[:2] == (1, Reason.IDLE)
    come_free(queue, offered, 5.0)
    assert cut(queue, 5.0002) is None
    assert queue.next_deadline() == until(5.0002, SPANS[6]), "the first take"
    assert cut(queue, 5.0004) is None
    assert queue.next_deadline() == until(5.0004, SPANS[6], 0.0002), "the second one begins none"


def test_none_begins_when_a_worker_came_free_where_only_bulk_items_wait(offered):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0, 5.0):
        offered(queue, at, lane=Lane.BULK)
        assert cut(queue, at) == (1, Reason.BULK)
        for after in THREE:
            offered(queue, at + after * MS)
        serve_all(queue, 1, at + 0.5)
    come_free(queue, offered, 6.0)
    assert cut(queue, 6.0) == (1, Reason.IDLE)


def test_a_single_that_comes_to_a_worker_that_came_free_begins_one_decision_not_two(offered):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0):
        free(queue, offered, at)
    offered(queue, 5.0)
    assert cut(queue, 5.0) == (1, Reason.IDLE), "it came to a free worker, and of such nothing was learned"


@pytest.mark.parametrize(
    "fields", [{"lane": Lane.BULK}, {"lane": Lane.BACK}, {"alone": True}], ids=["bulk", "back", "alone"]
)
def test_bulk_items_those_of_back_and_those_that_are_to_be_alone_are_no_arrivals(offered, fields):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0):
        offered(queue, at)
        cut(queue, at)
        for after in THREE:
            offered(queue, at + after * MS, **fields)
        serve_all(queue, 1, at + 0.5)
    offered(queue, 5.0)
    assert cut(queue, 5.0) == (1, Reason.IDLE)


@pytest.mark.parametrize(
    "fields", [{"lane": Lane.BULK}, {"lane": Lane.BACK}, {"alone": True}], ids=["bulk", "back", "alone"]
)
def test_bulk_items_those_of_back_and_those_that_are_to_be_alone_begin_no_decision(offered, fields):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0):
        offered(queue, at, **fields)
        assert cut(queue, at)[0] == 1
        for after in THREE:
            offered(queue, at + after * MS)
        serve_all(queue, 1, at + 0.5)
    offered(queue, 5.0)
    assert cut(queue, 5.0) == (1, Reason.IDLE)


@pytest.mark.parametrize("suspect", [False, True])
def test_items_put_back_and_suspects_are_no_arrivals(offered, suspect):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0):
        offered(queue, at)
        batch = queue.take(at)
        if suspect:
            batch.items[0].suspect = True
            queue.retry(batch.items)
        else:
            queue.put_back(batch.items)
        serve_all(queue, 1, at + 0.5)
    offered(queue, 5.0)
    assert cut(queue, 5.0) == (1, Reason.IDLE)


def test_a_lane_with_a_single_that_was_put_back_is_due_at_once(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    offered(queue, 5.0001)
    assert cut(queue, 5.0001) is None
    queue.put_back(queue.take(5.0001, at_most=1).items)
    assert queue.next_deadline() == 5.0
    assert cut(queue, 5.0002) == (2, Reason.IDLE)


def test_once_what_was_put_back_has_left_singles_are_held_again(offered):
    for leave in (lambda queue, item: queue.discard(item), lambda queue, item: queue.take(5.0)):
        queue = taught(offered)
        first = offered(queue, 5.0)
        batch = queue.take(5.1)
        queue.put_back(batch.items)
        queue.ran(RUN, 0, 5.2)
        leave(queue, first)
        serve_all(queue, 1, 5.5)
        offered(queue, 6.0)
        assert cut(queue, 6.0) is None


# -- what is learned --------------------------------------------------------------------------------------------------


def test_the_mean_and_the_variance_move_by_1_over_windows_and_at_least_a_twentieth():
    learned = Learned()
    counts = [3, 0, 1, 7, 2, 2, 5, 0, 4] * 4
    for windows, count in enumerate(counts, start=1):
        learned.add(1.0, [0.0001] * count, count)
        _, mean, variance = plain_average(counts[:windows])
        assert learned.mean == pytest.approx([mean] * len(SPANS))
        assert learned.variance == pytest.approx([variance] * len(SPANS))
        assert learned.windows == [windows] * len(SPANS)


@pytest.mark.parametrize("way", [1, -1])
def test_where_the_last_windows_are_all_others_the_mean_begins_anew_from_them(way):
    """Lately it is 3 * (1 - 0.75 ** 3) after three of them."""
    learned = Learned()
    common, other = (0, 3) if way == 1 else (3, 0)
    for count in [common] * 20 + [other] * 2:
        learned.add(0.00013, [0.0001] * count, count)
    assert learned.windows[1] == 22
    learned.add(0.00013, [0.0001] * other, other)
    assert learned.windows[:2] == [8, 8]
    changed = 3 * (1 - 0.75**3)
    assert learned.mean[:2] == pytest.approx([changed if way == 1 else 3 - changed] * 2)


def test_in_the_first_eight_windows_it_does_not():
    learned = Learned()
    for count in (0, 0, 0, 0, 0, 9, 9, 9):
        learned.add(0.00013, [0.0001] * count, count)
    assert learned.windows[1] == 8
    assert learned.mean[1] == pytest.approx(27 / 8)


def test_those_count_who_came_within_a_span_of_the_start():
    learned = Learned()
    learned.add(1.0, [0.00012, 0.000125, 0.0003, 0.004, 0.004, 0.09], 1)
    assert learned.mean == [1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6]


def test_those_came_at_once_who_came_before_a_free_worker_first_asked():
    """All four came in one turn, and in the windows that are known both others did; in another one none was asked."""
    scene = Scene()
    for at in (1.0, 2.0, 3.0, 4.0):
        scene.arrive(at)
        scene.join(at + 0.00002)
        scene.join(at + 0.00003)
        scene.company.asked(at + 0.00004)
        scene.join(at + 0.004)
        scene.company.asked(at + 0.004)
    scene.arrive(5.0)
    scene.arrive(6.0)
    assert scene.company._kinds[ARRIVED].mean[:2] == pytest.approx([2.0, 2.0 * 4 / 5])
    assert scene.company._kinds[ARRIVED].windows[:2] == [4, 5]


def test_nothing_is_learned_of_spans_that_are_longer_than_the_window():
    learned = Learned()
    learned.add(SPANS[5], [0.0001], 0)
    learned.add(SPANS[3], [0.0001], 0)
    assert learned.windows == [2, 2, 2, 2, 1, 1, *[0] * 15]
    assert learned.mean == [0, 1, 1, 1, 1, 1, *[0] * 15]


def test_so_many_are_known_to_come_as_within_the_longest_known_span_of_at_most_that_length():
    learned = Learned()
    for _ in range(4):
        learned.add(SPANS[5], [0.0001, 0.0002], 0)
    assert learned.within(0.0001) == 0.0
    assert learned.within(SPANS[2]) == 1.0
    assert learned.within(0.00024) == 1.0
    assert learned.within(0.00025) == 2.0
    assert learned.within(1.0) == 2.0
    learned.add(1.0, [0.0001, 0.0002, 0.005], 0)
    assert learned.within(1.0) == 2.0, "of longer ones there was but one window"


def test_between_two_spans_they_come_evenly():
    learned = Learned()
    for _ in range(4):
        learned.add(1.0, [0.00002, 0.0001, 0.00018], 1)
    assert learned.by(0.0, 1) == pytest.approx(1.0)
    assert learned.by(0.000025, 1) == pytest.approx(1.0 + 0.2)
    assert learned.by(SPANS[2], 3) == pytest.approx(2.0)
    assert learned.by((SPANS[2] + SPANS[3]) / 2, 3) == pytest.approx(2.5)
    assert learned.by(0.05, 20) == pytest.approx(3.0)


def known_of(mean, variance, windows=39):
    learned = Learned()
    learned.mean[6], learned.variance[6], learned.windows[6] = mean, variance, windows
    return learned


def test_of_callers_who_all_come_back_one_who_has_come_is_one_less_to_come():
    for by_now in (0.0, 0.5, 3.0):
        assert known_of(4.0, 0.0).still_to_come(6, by_now, 1) == pytest.approx(3.0)
    assert known_of(4.0, 0.0).still_to_come(6, 1.0, 5) == 0.0, "more than ever"


@pytest.mark.parametrize("joined", [0, 1, 7])
def test_of_requests_at_random_those_who_came_say_nothing_about_the_others(joined):
    """A Poisson count: its variance is its mean.  The error of the mean is 2 / 39 ** 0.5."""
    assert known_of(4.0, 4.0).still_to_come(6, 1.0, joined) == pytest.approx(3.0 * (1 - 1.5 * 2 / 39**0.5 / 4.0))


def test_of_bursts_of_any_size_many_mean_that_more_are_to_come():
    """A negative binomial count: 3 have come where 1 usually has, so 40 / 24 times as many are to come."""
    error = 1.5 * (12 / 10) ** 0.5 / 4.0
    assert known_of(4.0, 12.0, 10).still_to_come(6, 1.0, 3) == pytest.approx(3.0 * (40 / 24 - error))
    assert known_of(4.0, 12.0, 100).still_to_come(6, 1.0, 1) == pytest.approx(3.0 * (1 - 1.5 * (12 / 39) ** 0.5 / 4.0))


def test_an_average_that_has_fallen_for_a_day_is_nobody():
    learned = Learned()
    for count in [1, *[0] * 20_000]:
        learned.add(0.00013, [0.0001] * count, 0)
    assert 0.0 < learned.mean[1] < 1e-200
    assert learned.still_to_come(1, learned.by(0.00001, 1), 0) == 0.0


def test_nobody_is_to_come_where_all_should_have_come_or_nothing_is_sure():
    assert known_of(4.0, 2.0).still_to_come(6, 4.0, 0) == 0.0
    assert known_of(0.0, 0.0).still_to_come(6, 0.0, 0) == 0.0
    assert known_of(0.1, 0.3, 4).still_to_come(6, 0.0, 0) == 0.0


def test_those_who_come_later_than_the_longest_span_are_not_kept(offered):
    scene = Scene()
    for at in range(1, 6):
        scene.arrive(float(at))
        scene.join(at + LONGEST_SPAN + 0.001)
    scene.arrive(6.0)
    assert scene.hold(6.0) == 0.0


def test_nothing_is_held_before_four_windows_of_the_kind(offered):
    queue = auto()
    assert [arrive(queue, offered, at)[1] for at in (1.0, 2.0, 3.0, 4.0, 5.0)] == [Reason.IDLE] * 4 + [Reason.ADAPTIVE]
    assert [free(queue, offered, at)[1] for at in (6.0, 7.0, 8.0, 9.0, 10.0)] == [Reason.IDLE] * 4 + [Reason.ADAPTIVE]


def test_nothing_is_held_for_a_span_before_four_windows_were_as_long():
    scene = Scene()
    for at in range(1, 6):
        scene.arrive(float(at))
        scene.join(at + 0.0003)
        scene.join(at + 0.0006)
        scene.arrive(at + 0.0005)
        scene.join(at + 0.0006)
    scene.arrive(6.0)
    assert scene.hold(6.0) == until(6.0, SPANS[4])


# -- what a hold is worth ---------------------------------------------------------------------------------------------


def test_the_more_company_is_expected_the_longer_is_held():
    assert Scene().teach(0.3).hold() == until(5.0, SPANS[4])
    assert Scene().teach(0.3, 0.4, 0.6).hold() == until(5.0, SPANS[6])
    assert Scene().teach(0.3, 0.4, 0.6, 2.5, 2.6).hold() == until(5.0, SPANS[10])


def test_where_nobody_is_expected_nothing_is_held():
    assert Scene().teach().hold() == 0.0


def test_a_hold_is_worth_what_it_spares_each_who_comes_less_the_wait_of_those_who_are_here():
    """Where two wait for one: 16 - h - 2 h ms, of which a twentieth of the 3 * 16 ms of the run is the least."""
    assert Scene().teach(3.9).hold(waiting=2) == until(5.0, SPANS[11])  # 16 - 3 * 4 = 4 ms
    assert Scene().teach(4.1).hold(waiting=2) == 0.0  # 16 - 3 * 5.66 < 0


def test_those_are_not_expected_any_more_who_should_have_come_by_now():
    scene = Scene().teach(0.3, 0.4, 0.6)
    assert scene.hold(5.00055) == until(5.00055, SPANS[6], 0.00055)
    assert scene.hold(5.00075) == 0.0
    scene = Scene().teach(0.3, 0.4, 0.6, 1.2)
    assert scene.hold(5.00075) == until(5.00075, SPANS[8], 0.00075)


def test_those_are_not_expected_any_more_who_have_come_sooner_than_usual():
    scene = Scene().teach(0.05)
    assert scene.hold(5.0001) == until(5.0001, SPANS[1], 0.0001)
    scene.join(5.0001)
    assert scene.hold(5.0001) == 0.0
    scene = Scene().teach(0.13)
    scene.join(5.0001)
    assert scene.hold(5.00011) == 0.0


def test_each_other_free_worker_takes_one_of_those_who_come():
    assert Scene(workers=2).teach(0.3).hold() == 0.0
    assert Scene(workers=2).teach(0.3, 0.4).hold() == until(5.0, SPANS[5])
    assert Scene(workers=3).teach(0.3, 0.4).hold() == 0.0


def test_max_batches_bounds_who_is_free():
    assert Scene(workers=3, most=1).teach(0.3).hold() == until(5.0, SPANS[4])
    assert Scene(workers=3, most=2).teach(0.3).hold() == 0.0


def test_no_more_are_expected_than_there_is_room_for():
    assert Scene().teach(0.3, 0.6).hold(room=2) == until(5.0, SPANS[6])
    assert Scene().teach(0.3, 0.6).hold(room=1) == until(5.0, SPANS[4])
    assert Scene().teach(0.3, 0.6).hold(room=0) == 0.0


def test_the_room_is_what_max_size_and_the_next_stage_leave(offered):
    for fields, at_most in (({"max_size": 2}, None), ({"max_size": 8}, 2), ({"max_size": 2}, 8)):
        queue = taught(offered, (0.3, 0.6), **fields)
        offered(queue, 5.0)
        assert cut(queue, 5.0, at_most=at_most) is None
        assert queue.next_deadline() == until(5.0, SPANS[4])
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0, at_most=1) == (1, Reason.IDLE)


def test_where_other_workers_are_free_one_who_comes_runs_alone():
    """a = 10 ms, b = 2 ms, three wait: such a one waits a + b, or, where nobody else is free, a + 3 b."""
    assert Scene(a=0.010, b=0.002, workers=2).teach(0.4, 0.45).hold(waiting=3) == until(5.0, SPANS[5])
    assert Scene(a=0.010, b=0.002, workers=2).teach(0.6, 0.65).hold(waiting=3) == 0.0
    assert Scene(a=0.010, b=0.002).teach(0.6).hold(waiting=3) == until(5.0, SPANS[6])


def busy_scene(began, *joins, batches=1):
    """A free worker, and one whose first batch began so many milliseconds before the decision, at 5 s."""
    scene = Scene(workers=2)
    scene.batches.sent(1, 1, 0.5)
    scene.teach(*joins)
    scene.batches.back(1, 0, 4.5)
    for _ in range(batches):
        scene.batches.sent(1, 1, 5.0 - began * MS)
    return scene


def test_where_a_busy_worker_is_soon_back_one_who_comes_waits_a_quarter_less_of_the_rest():
    """To wait 5.66 ms for one is worth T - 11.31 ms, and must be worth 1.6 ms: T = 12 ms + a quarter of the rest."""
    assert busy_scene(0.0, 5.0).hold() == until(5.0, SPANS[12])
    assert busy_scene(12.0, 5.0).hold() == until(5.0, SPANS[12])  # 13 ms
    assert busy_scene(12.7, 5.0).hold() == 0.0  # 12.8 ms
    assert busy_scene(99.0, 5.0).hold() == 0.0


def idle_scene(idle, *joins):
    """The worker had been free for so many milliseconds when a single came; returns the scene and that moment."""
    scene = Scene().teach(*joins)
    for after in joins:
        scene.join(5.0 + after * MS)
    scene.answer(0, 6.0)
    scene.arrive(6.0 + idle * MS)
    return scene, 6.0 + idle * MS


@pytest.mark.parametrize(("idle", "held"), [(8.5, True), (9.0, False), (15.9, False)])
def test_the_longer_a_worker_had_been_free_the_less_a_hold_spares(idle, held):
    """To wait 2.83 ms for one is worth 16 - u - 5.66 ms, and must be worth 1.6 ms."""
    scene, now = idle_scene(idle, 2.5)
    assert scene.hold(now) == (until(now, SPANS[10]) if held else 0.0)


def test_a_worker_that_had_been_free_longer_than_a_run_when_a_single_came_may_as_well_be_held():
    scene, now = idle_scene(16.1, 2.5)
    assert scene.hold(now) == until(now, SPANS[10])


def test_no_hold_is_longer_than_the_fixed_part_of_a_run_when_its_timer_rings():
    """To hold 2.12 ms takes a timer 3 ms, or, in steps of 2 ms, 4 ms."""
    assert Scene(a=0.0031).teach(1.3, 1.3).hold() == until(5.0, SPANS[8])
    assert Scene(a=0.0029).teach(1.3, 1.3).hold() == 0.0
    assert Scene(a=0.0031, step=0.002).teach(1.3, 1.3).hold() == 0.0
    assert Scene(a=0.0041, step=0.002).teach(1.3, 1.3).hold() == until(5.0, SPANS[8])
    assert Scene(a=0.0005).teach(0.1, 0.1).hold() == 0.0, "no timer rings so soon"


def test_nobody_is_held_longer_than_the_fixed_part_of_a_run_however_often_it_is_decided_anew(offered, item):
    """While one worker is held, another comes free again and again: each time a decision begins, and many may come."""
    queue = auto(workers=3, max_size=999)
    for at in (1.0, 2.0, 3.0, 4.0, 5.0):
        for worker, size in ((0, 1), (1, 1), (2, 500)):
            for _ in range(size):
                offered(queue, at - 0.4, lane=Lane.BULK)
            assert cut(queue, at - 0.4, worker=worker) == (size, Reason.BULK)
        offered(queue, at - 0.3)
        queue.ran(RUN, 1, at, 0, calls=2)
        if at < 5.0:
            assert cut(queue, at) == (1, Reason.IDLE)
            for _ in range(40):
                offered(queue, at + 0.0003)
            for worker in (1, 2):
                queue.ran(RUN, 1, at + 0.4, worker, calls=2)
            serve_all(queue, 1, at + 0.5)
    assert cut(queue, 5.0) is None
    queue.ran(RUN, 1, 5.0, 1, calls=2)
    now, found = 5.0, None
    while found is None:
        now += 0.0004
        queue.retry([item()])
        assert cut(queue, now, worker=1) == (1, Reason.RETRY)
        queue.ran(RUN, 1, now, 1, calls=2)
        assert queue.next_deadline() <= 5.0 + RUN
        found = cut(queue, now)
    assert found == (1, Reason.ADAPTIVE)
    assert RUN - 0.002 < now - 5.0 < RUN


def test_with_one_worker_those_who_come_later_in_the_run_wait_too():
    """To wait 2 ms for one is worth 16 - 2 - 2 ms, less 2 ms for each of six who come after 10 ms."""
    later = [10.0] * 6
    assert Scene().teach(1.9).hold() == until(5.0, SPANS[9])
    assert Scene().teach(1.9, *later).hold() == 0.0
    assert Scene().teach(1.9, *[17.0] * 6).hold() == until(5.0, SPANS[9]), "those come after the run"
    assert busy_scene(0.0, 1.9, *later).hold() == until(5.0, SPANS[9])
    assert Scene(workers=2, most=1).teach(1.9, *later).hold() == 0.0, "no two run at once"


# -- asked again, and cut ---------------------------------------------------------------------------------------------


def test_the_hold_is_decided_anew_at_each_take_and_the_next_deadline_is_the_answer(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert queue.next_deadline() == 5.0, "nobody has asked"
    assert cut(queue, 5.0) is None
    assert queue.next_deadline() == until(5.0, SPANS[6])
    assert cut(queue, 5.0004) is None
    assert queue.next_deadline() == until(5.0004, SPANS[6], 0.0004)
    assert cut(queue, 5.00065) is None
    assert queue.next_deadline() == until(5.00065, SPANS[6], 0.00065)


def test_when_the_hold_has_run_out_the_batch_is_cut_for_patience(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    assert cut(queue, queue.next_deadline()) == (1, Reason.ADAPTIVE_TIMEOUT)


def test_when_it_is_not_worth_waiting_any_longer_the_batch_is_cut_for_company(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    assert cut(queue, 5.00072) == (1, Reason.ADAPTIVE)


def test_when_all_are_here_the_batch_is_cut_for_company(offered):
    assert arrive(taught(offered), offered, 5.0) == (4, Reason.ADAPTIVE, pytest.approx(5.0006))


def test_who_is_not_worth_holding_for_goes_at_once_because_a_worker_is_idle(offered):
    queue = taught(offered, ())
    offered(queue, 5.0)
    assert cut(queue, 5.0) == (1, Reason.IDLE)
    assert queue.last_hold == 0.0


def test_an_item_leaves_early_enough_to_meet_its_deadline(offered):
    """A run takes 16 ms, and 2 ms the way to the worker and back."""
    queue = taught(offered, round_trip_seconds=0.002)
    offered(queue, 5.0, deadline=5.0185)
    assert cut(queue, 5.0) is None
    assert queue.next_deadline() == pytest.approx(5.0005)
    assert cut(queue, queue.next_deadline()) == (1, Reason.DEADLINE)


def test_draining_ends_the_hold(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    queue.draining = True
    assert queue.next_deadline() == 5.0
    assert cut(queue, 5.0001) == (1, Reason.DRAIN)


@pytest.mark.parametrize(
    ("fields", "size", "reason"),
    [
        ({"lane": Lane.BULK}, 2, Reason.BULK),
        ({"lane": Lane.BACK}, 2, Reason.BACKGROUND),
        ({"alone": True}, 1, Reason.ISOLATED),
    ],
    ids=["bulk", "back", "alone"],
)
def test_those_who_wait_for_nobody_end_the_hold(offered, fields, size, reason):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    offered(queue, 5.0001, **fields)
    assert queue.next_deadline() <= 5.0001
    assert cut(queue, 5.0001) == (size, reason)
    assert queue.held_seconds == pytest.approx(0.0001)


def test_one_of_back_that_is_to_be_alone_ends_the_hold_and_goes_after_those_who_are_held(offered):
    queue = taught(offered, workers=1)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    offered(queue, 5.0001, lane=Lane.BACK, alone=True)
    assert queue.next_deadline() <= 5.0001
    assert cut(queue, 5.0001) == (1, Reason.BACKGROUND)
    queue.ran(RUN, 1, 5.0001 + RUN, 0)
    assert cut(queue, 5.0001 + RUN) == (1, Reason.ISOLATED)


def test_while_the_hold_lasts_no_free_worker_takes(offered):
    queue = auto(workers=2)
    for at in (1.0, 2.0, 3.0, 4.0):
        offered(queue, at - 0.4, lane=Lane.BULK)
        cut(queue, at - 0.4, worker=1)
        arrive(queue, offered, at)
        queue.ran(RUN, 1, at + 0.5, 1, calls=2)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    assert cut(queue, 5.0001, worker=1) is None
    assert cut(queue, queue.next_deadline(), worker=1) == (1, Reason.ADAPTIVE_TIMEOUT)


def test_after_a_cut_the_hold_is_decided_on_from_the_start(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    assert cut(queue, queue.next_deadline()) == (1, Reason.ADAPTIVE_TIMEOUT)
    serve_all(queue, 1, 5.5)
    offered(queue, 6.0)
    assert queue.next_deadline() == 6.0
    assert cut(queue, 6.0) is None


def test_when_all_callers_have_left_the_hold_has_ended(offered):
    queue = taught(offered)
    item = offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    queue.discard(item)
    assert queue.next_deadline() is None
    offered(queue, 6.0)
    assert queue.next_deadline() == 6.0
    assert cut(queue, 6.0) is None
    assert queue.next_deadline() == until(6.0, SPANS[6])


def test_a_stage_of_batches_of_one_holds_nobody(offered):
    queue = auto(max_size=1)
    for at in (1.0, 2.0, 3.0, 4.0, 5.0):
        offered(queue, at)
        assert queue.next_deadline() == at
        assert cut(queue, at) == (1, Reason.FULL)
        for after in THREE:
            offered(queue, at + after * MS)
        serve_all(queue, 1, at + 0.5)


# -- workers that come and go -----------------------------------------------------------------------------------------


def become(queue, seconds, now):
    """Runs of one item take so long from now on."""
    for _ in range(100):
        queue.ran(seconds, 1, now)


def test_nothing_is_counted_while_runs_are_so_short_that_no_timer_could_end_a_hold_in_time(offered):
    queue = BatchQueue(Batch(max_size=8, max_wait="auto"), timer_step=MS)
    queue.ran(0.0009, 1, 0.0)
    for at in (1.0, 2.0, 3.0, 4.0):
        assert arrive(queue, offered, at)[:2] == (1, Reason.IDLE)
    queue.ran(RUN, 1, 4.9)
    for at in (5.0, 6.0, 7.0, 8.0):
        assert arrive(queue, offered, at)[:2] == (1, Reason.IDLE), "the four that are to be seen"
    assert arrive(queue, offered, 9.0)[:2] == (4, Reason.ADAPTIVE)


def test_a_window_in_which_runs_become_so_short_is_dropped(offered):
    queue = taught(offered)
    assert arrive(queue, offered, 5.0)[:2] == (4, Reason.ADAPTIVE)
    offered(queue, 6.0)
    become(queue, 0.0001, 6.0)
    offered(queue, 6.0001)
    assert cut(queue, 6.0001) == (2, Reason.IDLE)
    become(queue, RUN, 6.0002)
    queue.ran(RUN, 2, 6.1)
    assert arrive(queue, offered, 7.0)[:2] == (4, Reason.ADAPTIVE), "nothing was learned of one that came alone"


def test_a_stage_that_has_become_faster_holds_for_no_longer_than_its_last_runs(offered):
    queue = taught(offered)
    for _ in range(3):
        queue.ran(0.0011, 1, 4.9)
    assert queue.runs.fixed > 0.004
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    assert queue.next_deadline() - 5.0 <= 0.0011


def test_who_is_held_when_runs_become_so_short_is_cut_for_company(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    become(queue, 0.0001, 5.0)
    assert cut(queue, 5.0001) == (1, Reason.ADAPTIVE)
    assert queue.held_seconds == pytest.approx(0.0001)
    queue.ran(0.0001, 1, 5.0002)
    offered(queue, 6.0)
    assert cut(queue, 6.0) == (1, Reason.IDLE)


def test_while_no_worker_is_there_nothing_is_held(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    queue.workers = 0
    assert queue.next_deadline() == 5.0
    assert cut(queue, 5.0001) == (1, Reason.IDLE)


def test_the_window_in_which_no_worker_is_left_teaches_nothing(offered):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        assert arrive(queue, offered, at)[:2] == (1, Reason.IDLE)
        queue.workers = 0
        queue.workers = 1


def test_who_comes_while_no_worker_is_there_teaches_nothing(offered):
    queue = taught(offered)
    queue.workers = 0
    for n in range(50):
        offered(queue, 4.6 + 0.001 * n)
    for item in list(queue):
        queue.discard(item)
    queue.workers = 1
    assert arrive(queue, offered, 5.0)[1:] == (Reason.IDLE, 5.0), "the fourth window was dropped"
    assert arrive(queue, offered, 6.0)[0] == 4


def test_workers_that_come_count_as_come_free(offered):
    queue = auto()
    for at in (1.0, 2.0, 3.0, 4.0):
        free(queue, offered, at)
    queue.discard(offered(queue, 5.0))
    queue.workers = 0
    queue.lost(0, 5.5)
    offered(queue, 5.9)
    queue.workers = 1
    assert cut(queue, 6.0) is None
    assert queue.next_deadline() == until(6.0, SPANS[6])


def test_fewer_workers_or_as_many_as_before_do_not_count_as_come_free(offered):
    queue = auto(workers=2)
    for at in (1.0, 2.0, 3.0, 4.0):
        free(queue, offered, at)
    queue.lost(0, 4.8)
    offered(queue, 4.9)
    for workers in (2, 1, 1):
        queue.workers = workers
        assert cut(queue, 5.0, at_most=0) is None
    assert queue.workers == 1
    assert cut(queue, 5.0) == (1, Reason.IDLE)


def test_a_lost_worker_is_forgotten_with_its_batch_and_teaches_nothing(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    gather(queue, offered, 5.0, ())
    queue.lost(0, 5.1)
    assert queue.runs.expected(1) == RUN
    offered(queue, 6.0)
    assert cut(queue, 6.0) is None, "the worker is free"


def test_a_batch_that_was_not_sent_leaves_the_worker_free(offered):
    queue = taught(offered)
    offered(queue, 5.0)
    gather(queue, offered, 5.0, ())
    queue.unsent(0)
    offered(queue, 6.0)
    assert cut(queue, 6.0) is None


def test_workers_of_a_fixed_policy_need_no_account(offered):
    queue = BatchQueue(Batch(max_wait=0.010))
    queue.lost(0, 1.0)
    queue.unsent(0)
    queue.workers = 2
    offered(queue, 1.0)
    assert cut(queue, 1.0) is None


# -- a fixed wait, after idleness -------------------------------------------------------------------------------------


@pytest.fixture
def idle_queue(offered):
    """A queue that holds for 0.25 s, but not who comes where a worker was free for longer; its own is free from 1 s."""
    queue = BatchQueue(Batch(max_size=4, max_wait=0.25, delay_when_idle=False))
    use(queue, offered, 0.5, 1.0)
    return queue


def use(queue, offered, start, end):
    """Have the worker run a job from `start` to `end`."""
    offered(queue, start, lane=Lane.BACK, alone=True)
    assert cut(queue, start) == (1, Reason.ISOLATED)
    queue.ran(end - start, 1, end, calls=2)


def test_who_comes_where_a_worker_was_free_longer_than_max_wait_is_not_held(offered, idle_queue):
    offered(idle_queue, 1.3)
    assert idle_queue.next_deadline() == 1.3
    assert cut(idle_queue, 1.3) == (1, Reason.IDLE)


def test_who_comes_where_a_worker_was_free_for_max_wait_is_held(offered, idle_queue):
    offered(idle_queue, 1.25)
    assert cut(idle_queue, 1.25) is None
    assert cut(idle_queue, 1.5) == (1, Reason.TIMEOUT)


def test_who_comes_while_every_worker_is_busy_is_held(offered, idle_queue):
    offered(idle_queue, 1.5, lane=Lane.BULK)
    assert cut(idle_queue, 1.5) == (1, Reason.BULK)
    offered(idle_queue, 1.9)
    idle_queue.ran(0.5, 1, 2.0)
    assert cut(idle_queue, 2.0) is None
    assert idle_queue.next_deadline() == 2.15


def test_who_comes_where_a_worker_has_had_no_batch_is_not_held(offered):
    queue = BatchQueue(Batch(max_wait=0.25, delay_when_idle=False), workers=2)
    use(queue, offered, 0.5, 1.0)
    offered(queue, 1.0)
    assert cut(queue, 1.0) == (1, Reason.IDLE)


def test_who_is_held_goes_with_one_who_is_not(offered, idle_queue):
    offered(idle_queue, 1.2)
    offered(idle_queue, 1.26)
    assert cut(idle_queue, 1.26) == (2, Reason.IDLE)
    idle_queue.ran(0.1, 2, 1.4)
    offered(idle_queue, 1.5)
    assert cut(idle_queue, 1.5) is None


@pytest.mark.parametrize("fields", [{"lane": Lane.BULK}, {"lane": Lane.BACK}, {"alone": True}])
def test_only_singles_that_may_run_with_others_end_the_hold_of_others_so(offered, idle_queue, fields):
    idle_queue.discard(offered(idle_queue, 1.5, **fields))
    use(idle_queue, offered, 1.5, 2.0)
    offered(idle_queue, 2.1)
    assert cut(idle_queue, 2.1) is None


def test_one_who_left_before_it_was_taken_ends_the_hold_of_nobody(offered, idle_queue):
    idle_queue.discard(offered(idle_queue, 1.3))
    use(idle_queue, offered, 1.4, 1.5)
    offered(idle_queue, 1.6)
    assert cut(idle_queue, 1.6) is None


def test_one_who_is_not_held_is_not_held_later_either(offered, idle_queue):
    offered(idle_queue, 1.3)
    offered(idle_queue, 1.31, lane=Lane.BACK)
    assert cut(idle_queue, 1.31, at_most=0) == (1, Reason.BACKGROUND)
    idle_queue.ran(0.1, 1, 1.4)
    assert cut(idle_queue, 1.4) == (1, Reason.IDLE)


# -- what is told of holds --------------------------------------------------------------------------------------------


def test_the_last_hold_and_the_time_held_are_told_of_a_hold_that_is_learned(offered):
    queue = taught(offered)
    assert (queue.last_hold, queue.held_seconds) == (0.0, 0.0)
    offered(queue, 5.0)
    cut(queue, 5.0)
    assert queue.last_hold == pytest.approx(2 * SPANS[6])
    assert queue.held_seconds == 0.0, "it goes on"
    assert cut(queue, 5.0004) is None
    assert queue.last_hold == pytest.approx(0.0004 + 2 * (SPANS[6] - 0.0004)), "from the start of the hold"
    assert cut(queue, 5.0008) == (1, Reason.ADAPTIVE)
    assert queue.held_seconds == pytest.approx(0.0008)
    assert queue.last_hold > 0.0
    queue.workers = 0
    queue.workers = 1
    offered(queue, 6.0, lane=Lane.BULK)
    cut(queue, 6.0)
    assert queue.last_hold == 0.0


def test_the_last_hold_and_the_time_held_are_told_of_a_fixed_hold(offered):
    queue = BatchQueue(Batch(max_wait=0.25))
    offered(queue, 1.0)
    assert cut(queue, 1.0) is None
    assert cut(queue, 1.125) is None
    assert (queue.last_hold, queue.held_seconds) == (0.25, 0.0)
    assert cut(queue, 1.25) == (1, Reason.TIMEOUT)
    assert (queue.last_hold, queue.held_seconds) == (0.25, 0.25)
    offered(queue, 2.0)
    cut(queue, 2.0)
    cut(queue, 2.25)
    assert queue.held_seconds == 0.5
    offered(queue, 3.0)
    assert cut(queue, 3.5) == (1, Reason.TIMEOUT)
    assert (queue.last_hold, queue.held_seconds) == (0.0, 0.5), "no worker was free before"


def test_a_hold_of_those_who_left_was_none(offered):
    queue = BatchQueue(Batch(max_wait=0.25))
    item = offered(queue, 1.0)
    assert cut(queue, 1.0) is None
    queue.discard(item)
    assert queue.held_seconds == 0.0
    offered(queue, 2.0)
    assert cut(queue, 2.125) is None
    assert queue.last_hold == 0.125


@pytest.mark.parametrize("wait", ["auto", 0.25])
def test_a_hold_ends_when_no_worker_is_left(offered, wait):
    queue = taught(offered)
    if wait != "auto":
        queue = BatchQueue(Batch(max_wait=wait))
    offered(queue, 5.0)
    assert cut(queue, 5.0) is None
    queue.workers = 0
    queue.workers = 1
    assert cut(queue, 7.0)[1] in {Reason.IDLE, Reason.TIMEOUT}
    assert queue.held_seconds == 0.0
