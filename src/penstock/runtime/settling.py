"""Gives each item its outcome, once, and tells the caller when the last one is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.core.admission import Admission
from penstock.core.batching import BatchQueue
from penstock.core.counters import ServiceCounters
from penstock.core.deadlines import Deadlines
from penstock.core.dispatch import SentFrame, may_have_run
from penstock.core.item import Done, Item, ItemState, Request
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.tenants import Tenant
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidItem,
    Overloaded,
    RequestError,
    StageFailed,
    WorkerLost,
)
from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.runtime")

# Looked up for every item: constants cost nothing once compiled, members of an enum do.
QUEUED: Final = ItemState.QUEUED
SETTLED: Final = ItemState.SETTLED
BACK: Final = int(Lane.BACK)


class Settling:
    """The end of every item of one service.

    Nothing else settles an item.  `queues` are those of the stages, in their order.  What an item held is given back
    to `admission`, its request leaves `deadlines`, and its ending is counted in `counters`.  `too_many_results` makes
    the error of items that are not run because their request is full of results; it is told whether that is to take a
    slot, which it is once for a request.  `tenant_idle` is told of a tenant whose last request was answered.

    Items of BACK take no room, so `admission` never hears of them: `back_items` is how many are in hand.
    """

    def __init__(
        self,
        service: str,
        queues: Sequence[BatchQueue],
        admission: Admission,
        deadlines: Deadlines,
        counters: ServiceCounters,
        too_many_results: Callable[[bool], RequestError],
        tenant_idle: Callable[[Tenant], None],
    ) -> None:
        self._service = service
        self._queues = list(queues)
        self._admission = admission
        self._deadlines = deadlines
        self._counters = counters
        self._too_many_results = too_many_results
        self._tenant_idle = tenant_idle
        self.back_items = 0

    def settle(self, item: Item, outcome: Outcome) -> None:
        """Give `item` its outcome.  The first one stands.  Harmless where the caller has left.

        A failure learns whether the item has begun: two items share one only where both have, or neither.
        """
        before = item.state
        if before is SETTLED:
            return
        item.state = SETTLED
        if before is QUEUED:
            self._queues[item.stage].discard(item)
        if isinstance(outcome, Failure) and may_have_run(item):
            outcome.error.mark_started()
        request = item.request
        if request.lane == BACK:
            self.back_items -= 1
        else:
            self._admission.settle(item)
        item.payload = b""
        frame: SentFrame | None = item.frame
        if frame is not None:
            item.frame = None
            frame.settled()
        self._record(request, item.index, outcome)

    def end(self, request: Request, error: Callable[[Item | None], RequestError]) -> None:
        """Settle all that is unsettled of `request`, fed or not."""
        if not request.wholly_fed:
            self._end_unfed(request, Failure(error(None)))
        for item in request.items:
            if item.state is not SETTLED:
                self.settle(item, Failure(error(item)))

    def _end_unfed(self, request: Request, failure: Failure) -> None:
        """Settle all that was never fed as one `failure`, at once: there may be many thousands."""
        self._admission.drop_unfed(request)
        n = len(request.payloads) - request.fed
        request.outcomes[request.fed :] = [failure] * n
        if isinstance(request.payloads, list):
            request.payloads[request.fed :] = [b""] * n
        request.fed += n
        _count_failure(self._counters, failure.error, n)
        request.unsettled -= n
        if not request.unsettled:
            self._complete(request)

    def _end_unsent(self, request: Request) -> None:
        """Settle what of `request` no worker has, fed or not: it is full of results.  It may complete here."""
        begun, unrun = Failure(self._too_many_results(False)), Failure(self._too_many_results(True))
        if not request.wholly_fed:
            self._end_unfed(request, unrun)
        for item in request.items:
            if item.state is QUEUED:
                self.settle(item, begun if may_have_run(item) else unrun)

    def _record(self, request: Request, index: int, outcome: Outcome) -> None:
        if isinstance(outcome, Result):
            self._counters.succeeded += 1
        else:
            _count_failure(self._counters, outcome.error, 1)
        full = self._admission.ledger.keep_outcome(request, outcome)
        request.outcomes[index] = outcome
        request.unsettled -= 1
        if not request.unsettled:
            self._complete(request)
        if full is not None and full.unsettled:
            self._end_unsent(full)

    def _complete(self, request: Request) -> None:
        """Tell the caller: every outcome is there."""
        self._admission.ledger.complete(request)
        self._deadlines.discard(request)
        tenant = request.tenant
        tenant.requests -= 1
        if not tenant.requests and tenant.name:
            self._tenant_idle(tenant)
        request.items = []  # they refer to the request: without this only the cycle collector could free either
        self.tell(request.done, request.outcomes)

    def tell(self, done: Done, outcomes: list[Outcome]) -> None:
        """Give a caller its outcomes."""
        try:
            done(outcomes)
        except Exception:  # a fault of this caller must not reach the other items of the batch
            log.exception("service %r: error in a caller's callback", self._service)


def _count_failure(counters: ServiceCounters, error: RequestError, n: int) -> None:
    match error:
        case InvalidItem():
            counters.invalid += n
        case StageFailed():
            counters.failed += n
        case DeadlineExceeded():
            counters.expired += n
        case Cancelled():
            counters.cancelled += n
        case WorkerLost():
            counters.worker_lost += n
        case Overloaded(reason="preempted"):
            counters.preempted += n
        case _:
            counters.aborted += n
