"""Decide which items a tenant may have by its own rate and its own bound.

Pure: it is told the time.  It has nothing to do with tenants that have neither, and nothing with the service's own
room.  Who waits does so in the lines of `Admission`, whatever it waits for.  The lines of a tenant that may have no
item now are held back, so that they keep nobody else waiting.

Contract
--------
* An item of a tenant with limits gets in hand only with a token of its bucket, and while fewer than its `max_queued`
  items are in hand.  Both are asked at that moment: nobody has a right to either while it waits.
* So who waits for room in the service takes nothing from others of its tenant who have room: a better urgency, or a
  request that was let in.
* An item that was let in has used its token, however it ends.
* Newcomers get no token while others of their tenant wait for one.
* What was let in and waits for a token holds its bytes.  A newcomer of several items that lacks a token for one of them
  is let in only where all such bytes are at most half of what may be held: so the others have the rest.
"""

from __future__ import annotations

from penstock.core.admission import Admission
from penstock.core.item import Request
from penstock.core.tenants import Tenant


def may_have_one(tenant: Tenant, now: float) -> bool:
    """Whether one more item of `tenant` may get in hand by its own limits."""
    return tenant.has_room and (tenant.bucket is None or tenant.bucket.has_token(now))


class Quotas:
    """The quotas of the tenants of one service, whose requests wait in `admission`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def allows(self, tenant: Tenant, now: float) -> bool:
        """Whether a newcomer of `tenant` may go on with its first item."""
        return may_have_one(tenant, now) and not self._admission.holds_back(tenant)

    def holds_too_long(self, tenant: Tenant, n: int, nbytes: int, now: float) -> bool:
        """Whether a newcomer of `n` items and `nbytes` would wait for tokens with more bytes than may do so."""
        bucket = tenant.bucket
        if bucket is None or n == 1 or bucket.allowance(now).left >= n:
            return False
        return self._admission.held_back_bytes + nbytes > self._admission.ledger.max_bytes // 2

    def ahead_of_newcomers(self, tenant: Tenant) -> int:
        """How many items of `tenant` take a token before any newcomer does, because they wait for theirs."""
        return self._admission.unfed_of(tenant) if self._admission.holds_back(tenant) else 0

    def line_up(self, request: Request, now: float) -> None:
        """Let `request` wait for room, or for what its tenant lacks."""
        self._admission.line_up(request)
        if not may_have_one(request.tenant, now):
            self._admission.hold_back(request.tenant)

    def took(self, tenant: Tenant, now: float) -> None:
        """Take the token of an item of `tenant` that got in hand."""
        if tenant.bucket is not None:
            tenant.bucket.take(now)
        if not may_have_one(tenant, now):
            self._admission.hold_back(tenant)

    def release(self, now: float) -> None:
        """Hold nobody back any longer who may have one more item."""
        for tenant in self._admission.held_tenants():
            if may_have_one(tenant, now):
                self._admission.let_go(tenant)

    def release_one(self, tenant: Tenant, now: float) -> None:
        """The same of one tenant."""
        if self._admission.holds_back(tenant) and may_have_one(tenant, now):
            self._admission.let_go(tenant)

    def next_moment(self) -> float | None:
        """When to call `release` next for the sake of time alone; None where no wait ends so."""
        held = self._admission.held_tenants()
        return min(
            [tenant.bucket.next_token for tenant in held if tenant.bucket is not None and tenant.has_room], default=None
        )
