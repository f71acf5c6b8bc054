"""Those who wait in one lane of a line, in the order in which they leave.

Contract
--------
* `FirstCome`: who was added first leaves first; who is added at the head leaves before all others.
* `EarliestDeadline`: the earliest deadline leaves first.  Of equal ones it is as in `FirstCome`.
* To remove one of many thousands is as cheap as to take the first, but for a move of memory by `EarliestDeadline`.
* `members` is in the order of arrival in both: its first is the oldest, its last the newest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Place = tuple[float, int]
"""A deadline, and a number that grows with arrival; those at the head have negative ones."""


class FirstCome(Generic[T]):
    """Who waits, in the order of arrival."""

    def __init__(self) -> None:
        self.members: OrderedDict[T, Place | None] = OrderedDict()

    def add(self, member: T, deadline: float) -> None:  # noqa: ARG002  # see `EarliestDeadline`
        """Let `member` wait behind all others of its rank."""
        self.members[member] = None

    def add_first(self, member: T, deadline: float) -> None:  # noqa: ARG002
        """Let `member` wait before all others of its rank."""
        self.members[member] = None
        self.members.move_to_end(member, last=False)

    def remove(self, member: T) -> None:
        """Forget `member`; KeyError where it does not wait here."""
        del self.members[member]

    @property
    def first(self) -> T:
        """Who leaves next; there must be somebody."""
        return next(iter(self.members))

    def take(self, count: int) -> list[T]:
        """The first `count`, or all if they are fewer."""
        members = self.members
        if count >= len(members):
            taken = list(members)
            members.clear()
            return taken
        return [members.popitem(last=False)[0] for _ in range(count)]

    def before(self, deadline: float) -> int:  # noqa: ARG002
        """How many would leave before a newcomer of that deadline."""
        return len(self.members)

    def deadlines_after(self, deadline: float) -> list[float]:  # noqa: ARG002
        """The deadlines of those who would leave after a newcomer of that deadline, in that order."""
        return []

    def in_order(self) -> list[T]:
        """All, in the order in which they leave."""
        return list(self.members)


class EarliestDeadline(FirstCome[T]):
    """Who waits, by deadline."""

    def __init__(self) -> None:
        super().__init__()
        # Members are compared never: no two places are equal.
        self._order: list[tuple[Place, Any]] = []
        self._next = 0
        self._head = 0

    def add(self, member: T, deadline: float) -> None:  # see `FirstCome`
        self._next += 1
        self._put(member, (deadline, self._next))

    def add_first(self, member: T, deadline: float) -> None:
        self._head -= 1
        self._put(member, (deadline, self._head))
        self.members.move_to_end(member, last=False)

    def _put(self, member: T, place: Place) -> None:
        self.members[member] = place
        insort(self._order, (place, member))

    def remove(self, member: T) -> None:
        place = self.members.pop(member)
        del self._order[bisect_left(self._order, (place, member))]

    @property
    def first(self) -> T:
        member: T = self._order[0][1]
        return member

    def take(self, count: int) -> list[T]:
        taken: list[T] = [entry[1] for entry in self._order[:count]]
        del self._order[:count]
        for member in taken:
            del self.members[member]
        return taken

    def before(self, deadline: float) -> int:
        return bisect_right(self._order, deadline, key=_deadline_of)

    def deadlines_after(self, deadline: float) -> list[float]:
        return [entry[0][0] for entry in self._order[self.before(deadline) :]]

    def in_order(self) -> list[T]:
        return [entry[1] for entry in self._order]


def _deadline_of(entry: tuple[Place, Any]) -> float:
    return entry[0][0]
