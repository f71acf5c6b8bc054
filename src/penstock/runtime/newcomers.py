"""Tells why a newcomer is refused, and which item makes way for one.

What decides is in `core`: `admission`, `quotas`, `displacement` and `predicted_end`.  Here they are asked, in this
order: memory, the limits of the tenant, room or a place to take, and last whether the newcomer would end in time.
"""

from __future__ import annotations

from typing import Final

from penstock.core.admission import Admission
from penstock.core.clock import Clock
from penstock.core.displacement import item_to_displace
from penstock.core.item import Item
from penstock.core.lanes import Lane
from penstock.core.quotas import Quotas
from penstock.core.retry_slots import whole_milliseconds, whole_seconds
from penstock.core.tenants import Tenant, Tenants
from penstock.errors import Overloaded, QuotaExceeded
from penstock.runtime.feeding import Feeding
from penstock.runtime.memory_watch import INTERVAL_SECONDS
from penstock.runtime.prediction import Prediction
from penstock.runtime.retry_times import RetryTimes
from penstock.runtime.stage_driver import StageDriver

BACK: Final = Lane.BACK


class Newcomers:
    """Those who want to come into one service, which serves, and whose first stage is `first`."""

    def __init__(
        self,
        service: str,
        first: StageDriver,
        admission: Admission,
        tenants: Tenants,
        quotas: Quotas,
        feeding: Feeding,
        prediction: Prediction,
        retry_times: RetryTimes,
        clock: Clock,
    ) -> None:
        self._service = service
        self._queue = first.queue
        self._admission = admission
        self._tenants = tenants
        self._quotas = quotas
        self._feeding = feeding
        self._prediction = prediction
        self._retry_times = retry_times
        self._now = clock.now
        self._weights = 0.0
        """The weights of the tenants with items in hand, unless `Admission.tenants_changed`."""

    def open_to(self, tenant: Tenant, nbytes: int) -> bool:
        """Whether a request of `tenant` is let in for sure, whatever its urgency, lane and deadline."""
        if self._prediction.refuses or (tenant.limited and not self._feeding.allows(tenant)):
            return False
        return self._feeding.has_room(nbytes)

    def refusal(self, nbytes: int, deadline: float, lane: Lane, urgency: int, tenant: Tenant) -> Overloaded | None:
        """Why a request of `nbytes` is refused, or None if it is let in.  Who is refused takes the next slot."""
        retry_times = self._retry_times
        if self._admission.ledger.memory_short:
            return retry_times.overloaded(self._why("memory_pressure"), "memory_pressure", INTERVAL_SECONDS)
        if lane is not BACK:
            refusal = self._over_quota(tenant)
            if refusal is not None:
                return refusal
            urgency = max(urgency, tenant.best_urgency)
        feeding = self._feeding
        if not feeding.has_room(nbytes) and not feeding.leaves_room(nbytes, urgency):
            displaces = self.to_displace(tenant, urgency) is not None
            if not displaces or not self._admission.ledger.has_room(nbytes):
                what = "memory_budget" if displaces else self._full_of_what()
                return retry_times.overloaded(self._why(what), what)
        late = self._prediction.seconds_too_late(deadline, lane, urgency, tenant)
        if late > 0:
            why = (
                f"service {self._service!r} is overloaded: this request is predicted to end {late:.3g} s after its "
                "deadline"
            )
            return retry_times.overloaded(why, "deadline", late)
        return None

    def probe_refusal(self, nbytes: int) -> Overloaded | None:
        """Why a probe of `nbytes` is refused, or None: it is let in on room alone, and takes no slot."""
        if self._feeding.has_room(nbytes):
            return None
        what = "memory_pressure" if self._admission.ledger.memory_short else self._full_of_what()
        return Overloaded(self._why(what), reason=what)

    def waits_too_large(self, tenant: Tenant, n: int, nbytes: int) -> Overloaded | None:
        """Why a client batch is refused that would wait for the tokens of `tenant`, or None."""
        if not self._quotas.holds_too_long(tenant, n, nbytes, self._now()):
            return None
        most = self._admission.ledger.max_bytes // 2
        return self._retry_times.overloaded(
            f"client batches throttled by the rate limits of their tenants would exceed {most} bytes; send fewer "
            "items at a time",
            "memory_budget",
        )

    def to_displace(self, tenant: Tenant, urgency: int) -> Item | None:
        """The item that makes way for a newcomer of `tenant`; None where none does, or there is no need."""
        admission, queue = self._admission, self._queue
        if self._feeding.has_place or not queue.front_items:
            return None
        if admission.tenants_changed:
            admission.tenants_changed = False
            self._weights = self._tenants.sum_weights()
        weights = self._weights if tenant.items else self._weights + tenant.weight
        # Whichever bound is reached, what is in hand now is as much as may be: that of the first stage may come far
        # before `max_items`, and by parts of that everybody would be below its share.
        return item_to_displace(tenant, urgency, queue.newest_unrun(), admission.items, weights)

    def _over_quota(self, tenant: Tenant) -> QuotaExceeded | None:
        """Why `tenant` may have nothing more now by its own limits, or None."""
        if not tenant.limited or self._feeding.allows(tenant):
            return None
        now = self._now()
        if tenant.has_room and tenant.bucket is not None:
            seconds = tenant.bucket.next_slot(now, self._quotas.ahead_of_newcomers(tenant)) - now
            why = f"this tenant exceeds its rate limit of {tenant.bucket.rate:g} items per second"
        else:
            seconds = self._retry_times.take_slot()
            why = f"this tenant has reached its max_queued of {tenant.max_queued} items in flight"
        retry_after = whole_seconds(seconds)
        return QuotaExceeded(
            f"{why}; try again in {retry_after} s",
            retry_after=retry_after,
            retry_after_ms=whole_milliseconds(seconds),
        )

    def _full_of_what(self) -> str:
        """What there is no room for: a reason of `Overloaded`.

        Asked when those who wait have taken what room there is.  So where there is room for items, they wait for bytes.
        """
        return "memory_budget" if self._feeding.has_place else "queue_full"

    def _why(self, lacking: str) -> str:
        """That there is no room, in words; `lacking` is what there is none of."""
        short = lacking == "memory_pressure"
        return f"service {self._service!r} is {'short of memory (min_free_memory)' if short else 'full'}"
