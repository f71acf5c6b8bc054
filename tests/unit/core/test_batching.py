"""The batching queue, one sentence of its contract at a time."""

from __future__ import annotations

import math

import pytest

from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.cuts import Reason
from penstock.core.lanes import Lane
from penstock.core.tenants import ANYONE, Tenant


def cut(queue, now=0.0, **fields):
    """What `take` gives, as (items, reason), or None."""
    batch = queue.take(now, **fields)
    return None if batch is None else (batch.items, batch.reason)


def test_an_empty_queue_has_no_batch_and_no_moment():
    queue = BatchQueue(Batch(max_wait=0))
    assert cut(queue) is None
    assert queue.next_deadline() is None
    assert len(queue) == 0
    assert queue.nbytes == 0
    assert list(queue) == []


def test_with_no_wait_a_free_worker_takes_what_is_there_at_once(offered):
    queue = BatchQueue(Batch(max_wait=0))
    a = offered(queue, now=1.0)
    assert queue.next_deadline() == 1.0
    assert cut(queue, 1.0) == ([a], Reason.IDLE)
    assert queue.next_deadline() is None


def test_a_lone_item_waits_for_company_until_max_wait(offered):
    queue = BatchQueue(Batch(max_wait=0.010))
    a = offered(queue, now=1.0)
    assert queue.next_deadline() == 1.010
    assert cut(queue, 1.009) is None
    assert cut(queue, 1.010) == ([a], Reason.TIMEOUT)


def test_a_full_batch_waits_for_nothing(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=10))
    a, b = offered(queue), offered(queue)
    assert queue.next_deadline() == 0.0
    assert cut(queue) == ([a, b], Reason.FULL)


def test_a_batch_never_exceeds_max_size_and_the_rest_stays_in_order(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0))
    items = [offered(queue) for _ in range(5)]
    assert cut(queue) == (items[:2], Reason.FULL)
    assert cut(queue) == (items[2:4], Reason.FULL)
    assert cut(queue) == (items[4:], Reason.IDLE)


def test_max_gap_cuts_when_nothing_arrived_for_that_long(offered):
    queue = BatchQueue(Batch(max_wait=1.0, max_idle_gap=0.25))
    a = offered(queue, now=0.0)
    b = offered(queue, now=0.125)
    assert queue.next_deadline() == 0.375
    assert cut(queue, 0.370) is None
    assert cut(queue, 0.375) == ([a, b], Reason.IDLE_GAP)


def test_max_wait_bounds_a_stream_that_never_pauses(offered):
    queue = BatchQueue(Batch(max_wait=1.0, max_idle_gap=0.5))
    items = [offered(queue, now=0.25 * i) for i in range(4)]
    assert queue.next_deadline() == 1.0
    assert cut(queue, 1.0) == (items, Reason.TIMEOUT)


def test_an_item_leaves_early_enough_to_meet_its_deadline(offered):
    queue = BatchQueue(Batch(max_wait=10))
    queue.ran(0.5, 1, 0.0)
    a = offered(queue, now=0.0)
    b = offered(queue, now=0.0, deadline=2.0)
    assert queue.next_deadline() == 1.5
    assert cut(queue, 1.25) is None
    assert cut(queue, 1.5) == ([a, b], Reason.DEADLINE)


def test_an_item_leaves_early_enough_for_the_way_to_the_worker_and_back(offered):
    queue = BatchQueue(Batch(max_wait=10), round_trip_seconds=0.25)
    queue.ran(0.5, 1, 0.0)
    a = offered(queue, deadline=2.0)
    assert queue.next_deadline() == 1.25
    assert cut(queue, 1.125) is None
    assert cut(queue, 1.25) == ([a], Reason.DEADLINE)


def test_the_earliest_deadline_is_found_again_when_its_item_has_left(offered):
    queue = BatchQueue(Batch(max_wait=10))
    soon = offered(queue, deadline=2.0)
    offered(queue, deadline=5.0)
    offered(queue, deadline=4.0)
    queue.discard(soon)
    assert queue.next_deadline() == 4.0


def test_draining_holds_nothing_any_longer(offered):
    queue = BatchQueue(Batch(max_wait=10))
    a = offered(queue, now=1.0)
    queue.draining = True
    assert queue.next_deadline() == 1.0
    assert cut(queue, 1.0) == ([a], Reason.DRAIN)


# -- idle and busy workers --------------------------------------------------------------------------------------------


def test_a_busy_worker_gets_a_full_batch_only(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0))
    a = offered(queue)
    assert cut(queue, 99.0, idle=False) is None
    b = offered(queue)
    assert cut(queue, 99.0, idle=False) == ([a, b], Reason.FULL)


@pytest.mark.parametrize("waiting", [2, 3, 9])
def test_no_more_leave_than_there_is_room_for_behind(offered, waiting):
    queue = BatchQueue(Batch(max_size=4, max_wait=0))
    items = [offered(queue) for _ in range(waiting)]
    reason = Reason.FULL if waiting >= 4 else Reason.IDLE
    assert cut(queue, at_most=1) == (items[:1], reason)
    assert len(queue) == waiting - 1


# -- bulk -------------------------------------------------------------------------------------------------------------


def test_bulk_items_make_their_batch_due_at_once(offered):
    queue = BatchQueue(Batch(max_wait=10))
    a = offered(queue, now=1.0)
    assert cut(queue, 1.0) is None
    b = offered(queue, now=2.0, lane=Lane.BULK)
    assert queue.next_deadline() == 2.0
    assert cut(queue, 2.0) == ([a, b], Reason.BULK)


def test_single_requests_interleave_with_a_large_bulk_call(offered):
    queue = BatchQueue(Batch(max_size=4, max_wait=0))
    bulk = [offered(queue, lane=Lane.BULK) for _ in range(10)]
    singles = [offered(queue) for _ in range(3)]
    assert cut(queue)[0] == [singles[0], bulk[0], singles[1], bulk[1]]
    assert cut(queue)[0] == [singles[2], bulk[2], bulk[3], bulk[4]]


# -- urgency, tenants, deadlines --------------------------------------------------------------------------------------

GOLD, IRON = Tenant("gold", 3.0), Tenant("iron", 1.0)


def test_a_batch_is_of_the_best_urgency_first(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0))
    last, usual = offered(queue, urgency=7), offered(queue)
    bulk, first = offered(queue, urgency=1, lane=Lane.BULK), offered(queue, urgency=1)
    assert [cut(queue)[0] for _ in range(2)] == [[first, bulk], [usual, last]]


@pytest.mark.parametrize("size", [1, 4, 5, 8])
def test_weights_3_and_1_are_served_3_to_1_within_one_batch(offered, size):
    queue = BatchQueue(Batch(max_size=size))
    had = {GOLD: 0, IRON: 0}
    for _ in range(200):
        for tenant in had:
            for _ in range(2 * size):
                offered(queue, tenant=tenant)
        for item in cut(queue)[0]:
            had[item.request.tenant] += 1
        assert abs(had[GOLD] - 3 * had[IRON]) <= 3
    assert sum(had.values()) == 200 * size


def test_the_earliest_deadline_leaves_first_where_that_is_asked_for(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0), by_deadline=True)
    never, late, soon = (offered(queue, deadline=deadline) for deadline in (math.inf, 9.0, 2.0))
    soon_too = offered(queue, deadline=2.0)
    assert cut(queue) == ([soon, soon_too], Reason.FULL)
    queue.put_back([soon, soon_too])
    assert [cut(queue)[0] for _ in range(2)] == [[soon, soon_too], [late, never]]


def test_a_suspect_runs_before_the_most_urgent(offered):
    queue = BatchQueue(Batch(max_size=1, max_wait=0))
    offered(queue, urgency=7)
    suspects = take_as_suspects(queue)
    urgent = offered(queue, urgency=0)
    queue.retry(suspects)
    assert queue.ahead_of(0, urgent.request.tenant, Lane.SINGLE, math.inf) == 2
    assert [cut(queue)[0] for _ in range(2)] == [suspects, [urgent]]


def test_the_newest_item_of_each_line_that_never_ran_is_told_the_worst_urgency_first(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0))
    assert list(queue.newest_unrun()) == []
    offered(queue, tenant=GOLD)
    gold = offered(queue, tenant=GOLD, lane=Lane.BULK)
    offered(queue, tenant=IRON, lane=Lane.BULK)
    iron = offered(queue, tenant=IRON)
    urgent, last = offered(queue, urgency=0), offered(queue, urgency=7)
    offered(queue, lane=Lane.BACK)
    assert next(queue.newest_unrun()) is last
    assert set(queue.newest_unrun()) == {last, gold, iron, urgent}
    assert list(queue.newest_unrun())[-1] is urgent


def test_what_has_run_and_waits_again_is_not_told_as_unrun(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0))
    a, b, c = (offered(queue) for _ in range(3))
    batch = cut(queue)[0]
    a.ran = True
    queue.put_back(batch)
    assert list(queue.newest_unrun()) == [c]
    queue.discard(c)
    assert list(queue.newest_unrun()) == [b]
    queue.discard(b)
    assert list(queue.newest_unrun()) == []


# -- the lane behind the others --------------------------------------------------------------------------------------


def test_back_takes_along_who_waits_for_company(offered):
    queue = BatchQueue(Batch(max_wait=10))
    a = offered(queue, now=1.0)
    b = offered(queue, now=2.0, lane=Lane.BACK)
    assert queue.next_deadline() == 2.0
    assert queue.next_deadline(back=False) == 11.0
    assert cut(queue, 2.0) == ([a, b], Reason.BACKGROUND)


def test_back_fills_what_the_others_leave_of_a_batch(offered):
    queue = BatchQueue(Batch(max_size=4, max_wait=0))
    behind = [offered(queue, lane=Lane.BACK) for _ in range(3)]
    single, bulk = offered(queue), offered(queue, lane=Lane.BULK)
    assert cut(queue) == ([single, bulk, *behind[:2]], Reason.FULL)
    assert cut(queue) == (behind[2:], Reason.BACKGROUND)


def test_back_goes_where_the_others_have_no_room(offered):
    queue = BatchQueue(Batch(max_size=4, max_wait=0))
    a, b, behind = offered(queue), offered(queue), offered(queue, lane=Lane.BACK)
    assert cut(queue, at_most=0, back=False) is None
    assert cut(queue, at_most=0) == ([behind], Reason.BACKGROUND)
    behind = offered(queue, lane=Lane.BACK)
    assert cut(queue, at_most=1) == ([a, behind], Reason.IDLE)
    assert cut(queue) == ([b], Reason.IDLE)


def shares(queue, offered, *, batches, size):
    """How many items of BACK each of so many batches has, while the others could fill every one."""
    counts = []
    for _ in range(batches):
        while queue.front_items < size:
            offered(queue)
        while queue.back_items < size:
            offered(queue, lane=Lane.BACK)
        items = queue.take(0.0, idle=False).items
        assert len(items) == size
        counts.append(sum(item.request.lane == Lane.BACK for item in items))
    return counts


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 4, 32])
def test_the_share_of_back_is_evenly_spread_and_exact_over_time(offered, size, share):
    queue = BatchQueue(Batch(max_size=size), back_share=share)
    had = 0
    for done, count in enumerate(shares(queue, offered, batches=1000, size=size), start=1):
        had += count
        assert had == math.floor(round(done * size * share, 6))
    assert had == round(1000 * size * share)


def test_who_waited_for_nothing_in_back_is_owed_nothing(offered):
    queue = BatchQueue(Batch(max_size=4, max_wait=0), back_share=0.5)
    offered(queue, lane=Lane.BACK)
    [offered(queue) for _ in range(40)]
    assert [len(cut(queue)[0]) for _ in range(5)] == [4] * 5
    assert queue.back_items == 0
    behind = [offered(queue, lane=Lane.BACK) for _ in range(4)]
    assert cut(queue)[0][2:] == behind[:2]


def test_who_has_left_back_with_nothing_to_run_is_owed_nothing(offered):
    queue = BatchQueue(Batch(max_size=4), back_share=0.5)
    left = offered(queue, lane=Lane.BACK, alone=True)
    [offered(queue) for _ in range(4)]
    assert cut(queue)[0] != [left]  # it is owed two items now, where it needs four
    queue.discard(left)
    behind = [offered(queue, lane=Lane.BACK) for _ in range(4)]
    [offered(queue) for _ in range(4)]
    assert cut(queue)[0][2:] == behind[:2]


# -- alone ------------------------------------------------------------------------------------------------------------


def test_an_item_that_is_to_be_alone_ends_the_batch_before_it_and_is_one_itself(offered):
    queue = BatchQueue(Batch(max_size=8, max_wait=10))
    a, b = offered(queue), offered(queue)
    assert cut(queue) is None
    alone, c = offered(queue, alone=True), offered(queue)
    assert queue.next_deadline() == 0.0
    assert cut(queue) == ([a, b], Reason.ISOLATED)
    assert cut(queue) == ([alone], Reason.ISOLATED)
    assert cut(queue) is None
    assert cut(queue, 10.0) == ([c], Reason.TIMEOUT)


def test_nothing_is_sent_ahead_while_an_item_in_front_is_to_be_alone(offered):
    queue = BatchQueue(Batch(max_size=1, max_wait=0))
    alone = offered(queue, alone=True)
    offered(queue)
    assert cut(queue, idle=False) is None
    assert cut(queue) == ([alone], Reason.ISOLATED)
    assert cut(queue, idle=False) is not None


def test_an_item_of_back_that_is_to_be_alone_counts_as_a_full_batch_of_its_share(offered):
    queue = BatchQueue(Batch(max_size=4, max_wait=0), back_share=0.05)
    [offered(queue, lane=Lane.BACK, alone=True) for _ in range(100)]
    reasons = []
    for _ in range(100):
        offered(queue)
        reasons.append(cut(queue)[1])
    assert [place for place, reason in enumerate(reasons) if reason is Reason.ISOLATED] == [19, 39, 59, 79, 99]


# -- back, again, away ------------------------------------------------------------------------------------------------


def test_items_put_back_go_to_the_head_in_their_order(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0))
    a, b, c = (offered(queue, now=float(i), nbytes=2) for i in range(3))
    queue.put_back(queue.take(3.0).items)
    assert list(queue) == [a, b, c]
    assert queue.nbytes == 6
    assert cut(queue, 3.0) == ([a, b], Reason.FULL)


def take_as_suspects(queue):
    """Take a batch whose worker then dies."""
    items = queue.take(99.0).items
    for item in items:
        item.suspect = True
    return items


def test_a_suspect_runs_alone_before_everything_else(offered):
    queue = BatchQueue(Batch(max_size=8, max_wait=10))
    offered(queue, nbytes=3)
    offered(queue, nbytes=4)
    a, b = take_as_suspects(queue)
    waiting = offered(queue)
    queue.retry([a, b])
    assert list(queue) == [a, b, waiting]
    assert (len(queue), queue.nbytes) == (3, 8)
    a.arrived, b.arrived = 1.0, 2.0
    assert queue.next_deadline() == 1.0
    assert cut(queue) == ([a], Reason.RETRY)
    assert cut(queue, idle=False) == ([b], Reason.RETRY)
    assert cut(queue) is None
    assert (len(queue), queue.nbytes) == (1, 1)


@pytest.mark.parametrize("lane", Lane)
def test_a_discarded_item_gives_back_its_bytes_and_never_leaves(offered, lane):
    queue = BatchQueue(Batch(max_wait=0))
    a = offered(queue, nbytes=5, lane=lane)
    b = offered(queue, nbytes=7, lane=lane)
    queue.discard(a)
    assert (len(queue), queue.nbytes) == (1, 7)
    assert cut(queue)[0] == [b]
    assert queue.nbytes == 0


def test_those_whom_a_newcomer_would_overtake_are_of_its_own_line(offered):
    queue = BatchQueue(Batch(max_size=2, max_wait=0), by_deadline=True)
    for deadline in (3.0, 1.0, 2.0):
        offered(queue, deadline=deadline)
    assert queue.deadlines_behind(3, ANYONE, Lane.SINGLE, 1.5) == [2.0, 3.0]
    assert queue.deadlines_behind(3, ANYONE, Lane.BULK, 1.5) == []
    assert queue.deadlines_behind(1, ANYONE, Lane.SINGLE, 1.5) == []
