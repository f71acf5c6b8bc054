"""Who leaves next within a lane, by arrival and by deadline."""

from __future__ import annotations

import math
from random import Random

import pytest

from penstock.core.waiting import EarliestDeadline, FirstCome
from rows import each


class Plain:
    """A list in the order of arrival."""

    def __init__(self, *, by_deadline):
        self.by_deadline = by_deadline
        self.members = []

    def in_order(self):
        members = sorted(self.members, key=lambda one: one[1]) if self.by_deadline else self.members
        return [name for name, _ in members]


@each("seed", range(20))
@pytest.mark.parametrize("by_deadline", [False, True])
def test_members_leave_as_those_of_a_plain_list_would(seed, by_deadline):
    random = Random(seed)
    lane, plain = (EarliestDeadline if by_deadline else FirstCome)(), Plain(by_deadline=by_deadline)
    for name in range(200):
        step, deadline = random.random(), random.choice((1.0, 2.0, 5.0, math.inf))
        if step < 0.5:
            lane.add(name, deadline)
            plain.members.append((name, deadline))
        elif step < 0.6:
            lane.add_first(name, deadline)
            plain.members.insert(0, (name, deadline))
        elif step < 0.75 and plain.members:
            gone = random.choice(plain.members)
            lane.remove(gone[0])
            plain.members.remove(gone)
        else:
            count = random.randrange(5)
            taken = plain.in_order()[:count]
            assert lane.take(count) == taken
            plain.members = [one for one in plain.members if one[0] not in taken]
        assert list(lane.members) == [name for name, _ in plain.members]
        assert lane.in_order() == plain.in_order()
        assert not plain.members or lane.first == plain.in_order()[0]
        before = len([one for one in plain.members if not by_deadline or one[1] <= deadline])
        assert lane.before(deadline) == before


@pytest.mark.parametrize("kind", [FirstCome, EarliestDeadline])
def test_who_does_not_wait_cannot_be_removed(kind):
    with pytest.raises(KeyError):
        kind().remove("nobody")


def test_those_after_a_newcomer_are_told_by_their_deadlines_and_only_where_these_decide():
    first_come, by_deadline = FirstCome(), EarliestDeadline()
    for name, deadline in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)):
        first_come.add(name, deadline)
        by_deadline.add(name, deadline)
    assert [by_deadline.deadlines_after(deadline) for deadline in (0.5, 1.0, 2.0, 3.0)] == [
        [1.0, 2.0, 2.0, 3.0],
        [2.0, 2.0, 3.0],
        [3.0],
        [],
    ]
    assert first_come.deadlines_after(0.5) == []
