"""Who comes in, who waits, and in which order they are fed."""

from __future__ import annotations

from penstock.core.admission import Admission
from penstock.core.item import Item
from penstock.core.lanes import Lane
from penstock.core.tenants import Tenant


def door(max_items=4, max_bytes=100):
    return Admission(max_items, max_bytes)


def next_item(admission, request):
    """The item of the next payload of `request`, which was just counted in; the payloads share its bytes."""
    left = len(request.payloads) - request.fed
    item = Item(1, b"", request.unfed_bytes // left, request, request.fed)
    admission.ledger.feed(item)
    return item


def let_in(admission, request):
    """Let `request` in; its first item."""
    admission.let_in(request)
    return next_item(admission, request)


def feed_items(admission):
    """Feed all that may come in; the items, in order."""
    fed = []
    while (request := admission.feed_next()) is not None:
        fed.append(next_item(admission, request))
    return fed


def feed(admission):
    """Feed all that may come in; the requests, in order."""
    return [item.request for item in feed_items(admission)]


def test_there_is_room_for_max_items_and_no_more(request_of):
    admission = door(max_items=2)
    items = []
    for _ in range(2):
        assert admission.has_room()
        items.append(let_in(admission, request_of()))
    assert not admission.has_room()
    admission.settle(items[0])
    assert admission.has_room()
    assert admission.items == 1


def test_there_is_room_for_max_bytes_and_no_more(request_of):
    admission = door(max_bytes=100)
    let_in(admission, request_of(nbytes=60))
    assert admission.has_room(40)
    assert not admission.has_room(41)
    admission.ledger.hold(40)
    assert admission.has_room(), "room for a request that takes nothing"


def test_one_item_always_passes_however_large(request_of):
    admission = door(max_bytes=100)
    assert admission.has_room(10**9)
    item = let_in(admission, request_of(nbytes=10**9))
    assert not admission.has_room()
    admission.ledger.hold(101)
    admission.settle(item)
    assert not admission.has_room(), "bytes can be held with no item in hand: half-received bodies"
    admission.ledger.hold(-101)
    assert admission.has_room(10**9)


def test_those_who_wait_are_fed_in_the_order_they_came(request_of):
    admission = door(max_items=2)
    waiting = [request_of() for _ in range(3)]
    for request in waiting:
        admission.line_up(request)
    assert admission.waiting == 3
    assert admission.requests() == waiting
    fed = feed_items(admission)
    assert [item.request for item in fed] == waiting[:2]
    admission.settle(fed[0])
    assert feed(admission) == waiting[2:]
    assert (admission.items, admission.waiting) == (2, 0)


def test_nobody_overtakes_a_single_request_that_waits(request_of):
    admission = door()
    admission.line_up(request_of())
    assert not admission.has_room()
    assert admission.must_wait(Lane.SINGLE)
    feed(admission)
    assert admission.has_room()
    assert not admission.must_wait(Lane.SINGLE)


def test_bulk_calls_get_half_of_the_room_together(request_of):
    admission = door(max_items=6)
    a, b = request_of(10, lane=Lane.BULK), request_of(10, lane=Lane.BULK)
    admission.line_up(a)
    admission.line_up(b)
    assert feed(admission) == [a, b, a]
    assert admission.has_room(), "a large call cannot shut single requests out"


def test_singles_and_bulk_calls_take_turns(request_of):
    admission = door(max_items=8)
    bulk = request_of(8, lane=Lane.BULK)
    singles = [request_of() for _ in range(3)]
    admission.line_up(bulk)
    for request in singles:
        admission.line_up(request)
    assert feed(admission) == [singles[0], bulk, singles[1], bulk, singles[2], bulk, bulk]


def test_a_single_request_that_waits_keeps_nobody_out_who_is_more_urgent(request_of):
    admission = door(max_bytes=100)
    let_in(admission, request_of(nbytes=60))
    admission.line_up(request_of(lane=Lane.BULK, urgency=0, nbytes=70))
    admission.line_up(request_of(urgency=5, nbytes=70))
    assert admission.has_room(40, urgency=4)
    assert not admission.has_room(41, urgency=4)
    assert not admission.has_room(40, urgency=5)


def test_one_who_has_no_room_yet_does_not_keep_those_waiting_who_are_in(request_of):
    admission = door(max_items=8, max_bytes=100)
    a, b = (request_of(3, lane=Lane.BULK, nbytes=60) for _ in range(2))
    admission.line_up(a)
    admission.line_up(b)
    items = feed_items(admission)
    assert [item.request for item in items] == [a, a, a], "b comes in when a gives its bytes back"
    for item in items:
        admission.settle(item)
    assert feed(admission) == [b, b, b]
    assert admission.waiting == 0


# -- who goes first ---------------------------------------------------------------------------------------------------

GOLD, IRON = Tenant("gold", 3.0), Tenant("iron")


def test_the_better_urgency_is_fed_first_and_tenants_by_weight(request_of):
    admission = door(max_items=9)
    last, iron = request_of(urgency=7), request_of(3, tenant=IRON)
    gold, first = request_of(4, tenant=GOLD), request_of(urgency=0)
    for request in (last, iron, gold, first):
        admission.line_up(request)
    assert admission.requests() == [first, iron, gold, last]
    assert feed(admission) == [first, iron, gold, gold, gold, iron, gold, iron, last]


def test_one_who_waits_for_bytes_lets_nobody_of_a_later_line_in(request_of):
    admission = door(max_items=8, max_bytes=100)
    small = request_of(2, urgency=7, nbytes=10)
    item = let_in(admission, small)
    large, other = request_of(urgency=1, nbytes=95), request_of(urgency=7, nbytes=1)
    for request in (other, small, large):
        admission.line_up(request)
    assert feed(admission) == [small], "what is in goes on"
    admission.settle(item)
    assert feed(admission) == [large]
    assert feed(admission) == []


# -- who is held back -------------------------------------------------------------------------------------------------


def test_who_is_held_back_keeps_nobody_else_waiting_and_has_its_place_when_it_is_let_go(request_of):
    admission = door(max_items=8)
    usual, urgent = request_of(tenant=GOLD), request_of(2, urgency=0, tenant=GOLD)
    for request in (usual, urgent):
        admission.line_up(request)
    admission.hold_back(GOLD)
    assert (admission.waiting, admission.held_back, admission.has_room()) == (0, 2, True)
    assert admission.holds_back(GOLD)
    assert feed(admission) == []
    iron, later = request_of(tenant=IRON), request_of(tenant=GOLD)
    admission.line_up(iron)
    admission.line_up(later)
    assert (admission.waiting, admission.held_back) == (1, 3)
    assert feed(admission) == [iron]
    admission.let_go(GOLD)
    assert not admission.holds_back(GOLD)
    assert feed(admission) == [urgent, urgent, usual, later]
    admission.hold_back(GOLD)
    assert not admission.holds_back(GOLD), "nothing of it waits"


def test_to_be_held_back_after_each_item_wins_a_tenant_nothing(request_of):
    admission = door(max_items=100)
    gold, iron = request_of(40, tenant=GOLD), request_of(40, tenant=IRON)
    for request in (gold, iron):
        admission.line_up(request)
    fed = []
    for _ in range(40):
        fed.append(next_item(admission, admission.feed_next()).request)
        admission.hold_back(IRON)
        admission.let_go(IRON)
    assert 29 <= fed.count(gold) <= 31


def test_who_went_empty_ahead_of_the_others_is_still_ahead_when_it_comes_while_held_back(request_of):
    admission = door(max_items=9)
    iron, last, golds = request_of(tenant=IRON), request_of(urgency=5, tenant=IRON), request_of(3, tenant=GOLD)
    for request in (iron, golds, last):
        admission.line_up(request)
    assert admission.feed_next() is iron
    next_item(admission, iron)
    admission.hold_back(IRON)
    again = request_of(tenant=IRON)
    admission.line_up(again)
    admission.let_go(IRON)
    assert feed(admission) == [golds, golds, golds, again, last]
