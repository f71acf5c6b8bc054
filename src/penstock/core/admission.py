"""Decide who comes in.  Pure: it counts items and bytes and orders those who wait; it is told the time.

Contract
--------
* At most `max_items` items are in hand (accepted and fed, not yet settled).
* A request needs room for one item; a bulk call's further items are fed as room appears, at most half of all
  room to bulk calls together, and in turn among them: a large call cannot shut single requests out.
* When more than `max_bytes` are held nobody comes in, except when nothing at all is held: one item always passes.
* Whoever waits is let in when there is room for all of its bytes; they are held from then on.  Those who are in
  already are not kept waiting by one who is not.
* Those who wait are fed in the order they came, singles and bulk calls taking turns; while a single request waits
  there is no room for newcomers, so nobody overtakes it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from penstock.core.item import Request

RATE_WINDOW = 10.0
LONGEST_RETRY = 60


class Admission:
    """The door of one service.  `items` and `held` are in hand now; `held` also counts bytes that lie outside."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.items = 0
        self.held = 0
        self._bulk_items = 0
        self._bulk_share = max(1, max_items // 2)
        # Ordered by arrival; dicts, so that one of many thousands can leave as cheaply as the first.
        self._singles: OrderedDict[Request, None] = OrderedDict()
        self._bulk: OrderedDict[Request, None] = OrderedDict()
        self._half_fed: OrderedDict[Request, None] = OrderedDict()
        """Those of both lanes who are let in and have items left to feed."""
        self._bulk_turn = False
        self._settled = 0
        self._marks: deque[tuple[float, int]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for room or have items yet to be fed."""
        return len(self._singles) + len(self._bulk)

    def has_room(self, nbytes: int = 0) -> bool:
        """Whether one more item of `nbytes` may come in now."""
        if self.items >= self.max_items or self._singles:
            return False
        return self._fits(nbytes)

    def admit(self, request: Request) -> None:
        """Let `request` in: its payloads are held from now on."""
        request.admitted = True
        self.held += request.unfed_bytes

    def enter(self, bulk: bool) -> None:
        """Count one item in."""
        self.items += 1
        if bulk:
            self._bulk_items += 1

    def leave(self, bulk: bool) -> None:
        """Count one item out, settled."""
        self.items -= 1
        self._settled += 1
        if bulk:
            self._bulk_items -= 1

    def wait(self, request: Request) -> None:
        """Let `request` wait until `next_fed` names it."""
        (self._bulk if request.bulk else self._singles)[request] = None
        if request.admitted:
            self._half_fed[request] = None

    def must_wait(self, bulk: bool) -> bool:
        """Whether one who can wait must, though there is room: others came before, or bulk calls have their half."""
        if bulk:
            return bool(self._bulk) or self._bulk_items >= self._bulk_share
        return bool(self._singles)

    def requests(self) -> list[Request]:
        """Those who wait."""
        return [*self._singles, *self._bulk]

    def forget(self, request: Request) -> None:
        """Drop a request that waits: it has nothing more to feed."""
        (self._bulk if request.bulk else self._singles).pop(request, None)
        self._half_fed.pop(request, None)

    def next_fed(self) -> Request | None:
        """Whose next item may be fed now, or None; the request is let in if it was not, and the item counted in."""
        if self.items >= self.max_items:
            return None
        single = self._first(self._singles, bulk=False)
        bulk = self._first(self._bulk, bulk=True) if self._bulk_items < self._bulk_share else None
        request = bulk if single is None or (bulk is not None and self._bulk_turn) else single
        if request is None:
            return None
        self._bulk_turn = not request.bulk
        self.forget(request)
        if not request.admitted:
            self.admit(request)
        self.enter(request.bulk)
        if request.fed + 1 < len(request.payloads):
            self.wait(request)
        return request

    def _first(self, lane: OrderedDict[Request, None], *, bulk: bool) -> Request | None:
        """Who of `lane` is next: the first, or, where that one has no room yet, the first who is in already."""
        if not lane:
            return None
        first = next(iter(lane))
        if first.admitted or self._fits(first.unfed_bytes):
            return first
        return next((request for request in self._half_fed if request.bulk is bulk), None)

    def _fits(self, nbytes: int) -> bool:
        return self.held + nbytes <= self.max_bytes or self.held == 0

    # -- when to come again -------------------------------------------------------------------------------------

    def mark(self, now: float) -> None:
        """Note how much was settled by `now`; called about once a second while anything is."""
        while self._marks and self._marks[0][0] < now - RATE_WINDOW:
            self._marks.popleft()
        self._marks.append((now, self._settled))

    def retry_after(self, now: float) -> int:
        """Queue divided by recent rate, in whole seconds, from 1 to 60."""
        then, settled = self._marks[0] if self._marks else (now, self._settled)
        span = max(now - then, 1.0)
        # With nothing settled for the whole window, one item per window is the most that can be said.
        rate = max(self._settled - settled, 1) / span
        return max(1, min(LONGEST_RETRY, math.ceil(self.items / rate)))
