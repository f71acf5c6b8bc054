"""Tells those who are refused, or whose time is up, when to come again.

`core/retry_slots.py` decides it, by the rate that `core/pace.py` finds.  Here is what they are told of the service, and
the errors that say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.admission import Admission
from penstock.core.clock import Clock
from penstock.core.counters import ServiceCounters
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.pace import Pace
from penstock.core.retry_slots import RetrySlots, whole_milliseconds, whole_seconds
from penstock.core.tenants import Tenant
from penstock.errors import DeadlineExceeded, Overloaded
from penstock.runtime.stage_driver import StageDriver

SECONDS_PER_LOOK: Final = 0.05
"""How often the pace is looked at while it is measured."""
BACK: Final = Lane.BACK


class RetryTimes:
    """When callers of one service should come again.  Nobody is told so of what is of BACK, or of `prober`."""

    def __init__(
        self,
        stages: Sequence[StageDriver],
        admission: Admission,
        counters: ServiceCounters,
        prober: Tenant,
        clock: Clock,
    ) -> None:
        self._stages = list(stages)
        self._admission = admission
        self._counters = counters
        self._prober = prober
        self._now = clock.now
        self._pace = Pace()
        self._slots = RetrySlots()
        self._told_late: dict[Request, float] = {}
        """What the requests are told that run out of time just now: for how long to stay away."""

    def look(self, now: float, saturated: bool) -> None:
        """Measure the pace; `saturated` says whether work waits for workers that are all busy, from now on."""
        pace = self._pace
        if saturated != pace.saturated or (saturated and now - pace.looked_at >= SECONDS_PER_LOOK):
            counters = self._counters
            pace.look(now, counters.succeeded + counters.failed + counters.invalid, saturated)

    def rate(self) -> float:
        """How many items a second the service ends under load, as far as is known."""
        return self._pace.rate(min([stage.known_rate for stage in self._stages]))

    def take_slot(self, lead: float | None = None) -> float:
        """In how many seconds the next caller should come, who takes that slot; see `overloaded`."""
        rate = self.rate()
        return self._slots.take(self._now(), self._lead(rate) if lead is None else lead, rate)

    def _lead(self, rate: float, gone: int = 0) -> float:
        """When half of what is in hand has ended, less `gone` items that end just now."""
        return max((self._admission.items - gone) / 2, 1.0) / rate

    # -- errors that say it -----------------------------------------------------------------------------------------

    def overloaded(self, why: str, reason: str, lead: float | None = None) -> Overloaded:
        """The refusal of a newcomer, who takes the next slot; the first one is `lead` seconds away.

        Without `lead` that is when half of what is in hand has ended.  So those who come back a little early still find
        room, and if they are a little late the workers still have work.
        """
        return _overloaded(why, reason, self.take_slot(lead))

    def too_many_results(self, takes_slot: bool) -> Overloaded:
        """Why items end unrun whose client batch has gathered too many results."""
        most = self._admission.ledger.max_bytes
        return _overloaded(
            f"the results of unfinished batches exceed max_queued_bytes ({most} bytes), and this batch has the most "
            "of them; send fewer items at a time",
            "memory_budget",
            self.take_slot() if takes_slot else self._slots.look(self._now(), self._lead(self.rate())),
        )

    def deadline_exceeded(self, request: Request, item: Item | None) -> DeadlineExceeded:
        """Why an item of `request` ends whose deadline has passed.

        Those that waited take a slot, all of one request the same, as if it had been refused; but not a probe, nor what
        is of BACK: nobody is told to come again with these.
        """
        ran = item is not None and item.frame is not None and item.frame.running
        error = DeadlineExceeded(ran=ran)
        if not ran and request.lane != BACK and request.tenant is not self._prober:
            seconds = self._told_late.get(request, -1.0)
            if seconds < 0:
                in_hand = request.unsettled - (len(request.payloads) - request.fed)
                seconds = self._told_late[request] = self.take_slot(self._lead(self.rate(), in_hand))
            error.retry_after = whole_seconds(seconds)
            error.retry_after_ms = whole_milliseconds(seconds)
        return error

    def forget_expired(self) -> None:
        """Those who ran out of time have been told, all of their items."""
        self._told_late.clear()


def _overloaded(why: str, reason: str, seconds: float) -> Overloaded:
    """An error that says to come again in so many seconds."""
    retry_after = whole_seconds(seconds)
    return Overloaded(
        f"{why}; try again in {retry_after} s",
        retry_after=retry_after,
        retry_after_ms=whole_milliseconds(seconds),
        reason=reason,
    )
