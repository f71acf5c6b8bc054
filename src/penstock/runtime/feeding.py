"""Makes items of requests, and offers them to the first stage as there is room; the other requests wait.

`core/admission.py` decides who is let in and who is fed next, `core/quotas.py` what a tenant may have.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from penstock.core.admission import Admission
from penstock.core.clock import Clock
from penstock.core.item import OFFER, Item, ItemState, Request
from penstock.core.payload import payload_size
from penstock.core.quotas import Quotas
from penstock.core.tenants import WORST_URGENCY, Tenant
from penstock.runtime.stage_driver import StageDriver

SETTLED: Final = ItemState.SETTLED  # a constant costs nothing once compiled, a member of an enum is looked up


class Feeding:
    """What feeds `first`, the first stage of one service."""

    def __init__(self, first: StageDriver, admission: Admission, quotas: Quotas, clock: Clock) -> None:
        self._queue = first.queue
        self._most_queued = first.spec.options.max_queued
        self._admission = admission
        self._quotas = quotas
        self._now = clock.now
        self._item_ids = count(1)
        # A request keeps its items, so that they can be ended.  A long one drops its settled items beyond so many.
        self._kept_items = 2 * admission.max_items + 1000

    # -- room -------------------------------------------------------------------------------------------------------

    def has_room(self, nbytes: int, urgency: int = WORST_URGENCY) -> bool:
        """Whether a request of `nbytes` would be let in now."""
        return self._admission.has_room(nbytes, urgency) and self._queue_open

    def leaves_room(self, nbytes: int, urgency: int) -> bool:
        """The same, where somebody waits, once those who do have taken what room there is for them."""
        if not self._admission.waiting:
            return False
        self._feed()
        return self.has_room(nbytes, urgency)

    @property
    def has_place(self) -> bool:
        """Whether one more item may be in hand, whoever waits, and however many bytes it has."""
        return self._admission.items < self._admission.max_items and self._queue_open

    @property
    def _queue_open(self) -> bool:
        return self._most_queued is None or self._queue.front_items < self._most_queued

    def allows(self, tenant: Tenant) -> bool:
        """Whether a newcomer of `tenant` may go on by its own limits; those of it who wait go first."""
        now = self._now()
        if self._admission.held_back:
            self._quotas.release_one(tenant, now)
            if self._admission.waiting:
                self._feed()
        return self._quotas.allows(tenant, now)

    # -- in ---------------------------------------------------------------------------------------------------------

    def take_in(self, request: Request) -> None:
        """Let `request` in now; what of it cannot be fed at once waits."""
        self._admission.let_in(request)
        self._feed_one(request)
        if not request.wholly_fed:
            self._line_up(request)

    def take_in_turn(self, request: Request) -> None:
        """Let `request` in where there is room and nobody goes before it; else it waits."""
        tenant = request.tenant
        allowed = not tenant.limited or self.allows(tenant)
        if allowed and self.has_room(request.unfed_bytes) and not self._admission.must_wait(request.lane):
            self.take_in(request)
        else:
            self._line_up(request)

    def _line_up(self, request: Request) -> None:
        if request.tenant.limited:
            self._quotas.line_up(request, self._now())
        else:
            self._admission.line_up(request)

    def feed_back(self, request: Request) -> int:
        """Feed all of `request`, and return how much: whoever submits to BACK bounds what lies there."""
        request.holds_results = False
        for fed in range(len(request.payloads)):
            request.fed = fed
            self._offer_next(request)
        request.fed = len(request.payloads)
        return request.fed

    def feed_all(self, now: float) -> bool:
        """Feed the requests that wait, as far as there is room and their tenants may have more; whether any was fed."""
        admission = self._admission
        if admission.held_back:
            self._quotas.release(now)
        return admission.waiting > 0 and self._feed()

    def _feed(self) -> bool:
        """The same, but for those whose tenants are held back."""
        fed = False
        while self._queue_open:
            request = self._admission.feed_next()
            if request is None:
                break
            self._feed_one(request)
            fed = True
        return fed

    def _feed_one(self, request: Request) -> None:
        self._admission.ledger.feed(self._offer_next(request))
        if request.tenant.limited:
            self._quotas.took(request.tenant, self._now())

    def _offer_next(self, request: Request) -> Item:
        """Make the next payload of `request` an item of the first stage; who calls counts it as fed."""
        index = request.fed
        payloads = request.payloads
        payload = payloads[index]
        if isinstance(payloads, list):
            payloads[index] = b""  # the item has it now, and lets go of it before the request ends
        item = Item(next(self._item_ids), payload, payload_size(payload), request, index)
        if len(request.items) > self._kept_items:
            request.items = [i for i in request.items if i.state is not SETTLED]
        request.items.append(item)
        item.state = OFFER[item.state]
        self._queue.offer(item, self._now())
        return item
