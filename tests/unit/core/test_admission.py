"""Who comes in, who waits, in which order they are fed, and when to come again."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from penstock.core.admission import Admission


def door(max_items=4, max_bytes=100):
    return Admission(max_items, max_bytes)


def feed(admission):
    """Feed all that may come in; the requests, in order."""
    fed = []
    while (request := admission.next_fed()) is not None:
        request.fed += 1
        fed.append(request)
    return fed


def test_there_is_room_for_max_items_and_no_more():
    admission = door(max_items=2)
    for _ in range(2):
        assert admission.has_room()
        admission.enter(bulk=False)
    assert not admission.has_room()
    admission.leave(bulk=False)
    assert admission.has_room()
    assert admission.items == 1


def test_there_is_room_for_max_bytes_and_no_more():
    admission = door(max_bytes=100)
    admission.enter(bulk=False)
    admission.held = 60
    assert admission.has_room(40)
    assert not admission.has_room(41)


def test_one_item_always_passes_however_large():
    admission = door(max_bytes=100)
    assert admission.has_room(10**9)
    admission.enter(bulk=False)
    admission.held = 10**9
    assert not admission.has_room()
    admission.leave(bulk=False)
    assert not admission.has_room(), "bytes can be held with no item in hand: half-received bodies"
    admission.held = 0
    assert admission.has_room(10**9)


def test_those_who_wait_are_fed_in_the_order_they_came(request_of):
    admission = door(max_items=2)
    waiting = [request_of() for _ in range(3)]
    for request in waiting:
        admission.wait(request)
    assert admission.waiting == 3
    assert admission.requests() == waiting
    assert feed(admission) == waiting[:2]
    admission.leave(bulk=False)
    assert feed(admission) == waiting[2:]
    assert (admission.items, admission.waiting) == (2, 0)


def test_nobody_overtakes_a_single_request_that_waits(request_of):
    admission = door()
    admission.wait(request_of())
    assert not admission.has_room()
    assert admission.must_wait(bulk=False)
    feed(admission)
    assert admission.has_room()
    assert not admission.must_wait(bulk=False)


def test_a_bulk_call_waits_behind_others_and_for_its_half(request_of):
    admission = door(max_items=4)
    assert not admission.must_wait(bulk=True)
    admission.wait(request_of(bulk=True))
    assert admission.must_wait(bulk=True)
    assert not admission.must_wait(bulk=False)
    feed(admission)
    assert not admission.must_wait(bulk=True)
    admission.enter(bulk=True)
    assert admission.must_wait(bulk=True)
    admission.leave(bulk=True)
    assert not admission.must_wait(bulk=True)


def test_bulk_calls_get_half_of_the_room_together(request_of):
    admission = door(max_items=6)
    a, b = request_of(10, bulk=True), request_of(10, bulk=True)
    admission.wait(a)
    admission.wait(b)
    assert feed(admission) == [a, b, a]
    assert admission.has_room(), "a large call cannot shut single requests out"


def test_half_of_the_room_is_at_least_one_item(request_of):
    admission = door(max_items=1)
    a = request_of(2, bulk=True)
    admission.wait(a)
    assert feed(admission) == [a]
    admission.leave(bulk=True)
    assert feed(admission) == [a]
    assert admission.waiting == 0


def test_singles_and_bulk_calls_take_turns(request_of):
    admission = door(max_items=8)
    bulk = request_of(8, bulk=True)
    singles = [request_of() for _ in range(3)]
    admission.wait(bulk)
    for request in singles:
        admission.wait(request)
    assert feed(admission) == [singles[0], bulk, singles[1], bulk, singles[2], bulk, bulk]


def test_a_bulk_call_that_is_wholly_fed_no_longer_waits(request_of):
    admission = door(max_items=8)
    bulk = request_of(2, bulk=True)
    admission.wait(bulk)
    assert feed(admission) == [bulk, bulk]
    assert admission.waiting == 0


def test_every_payload_of_a_request_is_fed_whichever_its_lane(request_of):
    admission = door(max_items=8)
    several, other = request_of(3), request_of()
    admission.wait(several)
    admission.wait(other)
    assert feed(admission) == [several, other, several, several]
    assert admission.waiting == 0


@pytest.mark.parametrize("bulk", [False, True])
def test_whoever_waits_is_let_in_when_there_is_room_for_all_of_its_bytes(request_of, bulk):
    admission = door(max_bytes=100)
    admission.held = 60
    request = request_of(2, bulk=bulk)
    request.unfed_bytes = 41
    admission.wait(request)
    assert feed(admission) == []
    admission.held = 59
    assert feed(admission) == [request, request], "once it is in, its further items are held already"
    assert admission.held == 100


def test_one_who_waits_for_bytes_lets_bulk_calls_pass_that_are_in_already(request_of):
    admission = door(max_bytes=100)
    single, bulk = request_of(), request_of(2, bulk=True)
    admission.wait(bulk)
    assert admission.next_fed() is bulk
    bulk.fed += 1
    admission.held = 60
    single.unfed_bytes = 41
    admission.wait(single)
    assert feed(admission) == [bulk]


def test_one_request_passes_however_large_when_nothing_is_held(request_of):
    admission = door(max_bytes=100)
    request = request_of()
    request.unfed_bytes = 10**9
    admission.held = 1
    admission.wait(request)
    assert feed(admission) == []
    admission.held = 0
    assert feed(admission) == [request]
    assert admission.held == 10**9


@pytest.mark.parametrize("bulk", [False, True])
def test_a_request_that_is_forgotten_is_not_fed(request_of, bulk):
    admission = door()
    a, b = request_of(2, bulk=bulk), request_of(2, bulk=bulk)
    admission.wait(a)
    admission.wait(b)
    admission.forget(a)
    admission.forget(a)
    assert admission.requests() == [b]
    assert feed(admission) == [b, b]


def test_random_histories_agree_with_plain_lists(request_of):
    for seed in range(100):
        random = Random(seed)
        admission = door(max_items=random.randrange(1, 8))
        lanes = {False: deque(), True: deque()}
        inside, turn = [], False
        for _ in range(60):
            if random.random() < 0.5:
                request = request_of(random.randrange(1, 5), bulk=random.random() < 0.4)
                admission.wait(request)
                lanes[request.bulk].extend([request] * len(request.payloads))
            elif inside:
                gone = inside.pop(random.randrange(len(inside)))
                admission.leave(gone.bulk)
            request = admission.next_fed()
            share = max(1, admission.max_items // 2)
            open_lanes = [False] * bool(lanes[False])
            if lanes[True] and sum(r.bulk for r in inside) < share:
                open_lanes.append(True)
            if len(inside) >= admission.max_items or not open_lanes:
                assert request is None, seed
                continue
            expected = turn if turn in open_lanes else open_lanes[0]
            turn = not expected
            assert request.bulk is expected, seed
            assert request.fed < len(request.payloads), seed
            request.fed += 1
            lanes[expected].remove(request)
            inside.append(request)
            assert admission.items == len(inside), seed
            assert set(admission.requests()) == {*lanes[False], *lanes[True]}, seed


# -- when to come again -----------------------------------------------------------------------------------------------


def settle(admission, n):
    for _ in range(n):
        admission.enter(bulk=False)
        admission.leave(bulk=False)


def test_retry_after_is_the_queue_divided_by_the_recent_rate():
    admission = door(max_items=1000)
    admission.mark(100.0)
    settle(admission, 50)
    for _ in range(100):
        admission.enter(bulk=False)
    assert admission.retry_after(105.0) == 10, "100 items at 10 a second"


def test_retry_after_is_rounded_up_to_whole_seconds_and_at_least_one():
    admission = door(max_items=1000)
    admission.mark(0.0)
    settle(admission, 100)
    assert admission.retry_after(1.0) == 1, "nothing is queued"
    for _ in range(101):
        admission.enter(bulk=False)
    assert admission.retry_after(1.0) == 2


def test_retry_after_is_at_most_a_minute():
    admission = door(max_items=1000)
    for _ in range(1000):
        admission.enter(bulk=False)
    assert admission.retry_after(5.0) == 60
    admission.mark(5.0)
    assert admission.retry_after(500.0) == 60


def test_only_the_last_ten_seconds_count():
    admission = door(max_items=1000)
    admission.mark(0.0)
    settle(admission, 10_000)
    admission.mark(20.0)
    settle(admission, 10)
    for _ in range(20):
        admission.enter(bulk=False)
    assert admission.retry_after(30.0) == 20, "one a second lately"


def test_a_burst_after_a_quiet_hour_is_measured_by_itself():
    admission = door(max_items=2000)
    admission.mark(0.0)
    admission.mark(3600.0)
    settle(admission, 500)
    for _ in range(1000):
        admission.enter(bulk=False)
    assert admission.retry_after(3600.5) == 2


def test_one_who_has_no_room_yet_does_not_keep_those_waiting_who_are_in(request_of):
    admission = door(max_items=8, max_bytes=100)
    a, b = request_of(3, bulk=True), request_of(3, bulk=True)
    a.unfed_bytes = b.unfed_bytes = 60
    admission.wait(a)
    admission.wait(b)
    assert feed(admission) == [a, a, a], "b comes in when a gives its bytes back"
    admission.held -= 60
    for _ in range(3):
        admission.leave(bulk=True)
    assert feed(admission) == [b, b, b]
    assert admission.waiting == 0
