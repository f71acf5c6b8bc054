"""Decide which items of a stage run together.  No clock, no lock, no await: it is told the time.

Contract
--------
* An offered item leaves in exactly one batch, or is discarded exactly once.
* Items of one lane leave in the order they were offered; an item put back goes to the head.
* Lanes take turns item by item while more than one of them waits.
* A batch has at most `policy.max_size` items; a suspect (see `retry`) is always a batch of its own.
* An idle worker that asks at or after `next_deadline()` gets a batch.
* A busy worker whose window is not full gets a batch only if the batch is full.  Otherwise the items of few callers
  would be split into many small batches.
* Every batch knows the reason it was cut.

A batch is due at the first of these moments:

* at once, when it is full, when bulk items wait, when draining, and with `max_wait=0`;
* at oldest + max_wait, and at newest + max_gap;
* at an item's deadline, less the expected run time and `round_trip_seconds`, the time to the worker and back.

Only single requests wait for company.  Times are counted from an item's arrival at this stage, not from the moment of a
call.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain
from typing import Final

from penstock.config import Batch
from penstock.core.item import Item
from penstock.core.lanes import Lane, Turns

SINGLE: Final = int(Lane.SINGLE)  # looked up for every item: a constant costs nothing once compiled

# How far one run moves the estimate of the next: a handful of batches decide, one outlier does not.
RUN_TIME_WEIGHT = 0.2


class Reason(StrEnum):
    """Why a batch was cut, by the names metrics and logs use."""

    FULL = "full"
    """It reached `max_size`, or the room of the next stage's queue."""
    WAITED = "waited"
    """Its oldest item waited `max_wait`."""
    GAP = "gap"
    """Nothing arrived for `max_gap`."""
    IDLE = "idle"
    """A worker was free and the policy lets no item wait for company."""
    DEADLINE = "deadline"
    """An item had to run now or miss its deadline."""
    BULK = "bulk"
    """Items that came together do not wait for company."""
    RETRY = "retry"
    """A suspect, run alone after the death of a worker."""
    DRAIN = "drain"
    """The service is stopping."""


class CutBatch:
    """Items that run together, and the reason for the cut."""

    __slots__ = ("items", "reason")

    def __init__(self, items: list[Item], reason: Reason) -> None:
        self.items = items
        self.reason = reason


class BatchQueue:
    """The items that wait for one stage.

    `nbytes` is the size of their payloads; `len()` is their number.  Set `draining` to let none wait for company any
    longer.  `round_trip_seconds` is how long a batch takes besides its run: to meet a deadline, it leaves so much
    earlier.
    """

    def __init__(self, policy: Batch, *, round_trip_seconds: float = 0.0) -> None:
        self.policy = policy
        self.round_trip_seconds = round_trip_seconds
        self.draining = False
        self.nbytes = 0
        self.expected_run = 0.0
        # Ordered by arrival and keyed by item, so that discarding one of many thousands is as cheap as taking one.
        self._lanes: list[OrderedDict[Item, None]] = [OrderedDict() for _ in Lane]
        self._singles = self._lanes[Lane.SINGLE]
        self._at_once = [self._lanes[lane] for lane in Lane if lane is not Lane.SINGLE]
        """The lanes whose items never wait for company."""
        self._suspects: deque[Item] = deque()
        self._turns = Turns(len(self._lanes))
        # The earliest deadline among the singles; None means "look again".
        self._earliest: float | None = math.inf

    def __len__(self) -> int:
        return self._waiting() + len(self._suspects)

    def __iter__(self) -> Iterator[Item]:
        return chain(self._suspects, *self._lanes)

    # -- in -----------------------------------------------------------------------------------------------------

    def offer(self, item: Item, now: float) -> None:
        """Take `item` in; its wait starts at `now`."""
        item.arrived = now
        self.nbytes += item.nbytes
        lane = item.request.lane
        self._lanes[lane][item] = None
        if self._earliest is not None and item.deadline < self._earliest and lane == SINGLE:
            self._earliest = item.deadline

    def put_back(self, items: list[Item]) -> None:
        """Return `items`, in their order, to the head: their worker ended before it looked at them."""
        for item in reversed(items):
            self.nbytes += item.nbytes
            lane = self._lanes[item.request.lane]
            lane[item] = None
            lane.move_to_end(item, last=False)
        self._earliest = None

    def retry(self, items: list[Item]) -> None:
        """Queue suspects: each runs alone, before everything else."""
        for item in items:
            self.nbytes += item.nbytes
            self._suspects.append(item)

    # -- out ----------------------------------------------------------------------------------------------------

    def discard(self, item: Item) -> None:
        """Forget a queued item: its caller left or its deadline passed."""
        self.nbytes -= item.nbytes
        if item.suspect:
            self._suspects.remove(item)
            return
        del self._lanes[item.request.lane][item]
        self._forget_deadline(item)

    def take(self, now: float, *, idle: bool = True, at_most: int | None = None) -> CutBatch | None:
        """The next batch, or None if none is due.

        `idle` says whether the asking worker has nothing to do.  `at_most` is the room of the next stage's queue in
        items, at least 1; None is any number.
        """
        if self._suspects:
            suspect = self._suspects.popleft()
            self.nbytes -= suspect.nbytes
            return CutBatch([suspect], Reason.RETRY)
        size = self.policy.max_size
        waiting = self._waiting()
        if waiting == 0:
            return None
        if not idle and (waiting < size or (at_most is not None and at_most < size)):
            return None
        if waiting >= size:
            return self._cut(size if at_most is None else min(size, at_most), Reason.FULL)
        due, reason = self._due()
        if now < due:
            return None
        return self._cut(waiting if at_most is None else min(waiting, at_most), reason)

    def next_deadline(self) -> float | None:
        """When a batch is due for an idle worker, or None while nothing waits.  A moment in the past means now."""
        if self._suspects:
            return self._suspects[0].arrived
        return self._due()[0] if self._waiting() else None

    def ran(self, seconds: float) -> None:
        """Learn how long a batch ran, to know when an item must leave to meet its deadline."""
        if self.expected_run == 0.0:
            self.expected_run = seconds
        else:
            self.expected_run += RUN_TIME_WEIGHT * (seconds - self.expected_run)

    # -- how ----------------------------------------------------------------------------------------------------

    def _waiting(self) -> int:
        """Items that wait in the lanes: all but the suspects."""
        count = 0
        for lane in self._lanes:
            count += len(lane)
        return count

    def _due(self) -> tuple[float, Reason]:
        """When the open batch is due and why; called only while something waits in a lane."""
        for lane in self._at_once:
            if lane:
                return next(iter(lane)).arrived, Reason.BULK
        oldest = next(iter(self._singles)).arrived
        if len(self._singles) >= self.policy.max_size:
            return oldest, Reason.FULL
        if self.draining:
            return oldest, Reason.DRAIN
        if self.policy.max_wait == 0:
            return oldest, Reason.IDLE
        due = (oldest + self.policy.max_wait, Reason.WAITED)
        if self.policy.max_gap is not None:
            newest = next(reversed(self._singles)).arrived
            due = min(due, (newest + self.policy.max_gap, Reason.GAP))
        return min(due, (self._earliest_deadline() - self.expected_run - self.round_trip_seconds, Reason.DEADLINE))

    def _earliest_deadline(self) -> float:
        # Looked up only while fewer than max_size items wait, so the scan is as short as a batch.
        if self._earliest is None:
            self._earliest = min((item.deadline for item in self._singles), default=math.inf)
        return self._earliest

    def _forget_deadline(self, item: Item) -> None:
        if self._earliest is not None and item.deadline <= self._earliest:
            self._earliest = None

    def _cut(self, count: int, reason: Reason) -> CutBatch:
        alone = self._lane_alone()
        items = self._take_turns(count) if alone is None else _take_first(alone, count)
        self.nbytes -= sum([item.nbytes for item in items])
        self._earliest = None if self._singles else math.inf
        return CutBatch(items, reason)

    def _lane_alone(self) -> OrderedDict[Item, None] | None:
        """The only lane in which items wait, or None where they wait in more than one."""
        found = None
        for lane in self._lanes:
            if lane:
                if found is not None:
                    return None
                found = lane
        return found

    def _take_turns(self, count: int) -> list[Item]:
        items: list[Item] = []
        while len(items) < count:
            order = self._turns.order()
            position = 0
            while not self._lanes[order[position]]:
                position += 1
            items.append(self._lanes[order[position]].popitem(last=False)[0])
            # The turn passes on with each item, also where the lane whose turn it was is empty.
            self._turns.pass_on(order[0])
        return items


def _take_first(lane: OrderedDict[Item, None], count: int) -> list[Item]:
    if count >= len(lane):
        items = list(lane)
        lane.clear()
        return items
    return [lane.popitem(last=False)[0] for _ in range(count)]
