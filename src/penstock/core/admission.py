"""Decide who comes in.  Pure: it counts items and bytes and orders those who wait; it is told the time.

Contract
--------
* At most `max_items` items are in hand: fed, and not yet settled.
* A request is let in when there is room for one item and for all of its bytes; they are held from then on.  Its further
  items are fed as room appears.
* No more than `max_bytes` are held once a request was let in.  Where nothing was held before, it may be of any size.
* A bulk call is fed further only while bulk calls together have less than half of all room for items: a large call
  cannot shut single requests out.
* Requests of one lane are fed one item each, in the order they came; one that has more to feed lines up again.  The
  lanes take turns.
* A request that is in already is fed although another one, before it, has no room for its bytes yet.
* While a single request waits there is no room for newcomers, so nobody overtakes it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from penstock.core.item import Item, Request
from penstock.core.lanes import Lane, Turns
from penstock.core.ledger import ByteLedger

RATE_SPAN_SECONDS = 10.0
"""How far back the rate is measured that a caller's time to come again is reckoned from."""
LONGEST_RETRY_SECONDS = 60
"""The longest time that a caller is told to wait; a service that has settled nothing lately has no rate."""


class AdmissionLane:
    """The requests of one lane that wait, and how many of the lane's items are in hand."""

    def __init__(self, max_items: int) -> None:
        self.max_items = max_items
        """How many items of this lane may be in hand together."""
        self.items = 0
        # Ordered by arrival; dicts, so that one of many thousands can leave as cheaply as the first.
        self.waiting: OrderedDict[Request, None] = OrderedDict()
        self.half_fed: OrderedDict[Request, None] = OrderedDict()
        """Those of `waiting` that are let in, and have payloads left to feed."""


class Admission:
    """The door of one service.  `items` are in hand now; `ledger` has the bytes held, also those that lie outside."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.items = 0
        self.ledger = ByteLedger(max_bytes)
        half = max(1, max_items // 2)
        self._lanes = [AdmissionLane(max_items if lane is Lane.SINGLE else half) for lane in Lane]
        self._singles = self._lanes[Lane.SINGLE]
        self._turns = Turns(len(self._lanes))
        self._settled = 0
        self._marks: deque[tuple[float, int]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for room or have items yet to be fed."""
        count = 0
        for lane in self._lanes:
            count += len(lane.waiting)
        return count

    def requests(self) -> list[Request]:
        """Those who wait, lane by lane."""
        return [request for lane in self._lanes for request in lane.waiting]

    def has_room(self, nbytes: int = 0) -> bool:
        """Whether a request of `nbytes` may come in now."""
        if self.items >= self.max_items or self._singles.waiting:
            return False
        return self.ledger.has_room(nbytes)

    def must_wait(self, lane: int) -> bool:
        """Whether a request of `lane` that can wait must, though there is room.

        It must where others of its lane came before, or where the lane has all the items in hand that it may have.
        """
        found = self._lanes[lane]
        return bool(found.waiting) or found.items >= found.max_items

    # -- in and out -------------------------------------------------------------------------------------------------

    def let_in(self, request: Request) -> None:
        """Let `request` in and count its first item: its payloads are held from now on."""
        self.ledger.let_in(request)
        self._count_in(request)

    def line_up(self, request: Request) -> None:
        """Let `request` wait, behind all others of its lane, until `feed_next` names it."""
        lane = self._lanes[request.lane]
        lane.waiting[request] = None
        if request.admitted:
            lane.half_fed[request] = None

    def feed_next(self) -> Request | None:
        """Count one more item in, and name the request that has it as its next payload; None where none may be fed.

        A request that was outside is let in.  One that has more to feed lines up again.
        """
        if self.items >= self.max_items:
            return None
        for number in self._turns.order():
            request = self._first(self._lanes[number])
            if request is not None:
                self._turns.pass_on(number)
                self._leave_line(request)
                if request.admitted:
                    self._count_in(request)
                else:
                    self.let_in(request)
                if request.fed + 1 < len(request.payloads):
                    self.line_up(request)
                return request
        return None

    def drop_unfed(self, request: Request) -> None:
        """Feed no more of `request`, whether it waits or not, and hold its unfed payloads no longer."""
        self._leave_line(request)
        self.ledger.drop_unfed(request)

    def settle(self, item: Item) -> None:
        """Count `item` out, and hold its payload no longer."""
        self.items -= 1
        self._settled += 1
        self._lanes[item.request.lane].items -= 1
        self.ledger.settle(item)

    def _count_in(self, request: Request) -> None:
        self.items += 1
        self._lanes[request.lane].items += 1

    def _leave_line(self, request: Request) -> None:
        lane = self._lanes[request.lane]
        lane.waiting.pop(request, None)
        lane.half_fed.pop(request, None)

    def _first(self, lane: AdmissionLane) -> Request | None:
        """Who of `lane` is next: the first, or, where that one has no room yet, the first who is in already."""
        if not lane.waiting or lane.items >= lane.max_items:
            return None
        first = next(iter(lane.waiting))
        if first.admitted or self.ledger.has_room(first.unfed_bytes):
            return first
        return next(iter(lane.half_fed), None)

    # -- when to come again -----------------------------------------------------------------------------------------

    def mark(self, now: float) -> None:
        """Note how much was settled by `now`; called about once a second while anything is."""
        while self._marks and self._marks[0][0] < now - RATE_SPAN_SECONDS:
            self._marks.popleft()
        self._marks.append((now, self._settled))

    def retry_after(self, now: float) -> int:
        """Queue divided by recent rate, in whole seconds, from 1 to 60."""
        then, settled = self._marks[0] if self._marks else (now, self._settled)
        span = max(now - then, 1.0)
        # Where nothing was settled in all that time, one item is the most that can be said.
        rate = max(self._settled - settled, 1) / span
        return max(1, min(LONGEST_RETRY_SECONDS, math.ceil(self.items / rate)))
