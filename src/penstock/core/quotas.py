"""Decide which items a tenant may have by its own rate and its own bound, and let the others wait.

Pure: it is told the time.  It has nothing to do with tenants that have neither, and nothing with the service's own
room: whoever gets a token here goes on to wait for that.

Contract
--------
* An item of a tenant with limits is fed only with a token of its bucket, and while fewer than its `max_queued` items
  are in hand or have such a token.
* The token is taken when the item may go on, and given back only if it never gets in hand.  An item that was let in has
  used it, however it ends.
* Who may wait waits in the lines of its tenant: the better urgency first; within one the lanes take turns, the
  single requests first; within a lane the first to come.  A request with more to feed lines up again.
* Newcomers get no token while others of their tenant wait for one.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.core.item import Request
from penstock.core.lanes import FRONT
from penstock.core.tenants import Tenant


class TenantLines:
    """The requests of one tenant that wait for their next token."""

    def __init__(self) -> None:
        self._lines: dict[int, list[OrderedDict[Request, None]]] = {}
        """By urgency, then by lane."""
        self._turn = 0
        """The lane whose turn it is, if anybody waits in it."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def requests(self) -> list[Request]:
        """Who waits."""
        return [request for lanes in self._lines.values() for lane in lanes for request in lane]

    def add(self, request: Request) -> None:
        """Let `request` wait behind those of its urgency and lane."""
        lanes = self._lines.get(request.urgency)
        if lanes is None:
            lanes = self._lines[request.urgency] = [OrderedDict() for _ in FRONT]
        lanes[request.lane][request] = None

    def discard(self, request: Request) -> bool:
        """Let `request` wait no longer; returns whether it waited."""
        lanes = self._lines.get(request.urgency)
        if lanes is None or request not in lanes[request.lane]:
            return False
        del lanes[request.lane][request]
        self._tidy(request.urgency)
        return True

    def pop(self) -> Request:
        """Take out whose turn it is; called only while somebody waits."""
        urgency = min(self._lines)
        lanes = self._lines[urgency]
        number = self._turn if lanes[self._turn] else 1 - self._turn
        self._turn = 1 - number
        request: Request = lanes[number].popitem(last=False)[0]
        self._tidy(urgency)
        return request

    def _tidy(self, urgency: int) -> None:
        if not any(self._lines[urgency]):
            del self._lines[urgency]


class Quotas:
    """The quotas of the tenants of one service."""

    def __init__(self) -> None:
        self._lines: dict[Tenant, TenantLines] = {}
        """Those of tenants for whom somebody waits."""
        self.waiting = 0
        """Requests that wait here."""

    def requests(self) -> list[Request]:
        """The requests that wait here."""
        return [request for lines in self._lines.values() for request in lines.requests()]

    def allows(self, tenant: Tenant, now: float) -> bool:
        """Whether a newcomer of `tenant` may go on with its first item."""
        bucket = tenant.bucket
        return tenant.has_room and (bucket is None or bucket.has_token(now)) and tenant not in self._lines

    def grant(self, request: Request, now: float) -> None:
        """Take the token for the next item of `request`, which `allows` told of."""
        tenant = request.tenant
        if tenant.bucket is not None:
            tenant.bucket.take(now)
        tenant.granted += 1
        request.granted = True

    def fed(self, request: Request) -> None:
        """Note that the item of `request` which had its token is in hand now."""
        request.granted = False
        request.tenant.granted -= 1

    def line_up(self, request: Request) -> None:
        """Let `request` wait for the token of its next item."""
        lines = self._lines.get(request.tenant)
        if lines is None:
            lines = self._lines[request.tenant] = TenantLines()
        lines.add(request)
        self.waiting += 1

    def release(self, now: float) -> list[Request]:
        """Take out the requests that may go on with one item, each with its token."""
        released: list[Request] = []
        for tenant, lines in list(self._lines.items()):
            while tenant.has_room and (tenant.bucket is None or tenant.bucket.has_token(now)):
                request = lines.pop()
                self.grant(request, now)
                released.append(request)
                if not lines:
                    del self._lines[tenant]
                    break
        self.waiting -= len(released)
        return released

    def next_moment(self) -> float | None:
        """When to call `release` next for the sake of time alone; None where no wait ends so."""
        moments = [tenant.bucket.next_token for tenant in self._lines if tenant.bucket is not None and tenant.has_room]
        return min(moments, default=None)

    def drop(self, request: Request) -> None:
        """Feed no more of `request`: it waits here no longer, and a token that it has not used is given back."""
        tenant = request.tenant
        if request.granted:
            self.fed(request)
            if tenant.bucket is not None:
                tenant.bucket.give_back()
        lines = self._lines.get(tenant)
        if lines is not None and lines.discard(request):
            self.waiting -= 1
            if not lines:
                del self._lines[tenant]
