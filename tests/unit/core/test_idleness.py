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


@pytest.mark.parametrize("asked", [False, True])
def test_who_is_idle_for_a_second_makes_way_and_not_before(asked):
    guest = Guest(since=100.0, asked=asked)
    assert IDLE_SECONDS == 1.0
    assert IdleOrder().take([guest], 100.75) is None
    assert IdleOrder().take([guest], 101.0) is guest


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


def test_however_many_come_all_are_looked_at_once_a_second():
    guests = [Guest() for _ in range(10)]
    order = IdleOrder()
    for n in range(1000):
        order.take(guests, 100.0 + n / 1000)
    assert {guest.looks for guest in guests} == {1}
    order.take(guests, 101.0)
    assert {guest.looks for guest in guests} == {2}


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
