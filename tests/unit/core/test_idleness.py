"""Who makes way: only who is idle, first who never asked, then who is idle longest."""

from __future__ import annotations

import math
import weakref

import pytest

from penstock.core.idleness import IDLE_SECONDS, IdleOrder


class Guest:
    """Idle since `since`; inf is not idle.  Counts how often it is asked."""

    def __init__(self, since=math.inf, asked=True):
        self.since = since
        self.asked = asked
        self.looks = 0

    def idle_since(self):
        self.looks += 1
        return self.since

    def has_asked(self):
        return self.asked


def all_of(order, guests, now):
    """Everybody who makes way at `now`, in their order."""
    found = []
    while (guest := order.take(guests, now)) is not None:
        guest.since = math.inf
        found.append(guest)
    return found


def test_nobody_makes_way_where_nobody_is():
    assert IdleOrder().take([], 100.0) is None


@pytest.mark.parametrize("asked", [False, True])
def test_who_is_idle_for_a_second_makes_way_and_not_before(asked):
    guest = Guest(since=100.0, asked=asked)
    assert IDLE_SECONDS == 1.0
    assert IdleOrder().take([guest], 100.75) is None
    assert IdleOrder().take([guest], 101.0) is guest


def test_who_is_busy_never_makes_way():
    assert IdleOrder().take([Guest()], 1e9) is None


def test_those_that_never_asked_go_first_and_then_the_longest_idle():
    silent = [Guest(since, asked=False) for since in (98.0, 97.0, 98.5)]
    asked = [Guest(since) for since in (50.0, 10.0, 98.9)]
    too_soon = [Guest(99.5, asked=False), Guest(99.5), Guest()]
    order = IdleOrder()
    assert all_of(order, [*asked, *too_soon, *silent], 100.0) == [
        silent[1],
        silent[0],
        silent[2],
        asked[1],
        asked[0],
        asked[2],
    ]


def test_who_was_not_idle_for_long_enough_at_the_last_look_is_found_when_its_time_comes():
    soon, later = Guest(99.5), Guest(99.75, asked=False)
    order, guests = IdleOrder(), [soon, later]
    assert order.take(guests, 100.0) is None
    assert order.take(guests, 100.5) is soon
    assert order.take(guests, 100.75) is later
    assert soon.looks == later.looks == 2  # once at the look, once when its turn came


def test_who_did_something_after_the_look_is_passed_over():
    first, second = Guest(90.0), Guest(91.0)
    order = IdleOrder()
    assert order.take([Guest(89.0), first, second], 100.0) is not None
    first.since = 100.1
    assert order.take([first, second], 100.5) is second


def test_however_many_come_all_are_looked_at_once_a_second():
    guests = [Guest() for _ in range(10)]
    order = IdleOrder()
    for n in range(1000):
        order.take(guests, 100.0 + n / 1000)
    assert {guest.looks for guest in guests} == {1}
    order.take(guests, 101.0)
    assert {guest.looks for guest in guests} == {2}


def test_after_a_second_the_order_is_made_anew():
    old, silent = Guest(90.0), Guest(100.1, asked=False)
    order = IdleOrder()
    assert order.take([Guest(89.0), old], 100.0) is not old
    assert order.take([old, silent], 101.5) is silent


def test_what_is_too_old_to_be_used_is_let_go():
    order = IdleOrder()
    guests = [Guest(90.0), Guest(91.0), Guest(99.9, asked=False)]
    left = [weakref.ref(guest) for guest in guests[1:]]
    order.take(guests, 100.0)
    del guests
    order.forget(100.9)
    assert [guest() is None for guest in left] == [False, False]
    order.forget(101.0)
    assert [guest() is None for guest in left] == [True, True]
