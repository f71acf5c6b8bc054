"""Decide whose turn it is among those who wait: by urgency, then by the weights of tenants, then lane by lane.  Pure.

What waits of one tenant with one urgency is a *line*; the lines of one urgency are a *level*.

Contract
--------
* Better levels are served first: 0 is the best, 7 the last.
* The lines of a level share it by the weights of their tenants, as start-time fair queueing does.  A line has a virtual
  start, and the lowest is served; an item moves it on by 1 / weight.  Of equal ones it is the line that came first.
* So while two lines wait, each has been served its share, give or take one item.
* A line that comes starts where the level is: what a tenant did not use is not owed to it later.  A line that went
  empty ahead of its level starts no earlier when it comes again: else one that always has a single item to serve would
  get as much as it likes.  That is forgotten when the level has come so far, and when it is empty.
* What comes back unserved gives its price back.
* A line may be suspended: it keeps what waits in it, and comes again as any other, but for its turn.
* While a single line has waited since all were empty, nothing is counted: there is nobody to share with.
* Within a line the two lanes take turns; the turn is with single requests when a line begins.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from penstock.core.lanes import Lane
from penstock.core.tenants import WORST_URGENCY, Tenant
from penstock.core.waiting import EarliestDeadline, FirstCome

# The number of a lane in front is also how many bulk items an item of it is: counts are kept without a branch.
SINGLE: Final = int(Lane.SINGLE)
BULK: Final = int(Lane.BULK)

# Virtual time is counted in whole parts, because sums of floats drift.  Every whole weight up to 16 divides an item.
PARTS_OF_AN_ITEM: Final = 720_720_000
REMEMBERED_AT_LEAST: Final = 16
"""So many lines that went empty are kept without a look at whether they may be forgotten."""

T = TypeVar("T")


class Line(Generic[T]):
    """What waits of one tenant with one urgency, in two lanes."""

    def __init__(self, urgency: int, tenant: Tenant, *, by_deadline: bool) -> None:
        self.urgency = urgency
        self.tenant = tenant
        self.singles: FirstCome[T] = EarliestDeadline() if by_deadline else FirstCome()
        self.bulk: FirstCome[T] = EarliestDeadline() if by_deadline else FirstCome()
        self.lanes = [self.singles, self.bulk]
        self.turn = SINGLE
        """The lane whose turn it is, if something waits in it."""
        self.price = max(1, round(PARTS_OF_AN_ITEM / tenant.weight))
        """What an item moves its start by."""
        self.start = 0
        self.number = 0
        """Grows with each line that comes."""
        self.present = False
        """Whether it takes part: it does while something waits in it."""

    def __len__(self) -> int:
        return len(self.singles.members) + len(self.bulk.members)

    @property
    def next_lane(self) -> int:
        """The lane that is served next; something must wait."""
        turn = self.turn
        return turn if self.lanes[turn].members else 1 - turn

    @property
    def first(self) -> T:
        """Who is served next; there must be somebody."""
        return self.lanes[self.next_lane].first

    def take(self, count: int) -> list[T]:
        """The next `count`, or all if they are fewer."""
        if not self.bulk.members:
            self.turn = BULK
            return self.singles.take(count)
        if not self.singles.members:
            self.turn = SINGLE
            return self.bulk.take(count)
        taken: list[T] = []
        for _ in range(min(count, len(self))):
            lane = self.next_lane
            taken += self.lanes[lane].take(1)
            self.turn = 1 - lane
        return taken

    def before(self, lane: int, deadline: float) -> int:
        """How many of this line would be served before a newcomer to `lane`."""
        own = self.lanes[lane].before(deadline)
        others = len(self.lanes[1 - lane].members)
        return own + min(others, own if self.turn == lane else own + 1)


L = TypeVar("L", bound=Line)  # type: ignore[type-arg]  # of whatever waits in it


class Level(Generic[L]):
    """The lines of one urgency."""

    def __init__(self) -> None:
        self.time = 0
        """The virtual start of what was served last."""
        self.order: list[tuple[int, int, L]] = []
        """The lines that take part: their starts, their numbers, themselves.  Sorted."""
        self.lines: dict[Tenant, L] = {}
        """These, and those that went empty ahead of `time`."""
        self._look_at = REMEMBERED_AT_LEAST

    def enter(self, line: L) -> None:
        """Let `line` take part."""
        self.lines[line.tenant] = line
        line.start = max(line.start, self.time)
        insort(self.order, (line.start, line.number, line))

    def move(self, line: L, parts: int) -> None:
        """Move the start of `line`."""
        self._take_out(line)
        line.start += parts
        insort(self.order, (line.start, line.number, line))

    def leave(self, line: L) -> None:
        """Let `line` take part no longer."""
        self._take_out(line)
        if not self.order:
            self.lines.clear()
            self.time = 0
        elif line.start <= self.time:
            del self.lines[line.tenant]
        elif len(self.lines) - len(self.order) > self._look_at:
            self.lines = {t: other for t, other in self.lines.items() if other.present or other.start > self.time}
            self._look_at = 2 * (len(self.lines) - len(self.order)) + REMEMBERED_AT_LEAST

    def _take_out(self, line: L) -> None:
        order = self.order
        place = 0 if order[0][2] is line else bisect_left(order, (line.start, line.number, line))
        del order[place]


class ServingOrder(Generic[L]):
    """The lines in which something waits.

    Find a line, or make one, and have it `enter` before the first is added to it; have it `leave` when it went empty.
    Tell what was served and what came back.  `sole` is the only line there has been since all were empty, which may be
    empty itself by now; None where there were none or more.
    """

    def __init__(self) -> None:
        self.sole: L | None = None
        self._levels: list[Level[L]] = [Level() for _ in range(WORST_URGENCY + 1)]
        self._present = 0
        """How many lines take part in levels."""
        self._number = 0

    def find(self, urgency: int, tenant: Tenant) -> L | None:
        """The line of `tenant` with `urgency`, if it is known."""
        sole = self.sole
        if sole is not None:
            return sole if sole.tenant is tenant and sole.urgency == urgency else None
        return self._levels[urgency].lines.get(tenant)

    def enter(self, line: L) -> None:
        """Let `line` take part: something comes to wait in it."""
        sole = self.sole
        self._number += 1
        line.number = self._number
        line.present = True
        line.turn = SINGLE
        if sole is not None and len(sole):
            self.sole = None
            self._join(sole)
            self._join(line)
        elif self._present:
            self._join(line)
        else:
            self.sole = line

    def _join(self, line: L) -> None:
        self._levels[line.urgency].enter(line)
        self._present += 1

    def leave(self, line: L) -> None:
        """Let `line` take part no longer: nothing waits in it now."""
        if line is self.sole:
            line.turn = SINGLE
            return
        line.present = False
        self._levels[line.urgency].leave(line)
        self._present -= 1

    def suspend(self, line: L) -> None:
        """Let `line`, which takes part, do so no longer, although something waits in it."""
        line.present = False
        if line is self.sole:
            self.sole = None
            return
        self._levels[line.urgency].leave(line)
        self._present -= 1

    def resume(self, line: L) -> None:
        """Let a line that was suspended, or is new, take part: it goes on with the lane whose turn it was."""
        turn = line.turn
        if self._levels[line.urgency].lines.get(line.tenant) is not line:
            line.start = 0  # what it was ahead by is forgotten
        self.enter(line)
        line.turn = turn

    def serve(self, line: L, count: int) -> None:
        """Count `count` of `line` as served; it is told before `leave`."""
        if line is not self.sole:
            level = self._levels[line.urgency]
            level.time = max(level.time, line.start + (count - 1) * line.price)
            level.move(line, count * line.price)

    def give_back(self, line: L) -> None:
        """Count one of `line`, which takes part, as not served after all."""
        if line is not self.sole:
            self._levels[line.urgency].move(line, -line.price)

    # -- whose turn it is -------------------------------------------------------------------------------------------

    def first(self) -> L:
        """The line whose turn it is; something must wait."""
        sole = self.sole
        if sole is not None:
            return sole
        place = 0
        while not self._levels[place].order:
            place += 1
        return self._levels[place].order[0][2]

    def undisputed(self, line: L) -> bool:
        """Whether `line`, whose turn it is, is the only one of its level."""
        return line is self.sole or len(self._levels[line.urgency].order) == 1

    def lines(self) -> Iterator[L]:
        """The lines in which something waits, in the order in which they would be served next."""
        sole = self.sole
        if sole is not None:
            if len(sole):
                yield sole
            return
        for level in self._levels:
            for entry in level.order:
                yield entry[2]

    def ahead_of(self, urgency: int, tenant: Tenant, lane: int, deadline: float) -> int:
        """How many would be served before a newcomer, if nobody else came."""
        own = self.find(urgency, tenant)
        before = 0 if own is None else own.before(lane, deadline)
        if own is not None and own is self.sole:
            return before
        level = self._levels[urgency]
        start, number, price = level.time, self._number + 1, 0
        if own is not None:
            start, price = max(start, own.start), own.price
            if own.present:  # what came back may have moved it to before its level
                start, number = own.start, own.number
        start += before * price
        for line in self.lines():
            if line.urgency < urgency:
                before += len(line)
            elif line.urgency == urgency and line is not own and line.start <= start:
                served, rest = divmod(start - line.start, line.price)
                before += min(len(line), served + (rest > 0 or line.number < number))
        return before
