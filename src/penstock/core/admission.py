"""Decide which requests are let in, and in which order the others wait.

Pure: it counts items and bytes.  It has nothing to do with requests of `Lane.BACK`: who submits
those bounds them.

Contract
--------
* At most `max_items` items are in hand: fed, and not yet settled.
* A request is let in when there is room for one item and for all of its bytes.  Its bytes are held from then on.  Its
  further items are fed as there is room.
* At most `max_bytes` are held after a request was let in, finished answers not counted.  A request may be of any size
  if nothing else was held before it.
* A bulk call is fed further only while all bulk calls together have fewer than half of `max_items` in hand.  So a large
  call cannot shut single requests out.
* Requests of one lane are fed one item each, in the order they came; one that has more to feed lines up again.  The
  lanes take turns.
* A request that was let in is fed even while one before it has no room for its bytes yet.
* Newcomers get no room while a single request waits, so that none overtakes it.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.core.item import Item, Request
from penstock.core.lanes import FRONT, Lane, Turns
from penstock.core.ledger import ByteLedger


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
    """The admission of one service.

    `items` is how many items are in hand.  `ledger` counts the bytes held, those outside the queues included.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.items = 0
        self.ledger = ByteLedger(max_bytes)
        half = max(1, max_items // 2)
        self._lanes = [AdmissionLane(max_items if lane is Lane.SINGLE else half) for lane in FRONT]
        self._singles = self._lanes[Lane.SINGLE]
        self._turns = Turns(len(self._lanes))

    @property
    def waiting(self) -> int:
        """Requests that wait for room or have items yet to be fed."""
        count = 0
        for lane in self._lanes:
            count += len(lane.waiting)
        return count

    def requests(self) -> list[Request]:
        """The requests that wait, lane by lane."""
        return [request for lane in self._lanes for request in lane.waiting]

    @property
    def items_full(self) -> bool:
        """Whether a request of no bytes has to stay out: so many items are in hand, or a single request waits."""
        return self.items >= self.max_items or bool(self._singles.waiting)

    def has_room(self, nbytes: int = 0) -> bool:
        """Whether a request of `nbytes` may come in now."""
        return not self.items_full and self.ledger.has_room(nbytes)

    def must_wait(self, lane: int) -> bool:
        """Whether a request of `lane` that is ready to wait has to wait, although there is room.

        It has to where other requests of its lane wait already, or where its lane has its most items in hand.
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
        """Count one more item in, and return the request whose next payload it is; None where none may be fed.

        The request is let in if it was not yet.  It lines up again if it has more payloads to feed.
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
        """The first request of `lane` if it was let in or has room, else the first one that was let in."""
        if not lane.waiting or lane.items >= lane.max_items:
            return None
        first = next(iter(lane.waiting))
        if first.admitted or self.ledger.has_room(first.unfed_bytes):
            return first
        return next(iter(lane.half_fed), None)
