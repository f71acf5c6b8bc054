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
* A batch has at most `max_size` items, which is what the policy says, or fewer for a while.  A suspect (see `retry`) is
  always a batch of its own, and so is an item of a request that is to be alone.  A suspect goes before everything else;
  an item that is to be alone keeps its place in its lane, and ends the batch before it.  One of BACK counts as a full
  batch of its share.
* An idle worker that asks at or after `next_deadline()` gets a batch.  Where the wait is learned, a hold may begin with
  the first that asks; from then on it is so.
* A busy worker whose window is not full gets a batch only if the batch is full.  Otherwise the items of few callers
  would be split into many small batches.
* Every batch knows the reason it was cut.

A batch is due at the first of these moments:

* at once, when it is full, when bulk items or items of BACK wait, when draining, with `max_wait=0`, and when an item
  that is to be alone ends it;
* at oldest + max_wait, and at newest + max_idle_gap;
* with `max_wait="auto"`, when `company` says that it is not worth waiting any longer, and at once when an item waits
  that was put back, and where runs are so short that no timer could end a hold in time;
* with `delay_when_idle=False`, at once when an item came where a worker had been free longer than max_wait;
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
from penstock.core.company import Company
from penstock.core.cuts import CutBatch, Reason
from penstock.core.item import Item
from penstock.core.lanes import Lane
from penstock.core.run_times import RunTimes
from penstock.core.serving_order import Line, ServingOrder
from penstock.core.tenants import Tenant
from penstock.core.waiting import Place
from penstock.core.worker_batches import WorkerBatches

# Looked up for every item: constants cost nothing once compiled.
SINGLE: Final = int(Lane.SINGLE)
BULK: Final = int(Lane.BULK)
BACK: Final = int(Lane.BACK)

TIMER_STEP: Final = 0.001
"""The resolution of the timers of an event loop, in seconds."""


class ItemLine(Line[Item]):
    """The items of one tenant with one urgency."""


class BatchQueue:
    """The items that wait for one stage.

    `nbytes` is the size of their payloads; `len()` is their number.  Those of the lanes in front and those of BACK are
    told apart, because neither takes room from the other.  Set `draining` to let none wait for company any longer.
    `round_trip_seconds` is how long a batch takes besides its run: to meet a deadline, it leaves so much earlier.
    `runs` is how long batches run that have an item of the lanes in front, `back_runs` those that have none.
    `back_share` is the share of BACK, from 0 to 1.  `by_deadline` says that within a lane of one tenant and urgency the
    earliest deadline goes first.

    `workers` is how many may be given batches; set it as they come and go.  At most `max_in_flight_batches` batches are
    with them at once; None is any number.  `timer_step` is the resolution of the timers, in seconds.  `held_seconds` is
    the time in which a worker was free and singles were held, `last_hold` the hold last decided on, 0 for none.
    `learns` says whether the wait is learned.
    """

    def __init__(
        self,
        policy: Batch,
        workers: int = 1,
        *,
        max_batches: int | None = None,
        round_trip_seconds: float = 0.0,
        back_share: float = 0.0,
        by_deadline: bool = False,
        timer_step: float = TIMER_STEP,
    ) -> None:
        self.policy = policy
        self.max_size = policy.max_size
        """The most items of a batch now: fewer than the policy says where memory was short."""
        self.round_trip_seconds = round_trip_seconds
        self.draining = False
        self.front_nbytes = 0
        self.runs = RunTimes()
        self.back_runs = RunTimes()
        self._workers = workers
        self.held_seconds = 0.0
        self.last_hold = 0.0
        self._held_since = -1.0
        """Since when a free worker is held; -1 while none is."""
        self._held_until = 0.0
        """Until when it is, as that was last decided: later no worker may have been free."""
        self._max_wait = 0.0 if isinstance(policy.max_wait, str) else policy.max_wait
        """The fixed wait; 0 where it is learned."""
        self._batches: WorkerBatches | None = None
        """The batches of the workers, where the policy asks for them."""
        self._learner: Company | None = None
        """The hold, where it is learned."""
        self._company: Company | None = None
        """The same, while runs are so long that somebody may be held."""
        self.learns = isinstance(policy.max_wait, str) and policy.max_size > 1
        if self.learns or not policy.delay_when_idle:
            self._batches = WorkerBatches(workers, max_batches)
            if self.learns:
                self._learner = Company(self.runs, self._batches, timer_step)
        self._never_held = -math.inf
        """When the last single came that is not to be held; those that came before it are not held either."""
        self._put_back: set[Item] = set()
        """The singles among those that wait that were put back, where the hold is learned."""
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
        if self._batches is not None and lane == SINGLE and not request.alone:
            if self._company is not None:
                self._company.arrived(now, self._waiting - self._bulk - 1)
            elif self._learner is None and self._batches.free_for(now) > self._max_wait:
                self._never_held = now

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
            if self._learner is not None and item.request.lane == SINGLE:
                self._put_back.add(item)
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
        if self._batches is not None:
            self._batches.in_hand(self.front_items)
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
        if self._put_back:
            self._put_back.discard(item)
        if self._waiting == self._bulk:
            self._end_hold(self._held_since)

    def take(
        self, now: float, *, idle: bool = True, at_most: int | None = None, back: bool = True, worker: int = 0
    ) -> CutBatch | None:
        """The next batch, or None if none is due.

        `idle` says whether the asking worker, whose number is `worker`, has nothing to do.  `at_most` is the room that
        the next stage's queue has for items of the lanes in front; None is any number, 0 is none.  `back` says whether
        items of BACK may leave.  A batch counts as sent to the worker until `ran`, `unsent` or `lost` says otherwise.
        """
        if self._company is not None and idle and self._waiting > self._bulk:
            self._company.asked(now)
        batch = self._take(now, idle, at_most, back, worker)
        if batch is not None:
            if len(batch.items) > batch.back and batch.reason is not Reason.RETRY:  # those who are held have left
                self._end_hold(now)
            if self._batches is not None:
                self._batches.sent(worker, len(batch.items), now)
        return batch

    def _take(self, now: float, idle: bool, at_most: int | None, back: bool, worker: int) -> CutBatch | None:
        if self._suspects and at_most != 0:
            suspect = self._suspects.popleft()
            self.front_nbytes -= suspect.nbytes
            return CutBatch([suspect], Reason.RETRY)
        if self._back_suspects and back:
            return CutBatch([self._back_suspects.popleft()], Reason.RETRY, 1)
        size = self.max_size
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
        if self._company is not None:
            self._ask(self._company, now, front, size if at_most is None else min(size, at_most), worker)
        due, reason = self._due()
        if now < due:
            if self._held_since < 0.0:
                self._held_since = now
            self._held_until = due
            self.last_hold = due - self._held_since
            return None
        return self._cut(front, reason)

    def _ask(self, company: Company, now: float, waiting: int, most: int, worker: int) -> None:
        """Have the hold of a free worker decided on anew, unless it has run out."""
        if 0.0 < company.until <= now:
            return
        spent = now - self._held_since if self._held_since >= 0.0 else 0.0
        company.until = company.hold(waiting, most - waiting, worker, now, spent)

    def suspect_is_next(self, *, at_most: int | None, back: bool) -> bool:
        """Whether the next batch would be a suspect, where `at_most` and `back` are as for `take`."""
        return (bool(self._suspects) and at_most != 0) or (bool(self._back_suspects) and back)

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

    # -- workers --------------------------------------------------------------------------------------------------

    def expected_run(self, size: int) -> float:
        """How many seconds a batch of `size` items of the lanes in front should run; 0 until there was one."""
        return self.runs.expected(size)

    def expected_back_run(self, size: int) -> float:
        """The same for a batch that has items of BACK alone."""
        return self.back_runs.expected(size)

    @property
    def workers(self) -> int:
        """How many workers may be given batches."""
        return self._workers

    @workers.setter
    def workers(self, workers: int) -> None:
        more = workers > self._workers
        self._workers = workers
        if self._batches is not None:
            self._batches.workers = workers
            if more:
                self._batches.came_free = True
        if workers == 0:
            self._end_hold(self._held_since)
            if self._company is not None:
                self._company.drop_window()

    def ran(
        self, seconds: float, size: int, now: float, worker: int = 0, *, back: bool = False, calls: int = 1
    ) -> None:
        """Note that the oldest batch of `worker` is back, of which `size` items ran for `seconds`, in so many calls.

        Its run is learned if it was one call.  `back` says that it had items of BACK alone: jobs may be of another kind
        than what is asked for in front.
        """
        if calls == 1 and size > 0:
            (self.back_runs if back else self.runs).add(seconds, size)
            if self._learner is not None and self._held_since < 0.0:
                self._hold_or_not(self._learner)
        if self._batches is not None:
            self._batches.back(worker, self.front_items, now)

    def _hold_or_not(self, learner: Company) -> None:
        """Count arrivals only while somebody may be held: a stage with short runs does not pay for it."""
        if learner.can_hold:
            self._company = learner
        elif self._company is not None:
            learner.drop_window()
            self._company = None

    def lost(self, worker: int, now: float) -> None:  # noqa: ARG002  # as all else that happens to a worker
        """Forget what `worker` had: it is gone."""
        if self._batches is not None:
            self._batches.lost(worker, self.front_items)

    def unsent(self, worker: int) -> None:
        """Forget the batch that was taken last for `worker`: none of it was sent."""
        if self._batches is not None:
            self._batches.unsent(worker, self.front_items)

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
        if self._waiting >= self.max_size:
            return oldest, Reason.FULL
        if self.draining:
            return oldest, Reason.DRAIN
        company = self._company
        if (company is None and self._max_wait == 0) or oldest <= self._never_held or self._put_back:
            return oldest, Reason.IDLE
        if self._alone:
            return oldest, Reason.ISOLATED
        if company is not None:
            if company.until == 0.0:
                return oldest, Reason.IDLE if self._held_since < 0.0 else Reason.ADAPTIVE
            due = (company.until, Reason.ADAPTIVE_TIMEOUT)
        else:
            due = (oldest + self._max_wait, Reason.TIMEOUT)
        if self.policy.max_idle_gap is not None:
            newest = max([next(reversed(members)).arrived for members in self._members(SINGLE)])
            due = min(due, (newest + self.policy.max_idle_gap, Reason.IDLE_GAP))
        run = self.expected_run(min(self._waiting, self.max_size))
        return min(due, (self._earliest_deadline() - run - self.round_trip_seconds, Reason.DEADLINE))

    def _end_hold(self, now: float) -> None:
        """No free worker is held any longer."""
        if self._held_since >= 0.0:
            self.held_seconds += min(now, self._held_until) - self._held_since
            self._held_since = -1.0
        else:
            self.last_hold = 0.0
        if self._company is not None:
            self._company.until = 0.0

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
        return count < self.max_size or self._alone > 0

    # -- the lanes in front -------------------------------------------------------------------------------------

    def _cut(self, count: int, reason: Reason) -> CutBatch:
        """A batch of the first `count` items of the lanes in front, or of as many as fit and may run together."""
        count = min(count, self.max_size)
        alone = self._alone
        items = self._take_front(count)
        self._waiting -= len(items)
        if self._bulk:
            self._bulk -= sum([item.request.lane for item in items])
        if alone and (len(items) < count or self._alone < alone):
            reason = Reason.ISOLATED
        self.front_nbytes -= sum([item.nbytes for item in items])
        if self._put_back:
            self._put_back.difference_update(items)
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
        size = self.max_size
        behind = self._back.together(size)
        if not idle and self._is_short(front + behind):
            return None
        if waiting + behind >= size:
            reason = Reason.FULL
        else:
            due, reason = self._due() if front else (math.inf, Reason.BACKGROUND)
            if now < due:
                reason = Reason.BACKGROUND
        saturated = front >= size
        behind = min(behind, self._back.earn(size) if saturated else size - front)
        batch = self._cut(size - behind if saturated else front, reason)
        # One that is to be alone makes a batch due from beyond `front` too, and does not end that one.
        if batch.reason is not Reason.ISOLATED or (len(batch.items) == front and not batch.items[0].request.alone):
            if saturated:
                self._back.spend(behind)
            batch.items += self._back.take(behind)
            batch.back = behind
        return batch

    def _take_beside_alone(self, now: float, idle: bool, front: int, waiting: int) -> CutBatch | None:
        """As `take`, where the first item of BACK is to be alone: it goes while none in front is due, or by its share.

        It counts as a full batch of its share, because its worker does nothing else meanwhile.
        """
        size = self.max_size
        if not idle and self._is_short(front):
            return None
        reason = Reason.FULL
        if waiting < size:
            due, reason = self._due() if front else (math.inf, Reason.ISOLATED)
            if now < due:
                if self._company is None or not front:
                    return CutBatch(self._back.take(1), Reason.ISOLATED, 1)
                reason = Reason.BACKGROUND  # it ends the hold: it may run for long, and who is held would wait for that
        if self._back.earn(size) >= size:
            self._back.spend(size)
            return CutBatch(self._back.take(1), Reason.ISOLATED, 1)
        return self._cut(front, reason)


def _newest_unrun(members: OrderedDict[Item, Place | None]) -> Item | None:
    for item in reversed(members):
        if not item.ran:
            return item
    return None
