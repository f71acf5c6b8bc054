"""Decide which items of a stage run together.  No clock, no lock, no await: it is told the time.

Contract
--------
* An offered item leaves in exactly one batch, or is discarded exactly once.
* The items of the lanes in front leave by urgency, then by the weights of their tenants, then by turns of the two
  lanes; `serving_order` says how.  Within a lane of one tenant and urgency they leave in the order they were offered,
  or by their deadlines, the earliest first.
* An item put back goes to the head of its lane, and its tenant is given back what it counted.
* Nothing that has left is called back for a better one.
* The lane behind them, BACK, gets what they leave of a batch.  Where they could fill it, BACK still gets its share of
  the items, evenly spread and exact over time, and no more.
* A batch has at most `policy.max_size` items.  A suspect (see `retry`) is always a batch of its own, and so is an item
  of a request that is to be alone.  A suspect goes before everything else; an item that is to be alone keeps its place
  in its lane, and ends the batch before it.  One of BACK counts as a full batch of its share.
* An idle worker that asks at or after `next_deadline()` gets a batch.
* A busy worker whose window is not full gets a batch only if the batch is full.  Otherwise the items of few callers
  would be split into many small batches.
* Every batch knows the reason it was cut.

A batch is due at the first of these moments:

* at once, when it is full, when bulk items or items of BACK wait, when draining, with `max_wait=0`, and when an item
  that is to be alone ends it;
* at oldest + max_wait, and at newest + max_gap;
* at an item's deadline, less the expected run time and `round_trip_seconds`, the time to the worker and back.

Only single requests wait for company.  Times are counted from an item's arrival at this stage, not from the moment of a
call.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final

from penstock.config import Batch
from penstock.core.back_lane import BackLane
from penstock.core.cuts import CutBatch, Reason
from penstock.core.item import Item
from penstock.core.lanes import Lane
from penstock.core.serving_order import Line, ServingOrder
from penstock.core.tenants import Tenant
from penstock.core.waiting import Place

# Looked up for every item: constants cost nothing once compiled.
SINGLE: Final = int(Lane.SINGLE)
BULK: Final = int(Lane.BULK)
BACK: Final = int(Lane.BACK)

# How far one run moves the estimate of the next: a handful of batches decide, one outlier does not.
RUN_TIME_WEIGHT = 0.2


class ItemLine(Line[Item]):
    """The items of one tenant with one urgency."""


class BatchQueue:
    """The items that wait for one stage.

    `nbytes` is the size of their payloads; `len()` is their number.  Those of the lanes in front and those of BACK are
    told apart, because neither takes room from the other.  Set `draining` to let none wait for company any longer.
    `round_trip_seconds` is how long a batch takes besides its run: to meet a deadline, it leaves so much earlier.
    `expected_run` is how long a batch runs that has an item of the lanes in front, `expected_back_run` one that has
    none; each is 0 until there was one.  `back_share` is the share of BACK, from 0 to 1.  `by_deadline` says that
    within a lane of one tenant and urgency the earliest deadline goes first.
    """

    def __init__(
        self,
        policy: Batch,
        *,
        round_trip_seconds: float = 0.0,
        back_share: float = 0.0,
        by_deadline: bool = False,
    ) -> None:
        self.policy = policy
        self.round_trip_seconds = round_trip_seconds
        self.draining = False
        self.front_nbytes = 0
        self.expected_run = 0.0
        self.expected_back_run = 0.0
        self._by_deadline = by_deadline
        self._order: ServingOrder[ItemLine] = ServingOrder()
        self._waiting = 0
        """Items of the lanes in front, suspects not counted."""
        self._bulk = 0
        """Those of them that are bulk items."""
        self._alone = 0
        """Those of them that are to be alone."""
        self._back = BackLane(back_share)
        self._suspects: deque[Item] = deque()
        self._back_suspects: deque[Item] = deque()
        # The earliest deadline among the singles; None means "look again".
        self._earliest: float | None = math.inf

    def __len__(self) -> int:
        return self.front_items + self.back_items

    def __iter__(self) -> Iterator[Item]:
        found = [*self._suspects, *self._back_suspects]
        for line in self._order.lines():
            for lane in line.lanes:
                found += lane.in_order()
        return iter(found + self._back.list_items())

    @property
    def front_items(self) -> int:
        """The items of the lanes in front, suspects included."""
        return self._waiting + len(self._suspects)

    @property
    def back_items(self) -> int:
        """The items of BACK, suspects included."""
        return len(self._back) + len(self._back_suspects)

    @property
    def back_nbytes(self) -> int:
        """The size of the payloads of BACK, suspects included."""
        return self._back.nbytes + sum([item.nbytes for item in self._back_suspects])

    @property
    def nbytes(self) -> int:
        """The size of all payloads."""
        return self.front_nbytes + self.back_nbytes

    # -- in -----------------------------------------------------------------------------------------------------

    def offer(self, item: Item, now: float) -> None:
        """Take `item` in; its wait starts at `now`."""
        item.arrived = now
        request = item.request
        lane = request.lane
        if lane == BACK:
            self._back.offer(item)
            return
        self.front_nbytes += item.nbytes
        self._waiting += 1
        self._line_of(item).lanes[lane].add(item, item.deadline)
        if lane == BULK:
            self._bulk += 1
        if request.alone:
            self._alone += 1
        if self._earliest is not None and item.deadline < self._earliest and lane == SINGLE:
            self._earliest = item.deadline

    def put_back(self, items: list[Item]) -> None:
        """Return `items`, in their order, to their places: their worker ended before it looked at them."""
        for item in reversed(items):
            if item.request.lane == BACK:
                self._back.put_back(item)
                continue
            self.front_nbytes += item.nbytes
            self._waiting += 1
            self._bulk += item.request.lane
            self._alone += item.request.alone
            line = self._line_of(item)
            line.lanes[item.request.lane].add_first(item, item.deadline)
            self._order.give_back(line)
        self._earliest = None

    def retry(self, items: list[Item]) -> None:
        """Queue suspects: each runs alone, before everything else."""
        for item in items:
            if item.request.lane == BACK:
                self._back_suspects.append(item)
            else:
                self.front_nbytes += item.nbytes
                self._suspects.append(item)

    def _line_of(self, item: Item) -> ItemLine:
        """The line in which `item` waits, or is to wait."""
        request = item.request
        line = self._order.find(request.urgency, request.tenant)
        if line is None:
            line = ItemLine(request.urgency, request.tenant, by_deadline=self._by_deadline)
        if not line.present:
            self._order.enter(line)
        return line

    # -- out ----------------------------------------------------------------------------------------------------

    def discard(self, item: Item) -> None:
        """Forget a queued item: its caller left or its deadline passed."""
        if item.request.lane == BACK:
            if item.suspect:
                self._back_suspects.remove(item)
            else:
                self._back.discard(item)
            return
        self.front_nbytes -= item.nbytes
        if item.suspect:
            self._suspects.remove(item)
            return
        line = self._line_of(item)
        line.lanes[item.request.lane].remove(item)
        if not len(line):
            self._order.leave(line)
        self._waiting -= 1
        self._bulk -= item.request.lane
        self._alone -= item.request.alone
        self._forget_deadline(item)

    def take(self, now: float, *, idle: bool = True, at_most: int | None = None, back: bool = True) -> CutBatch | None:
        """The next batch, or None if none is due.

        `idle` says whether the asking worker has nothing to do.  `at_most` is the room that the next stage's queue has
        for items of the lanes in front; None is any number, 0 is none.  `back` says whether items of BACK may leave.
        """
        if self._suspects and at_most != 0:
            suspect = self._suspects.popleft()
            self.front_nbytes -= suspect.nbytes
            return CutBatch([suspect], Reason.RETRY)
        if self._back_suspects and back:
            return CutBatch([self._back_suspects.popleft()], Reason.RETRY, 1)
        size = self.policy.max_size
        front = waiting = self._waiting
        if at_most is not None and at_most < front:
            front = at_most
            waiting = waiting if at_most else 0
        if back and len(self._back):
            if self._back.first.request.alone:
                return self._take_beside_alone(now, idle, front, waiting)
            return self._take_with_back(now, idle, front, waiting)
        if waiting == 0 or (not idle and self._is_short(front)):
            return None
        if waiting >= size:
            return self._cut(front, Reason.FULL)
        due, reason = self._due()
        return None if now < due else self._cut(front, reason)

    def next_deadline(self, *, back: bool = True) -> float | None:
        """When a batch is due for an idle worker, or None while nothing waits.  A moment in the past means now.

        `back` says whether items of BACK may leave; else they count for nothing here.
        """
        if self._suspects:
            return self._suspects[0].arrived
        if back and self._back_suspects:
            return self._back_suspects[0].arrived
        due = self._due()[0] if self._waiting else None
        if back and len(self._back):
            arrived = self._back.first.arrived
            return arrived if due is None else min(due, arrived)
        return due

    def ran(self, seconds: float, *, back: bool = False) -> None:
        """Learn how long a batch ran, to know when an item must leave to meet its deadline.

        `back` says that it had items of BACK alone: jobs may be of another kind than what is asked for in front.
        """
        if back:
            self.expected_back_run = _moved(self.expected_back_run, seconds)
        else:
            self.expected_run = _moved(self.expected_run, seconds)

    # -- who goes first ------------------------------------------------------------------------------------------

    def ahead_of(self, urgency: int, tenant: Tenant, lane: int, deadline: float) -> int:
        """How many of the waiting items would leave before a newcomer, if nobody came after it.

        For a newcomer of BACK it is all that wait.  Costs a look at each line.
        """
        if lane == BACK:
            return len(self)
        return len(self._suspects) + self._order.ahead_of(urgency, tenant, lane, deadline)

    def deadlines_behind(self, urgency: int, tenant: Tenant, lane: int, deadline: float) -> list[float]:
        """The deadlines of those of its own tenant, urgency and lane whom a newcomer would overtake, in their order."""
        line = self._order.find(urgency, tenant)
        return [] if line is None else line.lanes[lane].deadlines_after(deadline)

    def newest_unrun(self) -> Iterator[Item]:
        """The newest item of each line that has never run and is no suspect, those of the worst urgencies first.

        Their requests name urgency and tenant.  It is for the first stage, where the newest has the highest id, and
        costs a look at each line and at what was put back.  Nothing of BACK is among them.
        """
        for line in reversed(list(self._order.lines())):
            newest = None
            for lane in line.lanes:
                item = _newest_unrun(lane.members)
                if item is not None and (newest is None or item.id > newest.id):
                    newest = item
            if newest is not None:
                yield newest

    # -- what is due --------------------------------------------------------------------------------------------

    def _due(self) -> tuple[float, Reason]:
        """When the open batch of the lanes in front is due and why; called only while something waits there."""
        if self._bulk:
            return self._oldest(BULK), Reason.BULK
        oldest = self._oldest(SINGLE)
        if self._waiting >= self.policy.max_size:
            return oldest, Reason.FULL
        if self.draining:
            return oldest, Reason.DRAIN
        if self.policy.max_wait == 0:
            return oldest, Reason.IDLE
        if self._alone:
            return oldest, Reason.ALONE
        due = (oldest + self.policy.max_wait, Reason.WAITED)
        if self.policy.max_gap is not None:
            newest = max([next(reversed(members)).arrived for members in self._members(SINGLE)])
            due = min(due, (newest + self.policy.max_gap, Reason.GAP))
        return min(due, (self._earliest_deadline() - self.expected_run - self.round_trip_seconds, Reason.DEADLINE))

    def _oldest(self, lane: int) -> float:
        """When the first of those came that wait in `lane`; called only while some do."""
        sole = self._order.sole
        if sole is not None:
            return next(iter(sole.lanes[lane].members)).arrived
        return min([next(iter(members)).arrived for members in self._members(lane)])

    def _members(self, lane: int) -> list[OrderedDict[Item, Place | None]]:
        # Asked only while fewer than max_size items wait, or none can leave: there are no more lines than items.
        return [line.lanes[lane].members for line in self._order.lines() if line.lanes[lane].members]

    def _earliest_deadline(self) -> float:
        # Looked up only while fewer than max_size items wait, so the scan is as short as a batch.
        if self._earliest is None:
            singles = [item.deadline for members in self._members(SINGLE) for item in members]
            self._earliest = min(singles, default=math.inf)
        return self._earliest

    def _forget_deadline(self, item: Item) -> None:
        if self._earliest is not None and item.deadline <= self._earliest:
            self._earliest = None

    def _is_short(self, count: int) -> bool:
        """Whether a batch of `count` items is not to be sent to a busy worker."""
        return count < self.policy.max_size or self._alone > 0

    # -- the lanes in front -------------------------------------------------------------------------------------

    def _cut(self, count: int, reason: Reason) -> CutBatch:
        """A batch of the first `count` items of the lanes in front, or of as many as fit and may run together."""
        count = min(count, self.policy.max_size)
        alone = self._alone
        items = self._take_front(count)
        self._waiting -= len(items)
        if self._bulk:
            self._bulk -= sum([item.request.lane for item in items])
        if alone and (len(items) < count or self._alone < alone):
            reason = Reason.ALONE
        self.front_nbytes -= sum([item.nbytes for item in items])
        self._earliest = None if self._waiting > self._bulk else math.inf
        return CutBatch(items, reason)

    def _take_front(self, count: int) -> list[Item]:
        """The next `count` items, or as many as may run together."""
        order = self._order
        sole = order.sole
        if sole is not None and count and not self._alone:  # as below, where nobody else is there
            items = sole.take(count)
            if not len(sole):
                order.leave(sole)
            return items
        items = []
        while len(items) < count:
            line = order.first()
            together = count - len(items) if order.undisputed(line) else 1
            if self._alone:
                together = 1
                if line.first.request.alone:
                    if items:
                        break
                    self._alone -= 1
                    count = 1
            taken = line.take(together)
            order.serve(line, len(taken))
            if not len(line):
                order.leave(line)
            if items:
                items += taken
            else:
                items = taken
        return items

    # -- with the lane behind them ------------------------------------------------------------------------------

    def _take_with_back(self, now: float, idle: bool, front: int, waiting: int) -> CutBatch | None:
        """As `take`, where BACK fills a batch with `front` of the `waiting` items in front, or has its share of it."""
        size = self.policy.max_size
        behind = self._back.together(size)
        if not idle and self._is_short(front + behind):
            return None
        if waiting + behind >= size:
            reason = Reason.FULL
        else:
            due, reason = self._due() if front else (math.inf, Reason.BACK)
            if now < due:
                reason = Reason.BACK
        saturated = front >= size
        behind = min(behind, self._back.earn(size) if saturated else size - front)
        batch = self._cut(size - behind if saturated else front, reason)
        # One that is to be alone makes a batch due from beyond `front` too, and does not end that one.
        if batch.reason is not Reason.ALONE or (len(batch.items) == front and not batch.items[0].request.alone):
            if saturated:
                self._back.spend(behind)
            batch.items += self._back.take(behind)
            batch.back = behind
        return batch

    def _take_beside_alone(self, now: float, idle: bool, front: int, waiting: int) -> CutBatch | None:
        """As `take`, where the first item of BACK is to be alone: it goes while none in front is due, or by its share.

        It counts as a full batch of its share, because its worker does nothing else meanwhile.
        """
        size = self.policy.max_size
        if not idle and self._is_short(front):
            return None
        reason = Reason.FULL
        if waiting < size:
            due, reason = self._due() if front else (math.inf, Reason.ALONE)
            if now < due:
                return CutBatch(self._back.take(1), Reason.ALONE, 1)
        if self._back.earn(size) >= size:
            self._back.spend(size)
            return CutBatch(self._back.take(1), Reason.ALONE, 1)
        return self._cut(front, reason)


def _moved(expected: float, seconds: float) -> float:
    return expected + RUN_TIME_WEIGHT * (seconds - expected) if expected else seconds


def _newest_unrun(members: OrderedDict[Item, Place | None]) -> Item | None:
    for item in reversed(members):
        if not item.ran:
            return item
    return None
