"""Decide which requests are let in, and in which order the others wait.

Pure: it counts items and bytes.  It has nothing to do with requests of `Lane.BACK`: who submits those bounds them.

Contract
--------
* At most `max_items` items are in hand: fed, and not yet settled.
* A request is let in when there is room for one item and for all of its bytes.  Its bytes are held from then on.  Its
  further items are fed as there is room.
* At most `max_bytes` are held after a request was let in, finished answers not counted.  A request may be of any size
  if nothing else was held before it.
* While memory is short nobody is let in.  Who was let in before is fed further.
* A bulk call is fed further only while all bulk calls together have fewer than half of `max_items` in hand.  So a large
  call cannot shut single requests out.
* Those who wait are served by urgency, then by the weights of their tenants, then by turns of the two lanes;
  `serving_order` says how.  Within a lane of one tenant and urgency requests are fed one item each, in the order they
  came, or by their deadlines; one that has more to feed lines up again.
* A request that was let in is fed even while one before it has no room for its bytes yet.  Of those behind the line of
  that one, nobody else is let in.
* Whose lane has its most items in hand keeps nobody else waiting.
* A tenant may be held back: nothing of it is fed, and what of it waits keeps nobody else waiting.  When it is let go,
  its requests are in the order in which they would be.  `quotas` says who is held back.
* Newcomers get no room while a single request waits that is as urgent or more, so that none overtakes it.  Who
  displaces an item takes its place and no room (see `displacement`), and so overtakes nobody.
"""

from __future__ import annotations

from typing import Final

from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.ledger import ByteLedger
from penstock.core.serving_order import Line, ServingOrder
from penstock.core.tenants import WORST_URGENCY, Tenant
from penstock.core.waiting import EarliestDeadline, FirstCome

# Looked up for every item: constants cost nothing once compiled.
SINGLE: Final = int(Lane.SINGLE)
BULK: Final = int(Lane.BULK)


class RequestLine(Line[Request]):
    """The requests of one tenant with one urgency that wait."""

    def __init__(self, urgency: int, tenant: Tenant, *, by_deadline: bool) -> None:
        super().__init__(urgency, tenant, by_deadline=by_deadline)
        self.half_fed: list[FirstCome[Request]] = (
            [EarliestDeadline(), EarliestDeadline()] if by_deadline else [FirstCome(), FirstCome()]
        )
        """Those of the two lanes that are let in, and have payloads left to feed."""


class Admission:
    """The admission of one service.

    `items` is how many items are in hand, `waiting` how many requests wait for room or have items yet to be fed.
    `held_back` is how many more do so whose tenants are held back.  `ledger` counts the bytes held, those outside the
    queues included.  With `by_deadline` the earliest deadline goes first within a lane of one tenant and urgency.
    """

    def __init__(self, max_items: int, max_bytes: int, *, by_deadline: bool = False) -> None:
        self.max_items = max_items
        self.items = 0
        self.ledger = ByteLedger(max_bytes)
        self.waiting = 0
        self.held_back = 0
        self.tenants_changed = True
        """Whether other tenants than before have items in hand; who has looked sets it to False."""
        self._by_deadline = by_deadline
        self._order: ServingOrder[RequestLine] = ServingOrder()
        self._most_bulk = max(1, max_items // 2)
        """How many bulk items may be in hand together."""
        self._bulk_items = 0
        """Those of `items` that are bulk items."""
        self._bulk_waiting = 0
        """Those of `waiting` that are of bulk calls."""
        self._held: dict[Tenant, dict[int, RequestLine]] = {}
        """The lines of tenants that are held back, by urgency.  They take no part in the order."""

    def requests(self) -> list[Request]:
        """The requests that wait, line by line; last those that are held back."""
        lines = [*self._order.lines(), *[line for held in self._held.values() for line in held.values()]]
        return [request for line in lines for lane in line.lanes for request in lane.in_order()]

    def has_room(self, nbytes: int = 0, urgency: int = WORST_URGENCY) -> bool:
        """Whether a request of `nbytes` may come in now."""
        if self.items >= self.max_items:
            return False
        if self.waiting > self._bulk_waiting and urgency >= self._best_single:
            return False
        return self.ledger.has_room(nbytes)

    @property
    def _best_single(self) -> int:
        """The best urgency of a single request that waits; there must be one."""
        return next(line.urgency for line in self._order.lines() if line.singles.members)

    def must_wait(self, lane: int) -> bool:
        """Whether a request of `lane` that is ready to wait has to wait, although there is room.

        It has to where other requests of its lane wait already, or where its lane has its most items in hand.
        """
        if lane == BULK:
            return self._bulk_waiting > 0 or self._bulk_items >= self._most_bulk
        return self.waiting > self._bulk_waiting or self.items - self._bulk_items >= self.max_items

    # -- in and out -------------------------------------------------------------------------------------------------

    def let_in(self, request: Request) -> None:
        """Let `request` in and count its first item: its payloads are held from now on."""
        self.ledger.let_in(request)
        self._count_in(request)

    def line_up(self, request: Request) -> None:
        """Let `request` wait, behind all others of its rank, until `feed_next` names it."""
        held = self._held.get(request.tenant)
        if held is not None:
            self._add(self._held_line(held, request), request, admitted=request.admitted)
            self.held_back += 1
            return
        line = self._order.find(request.urgency, request.tenant)
        if line is None:
            line = RequestLine(request.urgency, request.tenant, by_deadline=self._by_deadline)
        if not line.present:
            self._order.enter(line)
        self._add(line, request, admitted=request.admitted)
        self.waiting += 1
        self._bulk_waiting += request.lane

    def feed_next(self) -> Request | None:
        """Count one more item in, and return the request whose next payload it is; None where none may be fed.

        The request is let in if it was not yet.  It lines up again if it has more payloads to feed.
        """
        if self.items >= self.max_items or not self.waiting:
            return None
        short_of_bytes = False
        for line in self._order.lines():
            request = self._next_of(line, short_of_bytes=short_of_bytes)
            if request is not None:
                self._feed(line, request)
                return request
            short_of_bytes = short_of_bytes or self._is_open(line, SINGLE) or self._is_open(line, BULK)
        return None

    def _next_of(self, line: RequestLine, *, short_of_bytes: bool) -> Request | None:
        """Who of `line` is fed next, if anybody can be.

        Of each lane it is the first request if it was let in or has room, else the first one that was let in.
        `short_of_bytes` says that somebody else has the first right to room for bytes.
        """
        for lane in (line.turn, 1 - line.turn):
            if self._is_open(line, lane):
                first = line.lanes[lane].first
                if first.admitted or (not short_of_bytes and self.ledger.has_room(first.unfed_bytes)):
                    return first
                if line.half_fed[lane].members:
                    return line.half_fed[lane].first
        return None

    def _is_open(self, line: RequestLine, lane: int) -> bool:
        """Whether somebody waits in `lane` of `line`, and the lane may have one more item in hand."""
        if lane == BULK:
            return self._bulk_items < self._most_bulk and len(line.bulk.members) > 0
        return len(line.singles.members) > 0

    def _feed(self, line: RequestLine, request: Request) -> None:
        lane = request.lane
        self._order.serve(line, 1)
        line.turn = 1 - lane
        self._remove(line, request)
        if request.admitted:
            self._count_in(request)
        else:
            self.let_in(request)
        if request.fed + 1 < len(request.payloads):
            self._add(line, request, admitted=True)
        else:
            self._leave(line, lane)

    def drop_unfed(self, request: Request) -> None:
        """Feed no more of `request`, whether it waits or not, and hold its unfed payloads no longer."""
        held = self._held.get(request.tenant)
        if held is not None:
            self._drop_held(held, request)
        else:
            line = self._order.find(request.urgency, request.tenant)
            if line is not None and request in line.lanes[request.lane].members:
                self._remove(line, request)
                self._leave(line, request.lane)
        self.ledger.drop_unfed(request)

    # -- who is held back -------------------------------------------------------------------------------------------

    def holds_back(self, tenant: Tenant) -> bool:
        """Whether something of `tenant` waits, and is held back."""
        return tenant in self._held

    def held_tenants(self) -> list[Tenant]:
        """The tenants that are held back."""
        return list(self._held)

    def unfed_of(self, tenant: Tenant) -> int:
        """How many items of `tenant`, which is held back, wait to be fed."""
        lanes = [lane for line in self._held[tenant].values() for lane in line.lanes]
        return sum([len(request.payloads) - request.fed for lane in lanes for request in lane.members])

    @property
    def held_back_bytes(self) -> int:
        """The bytes of requests that were let in, and whose unfed payloads are held back."""
        lanes = [lane for lines in self._held.values() for line in lines.values() for lane in line.half_fed]
        return sum([request.unfed_bytes for lane in lanes for request in lane.members])

    def hold_back(self, tenant: Tenant) -> None:
        """Feed nothing of `tenant` until `let_go`.  No change where nothing of it waits."""
        for urgency in range(WORST_URGENCY + 1):
            line = self._order.find(urgency, tenant)
            if line is None or not line.present or not len(line):
                continue
            self._order.suspend(line)
            self._held.setdefault(tenant, {})[urgency] = line
            self.waiting -= len(line)
            self._bulk_waiting -= len(line.bulk.members)
            self.held_back += len(line)

    def let_go(self, tenant: Tenant) -> None:
        """Hold `tenant`, which is held back, back no longer."""
        for line in self._held.pop(tenant).values():
            self._order.resume(line)
            self.waiting += len(line)
            self._bulk_waiting += len(line.bulk.members)
            self.held_back -= len(line)

    def _held_line(self, held: dict[int, RequestLine], request: Request) -> RequestLine:
        """The line of `request` among those of its tenant that are held back."""
        line = held.get(request.urgency)
        if line is None:
            line = self._order.find(request.urgency, request.tenant)
            if line is None:
                line = RequestLine(request.urgency, request.tenant, by_deadline=self._by_deadline)
            line.turn = SINGLE
            held[request.urgency] = line
        return line

    def _drop_held(self, held: dict[int, RequestLine], request: Request) -> None:
        line = held.get(request.urgency)
        if line is None or request not in line.lanes[request.lane].members:
            return
        self._remove(line, request)
        self.held_back -= 1
        if not len(line):
            del held[request.urgency]
            if not held:
                del self._held[request.tenant]

    # -- out --------------------------------------------------------------------------------------------------------

    def settle(self, item: Item) -> None:
        """Count `item` out, and hold its payload no longer."""
        self.items -= 1
        request = item.request
        self._bulk_items -= request.lane
        tenant = request.tenant
        tenant.items -= 1
        if not tenant.items:
            self.tenants_changed = True
        self.ledger.settle(item)

    def _count_in(self, request: Request) -> None:
        self.items += 1
        self._bulk_items += request.lane
        tenant = request.tenant
        if not tenant.items:
            self.tenants_changed = True
        tenant.items += 1

    def _add(self, line: RequestLine, request: Request, *, admitted: bool) -> None:
        line.lanes[request.lane].add(request, request.deadline)
        if admitted:
            line.half_fed[request.lane].add(request, request.deadline)

    def _remove(self, line: RequestLine, request: Request) -> None:
        line.lanes[request.lane].remove(request)
        if request.admitted:
            line.half_fed[request.lane].remove(request)

    def _leave(self, line: RequestLine, lane: int) -> None:
        """One who waited in `lane` of `line` does so no longer."""
        self.waiting -= 1
        self._bulk_waiting -= lane
        if not len(line):
            self._order.leave(line)
