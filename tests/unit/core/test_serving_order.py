"""Whose turn it is: urgency, then weights, then lanes, one sentence of the contract at a time."""

from __future__ import annotations

import math

import pytest

from penstock.core.lanes import Lane
from penstock.core.serving_order import Line, ServingOrder
from penstock.core.tenants import Tenant

A, B = Tenant("a"), Tenant("b")


class Waiting:
    """Names that wait in lines; whoever is served is told by its name."""

    def __init__(self, *, by_deadline=False):
        self.order = ServingOrder()
        self.by_deadline = by_deadline

    def line(self, tenant=A, urgency=3):
        line = self.order.find(urgency, tenant)
        if line is None:
            line = Line(urgency, tenant, by_deadline=self.by_deadline)
        if not line.present:
            self.order.enter(line)
        return line

    def add(self, *names, tenant=A, urgency=3, lane=Lane.SINGLE, deadline=math.inf):
        for name in names:
            self.line(tenant, urgency).lanes[lane].add(name, deadline)

    def serve(self, count):
        served = []
        for _ in range(count):
            line = self.order.first()
            served += line.take(1)
            self.order.serve(line, 1)
            if not len(line):
                self.order.leave(line)
        return served

    def remember(self):
        """How many lines are known, of all urgencies."""
        return sum(len(level.lines) for level in self.order._levels)


@pytest.fixture
def waiting():
    return Waiting()


def test_a_better_urgency_is_served_first_whoever_came_first(waiting):
    waiting.add("last", urgency=7)
    waiting.add("usual", urgency=3)
    waiting.add("first", urgency=0)
    assert waiting.serve(3) == ["first", "usual", "last"]


def test_tenants_of_equal_weight_are_served_by_turns(waiting):
    waiting.add("a1", "a2", "a3", tenant=A)
    waiting.add("b1", "b2", tenant=B)
    assert waiting.serve(5) == ["a1", "b1", "a2", "b2", "a3"]


@pytest.mark.parametrize(("heavy", "light"), [(3.0, 1.0), (1.0, 0.5), (7.0, 2.0), (2.5, 1.5), (0.3, 0.1)])
def test_two_who_flood_are_served_by_their_weights_at_every_moment(waiting, heavy, light):
    tenants = {"heavy": Tenant("heavy", heavy), "light": Tenant("light", light)}
    for name, tenant in tenants.items():
        waiting.add(*[(name, place) for place in range(4000)], tenant=tenant)
    had = {"heavy": 0, "light": 0}
    for _ in range(4000):
        ((name, _),) = waiting.serve(1)
        had[name] += 1
        assert abs(had["heavy"] / heavy - had["light"] / light) <= 1 / heavy + 1 / light


def test_who_comes_late_is_owed_nothing_for_the_time_before(waiting):
    waiting.add(*range(100), tenant=A)
    waiting.add("b", tenant=B)
    waiting.serve(60)
    c = Tenant("c")
    waiting.add("c1", "c2", "c3", tenant=c)
    assert [name for name in waiting.serve(6) if isinstance(name, str)] == ["c1", "c2", "c3"]
    waiting.add("c4", tenant=c)
    assert "c4" in waiting.serve(2)


def test_lanes_of_a_tenant_take_turns_and_a_new_line_begins_with_singles(waiting):
    waiting.add("b1", "b2", "b3", lane=Lane.BULK)
    waiting.add("s1", "s2")
    assert waiting.serve(5) == ["s1", "b1", "s2", "b2", "b3"]
    waiting.add("b4", lane=Lane.BULK)
    waiting.serve(1)
    waiting.add("b5", lane=Lane.BULK)
    waiting.add("s3")
    assert waiting.serve(2) == ["s3", "b5"]


def test_the_earliest_deadline_goes_first_and_equal_ones_by_arrival():
    waiting = Waiting(by_deadline=True)
    waiting.add("late", deadline=9.0)
    waiting.add("soon", "soon too", deadline=2.0)
    waiting.add("never")
    waiting.add("soon again", deadline=2.0)
    assert waiting.serve(5) == ["soon", "soon too", "soon again", "late", "never"]


def test_what_comes_back_gives_its_price_back(waiting):
    waiting.add("a1", "a2", tenant=A)
    waiting.add("b1", "b2", tenant=B)
    assert waiting.serve(1) == ["a1"]
    waiting.line(A).lanes[Lane.SINGLE].add_first("a1", math.inf)
    waiting.order.give_back(waiting.line(A))
    assert waiting.serve(4) == ["a1", "b1", "a2", "b2"]


def test_lines_are_told_in_the_order_in_which_they_would_be_served(waiting):
    waiting.add("c", tenant=B, urgency=5)
    assert [line.urgency for line in waiting.order.lines()] == [5]
    waiting.add("b1", "b2", tenant=B)
    waiting.add("a", tenant=A)
    assert [(line.urgency, line.tenant.name) for line in waiting.order.lines()] == [(3, "b"), (3, "a"), (5, "b")]
    waiting.serve(1)
    assert [(line.urgency, line.tenant.name) for line in waiting.order.lines()] == [(3, "a"), (3, "b"), (5, "b")]
    waiting.serve(3)
    assert [*waiting.order.lines()] == []


def test_a_line_that_went_empty_is_forgotten_when_its_level_has_come_so_far(waiting):
    heavy = Tenant("heavy", 1000)
    waiting.add(*range(100_000), tenant=heavy)
    for n in range(1000):
        tenant = Tenant(f"t{n}")
        waiting.add("x", "y", tenant=tenant)
        while waiting.serve(1) != ["y"]:
            pass
    assert waiting.remember() < 100


def test_everything_is_forgotten_when_nothing_waits(waiting):
    for n in range(50):
        waiting.add("x", tenant=Tenant(f"t{n}"))
    waiting.serve(50)
    assert waiting.remember() == 0
    waiting.add("a", tenant=A)
    waiting.add("b", tenant=B, urgency=1)
    waiting.serve(2)
    assert waiting.remember() == 0


def test_the_only_line_may_be_taken_at_once(waiting):
    waiting.add("a1", "a2", tenant=A)
    assert waiting.order.undisputed(waiting.order.first())
    waiting.add("b", tenant=B, urgency=5)
    assert waiting.order.undisputed(waiting.order.first())
    waiting.add("c", tenant=B)
    assert not waiting.order.undisputed(waiting.order.first())


@pytest.mark.parametrize(
    ("tenant", "urgency", "ahead"),
    [(A, 3, 2 + 3 + 1), (B, 3, 2 + 2 + 1), (Tenant("new"), 3, 2 + 1 + 1), (A, 7, 2 + 3 + 1), (A, 0, 0)],
)
def test_a_newcomer_can_see_how_many_go_before_it(waiting, tenant, urgency, ahead):
    waiting.add("a1", "a2", "a3", tenant=A)
    waiting.add("b1", tenant=B)
    waiting.add("urgent", "urgent too", urgency=2)
    assert waiting.order.ahead_of(urgency, tenant, Lane.SINGLE, math.inf) == ahead
