"""Takes requests in, and moves their items through the stages to the one place where each is settled.

This is the half of the engine that every request passes.  It knows neither HTTP nor futures, nor how stages are started
and stopped.  The caller of `submit` gives a function that is told the outcomes.  Everything here is called on the
thread of one event loop.

An item makes these hops and no others: `submit -> stage queue -> worker -> settle`, with `stage queue -> worker` once
for each stage.  All arrivals of one turn of the loop are gathered before anything is sent: there is one pump a turn.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from penstock.codec.formats import Codec
from penstock.config import ServiceOptions
from penstock.core.admission import Admission
from penstock.core.alarm import Alarm
from penstock.core.clock import FOREVER_SECONDS, Clock
from penstock.core.counters import ServiceCounters, count_refusal
from penstock.core.deadlines import Deadlines
from penstock.core.dispatch import has_begun, least_busy
from penstock.core.item import OFFER, Done, Item, ItemState, Request
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.payload import Payload, payload_size
from penstock.core.quotas import Quotas
from penstock.core.tenants import BEST_URGENCY, USUAL_URGENCY, Tenant, Tenants
from penstock.errors import (
    Cancelled,
    InvalidItem,
    NotReady,
    RequestError,
    StartFailed,
)
from penstock.runtime.caller_formats import CallerFormats
from penstock.runtime.crossings import crossings
from penstock.runtime.external_stage import ExternalStageDriver
from penstock.runtime.feeding import Feeding
from penstock.runtime.incarnation import StartIncarnation
from penstock.runtime.newcomers import Newcomers
from penstock.runtime.prediction import Prediction
from penstock.runtime.retry_times import RetryTimes
from penstock.runtime.room_behind import back_room_behind, room_behind
from penstock.runtime.settling import Settling
from penstock.runtime.spec import StageSpec
from penstock.runtime.stage_driver import Hub, StageDriver
from penstock.runtime.worker_failures import lost_with_worker, read_failure
from penstock.transport.framing import Frame, Status

# Looked up for every item, several times: constants cost nothing once compiled, members of an enum do.
SETTLED: Final = ItemState.SETTLED
OK: Final = int(Status.OK)
EXPIRED: Final = int(Status.EXPIRED)
RECALLED: Final = int(Status.RECALLED)
BACK: Final = Lane.BACK


class Supervisor(Protocol):
    """Who starts and stops the stages."""

    def not_ready(self) -> NotReady:
        """Why nothing is accepted now, where it is not."""

    def pool_changed(self, stage: StageDriver, failure: StartFailed | None) -> None:
        """A worker of `stage` became ready or ended; `failure` is why, where it ended before it was ready."""


def _drivers(
    hub: Hub,
    service: str,
    specs: Sequence[StageSpec],
    options: ServiceOptions,
    inline: bool,
    clock: Clock,
    start_incarnation: StartIncarnation,
) -> list[StageDriver]:
    """What drives each stage of `service`."""
    # Before the first stage and behind the last one, the format is that of each request.
    between: list[Codec | None] = [None, *crossings(specs)[1:-1], None]
    return [
        (StageDriver if spec.external is None else ExternalStageDriver)(
            hub,
            service,
            spec,
            i,
            codec_in=between[i],
            codec_out=between[i + 1],
            options=options,
            inline=inline,
            clock=clock,
            start_incarnation=start_incarnation,
        )
        for i, spec in enumerate(specs)
    ]


class Flow:
    """The requests in hand and the stages they pass.

    The supervisor sets `accepting`.  While it waits for something it also sets `on_pumped`, which is called after each
    pump.  It asks `newcomers`, `feeding` and `prediction`, the parts that know, and not the flow.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        name: str,
        specs: Sequence[StageSpec],
        options: ServiceOptions,
        *,
        inline: bool,
        clock: Clock,
        start_incarnation: StartIncarnation,
        tenants: Tenants,
    ) -> None:
        self.counters = ServiceCounters()
        self.accepting = False
        self.on_pumped: Callable[[], None] | None = None
        self._supervisor = supervisor
        self._now = clock.now
        self.stages = _drivers(self, name, specs, options, inline, clock, start_incarnation)
        self._admission = admission = Admission(
            options.max_in_flight, options.max_queued_bytes, by_deadline=options.queue_order == "edf"
        )
        self.ledger = admission.ledger
        self._tenants = tenants
        for stage in self.stages:
            stage.tenants = tenants
        # It holds no share and owes none, for `tenants` does not know it; nothing of it is ever over its share.
        self._formats = CallerFormats.of(specs, allow_nan=options.nan_as_null)
        """Those of probes, which are calls in process."""
        self._prober = Tenant("", math.inf)
        """Whose probes are: nobody's, so that they cost no tenant anything."""
        self._quotas = quotas = Quotas(admission)
        self._deadlines = Deadlines()
        first = self.stages[0]
        self.feeding = feeding = Feeding(first, admission, quotas, clock)
        self._retry_times = times = RetryTimes(self.stages, admission, self.counters, self._prober, clock)
        self.prediction = prediction = Prediction(self.stages, admission, times, options, clock)
        self.newcomers = Newcomers(name, first, admission, tenants, quotas, feeding, prediction, times, clock)
        self._settling = Settling(
            name,
            [stage.queue for stage in self.stages],
            admission,
            self._deadlines,
            self.counters,
            times.too_many_results,
            self._tenant_idle,
        )
        self._quota_alarm = Alarm(clock, self.wake)
        self._deadline_alarm = Alarm(clock, self._end_expired)
        share = options.max_queued_bytes // len(specs)
        followed = list(zip(self.stages, [*self.stages[1:], None], strict=True))
        self._rooms = [room_behind(stage, following, share, self.ledger) for stage, following in followed]
        self._back_rooms = [back_room_behind(following, share) for _, following in followed]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waking = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Live on `loop` from now on."""
        self._loop = loop

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the engine was never started"
        return self._loop

    # -- what others read -----------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Items accepted and not yet settled, wherever they are, but for those of BACK."""
        return self._admission.items

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand."""
        if self._admission.items or self._settling.back_items:
            return False
        return self._admission.waiting == 0 and self._admission.held_back == 0

    def set_memory_short(self, short: bool) -> None:
        """Let nobody in while memory is short; who waited for room is fed when it is not any more."""
        self.ledger.memory_short = short
        if not short:
            self.wake()

    # -- whose it is ------------------------------------------------------------------------------------------------

    def find_tenant(self, name: str) -> Tenant:
        """The tenant called `name`, as it is served now."""
        return self._tenants.find(name, self._now()) if name else self._tenants.anyone

    def _tenant_idle(self, tenant: Tenant) -> None:
        self._tenants.answered(tenant, self._now())

    def _displace(self, item: Item) -> None:
        """End `item`, whose place is taken already.

        Its caller is told after the submission that it made way for: else it could submit in the midst of that, and
        displace what has just come in.
        """
        request = item.request
        if request.unsettled == 1:
            request.done = partial(self._tell_soon, request.done)
        error = self._retry_times.overloaded(
            "the service is full, and this item was preempted by a request of another tenant or a higher urgency",
            "preempted",
        )
        self._settling.settle(item, Failure(error))

    def _tell_soon(self, done: Done, outcomes: list[Outcome]) -> None:
        self._running_loop().call_soon(self._settling.tell, done, outcomes)

    # -- requests ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        payloads: Sequence[Payload],
        codec_in: Codec,
        codec_out: Codec,
        deadline: float,
        done: Done,
        request_id: bytes = b"",
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
        *,
        lane: Lane = Lane.SINGLE,
        wait: bool = False,
        nbytes: int | None = None,
        hold_results: bool = False,
        alone: bool = False,
    ) -> Request:
        """See `Engine.submit`."""
        n = len(payloads)
        if nbytes is None:
            nbytes = payload_size(payloads[0]) if n == 1 else sum(map(payload_size, payloads))
        whose = self.find_tenant(tenant)
        if not self.accepting:
            self._refuse(self._supervisor.not_ready(), n, whose)
        displaced: Item | None = None
        if lane is not BACK:
            urgency = max(urgency, whose.best_urgency)
            if not wait:
                displaced = self._make_room(n, nbytes, deadline, lane, urgency, whose)
        # A deadline a generation away never comes, and one before the clock began has passed.
        deadline = math.inf if deadline > FOREVER_SECONDS else max(deadline, 0.0)
        request = Request(
            payloads, codec_in, codec_out, deadline, done, lane, hold_results, request_id, alone, urgency, whose
        )
        if n == 0:
            self._running_loop().call_soon(done, [])
            return request
        self._accept(request)
        if lane is BACK:
            self._settling.back_items += self.feeding.feed_back(request)
        else:
            request.unfed_bytes = nbytes
            whose.accepted += n
            if wait:
                self.feeding.take_in_turn(request)
            else:
                self.feeding.take_in(request)
            if displaced is not None:
                self._displace(displaced)
        self.wake()
        return request

    def submit_probe(self, example: Any, deadline: float, done: Done, codec_out: Codec | None = None) -> None:
        """See `HostedEngine.submit_probe`.  It takes no token and no slot, and displaces nobody."""
        payload = self._formats.pack(example)
        if isinstance(payload, InvalidItem):
            raise payload
        nbytes = payload_size(payload)
        if not self.accepting:
            self._refuse(self._supervisor.not_ready(), 1, self._prober)
        refusal = self.newcomers.probe_refusal(nbytes)
        if refusal is not None:
            self._refuse(refusal, 1, self._prober)
        request = Request(
            (payload,),
            self._formats.codec_in,
            self._formats.codec_out if codec_out is None else codec_out,
            deadline,
            done,
            Lane.SINGLE,
            urgency=BEST_URGENCY,
            tenant=self._prober,
        )
        self._accept(request)
        request.unfed_bytes = nbytes
        self.feeding.take_in(request)
        self.wake()

    def _make_room(self, n: int, nbytes: int, deadline: float, lane: Lane, urgency: int, whose: Tenant) -> Item | None:
        """Refuse `n` items that cannot wait, or return the item that makes way for them, if one has to."""
        newcomers = self.newcomers
        displaced: Item | None = None
        if not newcomers.open_to(whose, nbytes):
            refusal = newcomers.refusal(nbytes, deadline, lane, urgency, whose)
            if refusal is not None:
                self._refuse(refusal, n, whose)
            if not self.feeding.has_room(nbytes, urgency):
                displaced = newcomers.to_displace(whose, urgency)
        if whose.limited:
            refusal = newcomers.waits_too_large(whose, n, nbytes)
            if refusal is not None:
                self._refuse(refusal, n, whose)
        return displaced

    def _refuse(self, refusal: RequestError, n: int, whose: Tenant) -> NoReturn:
        count_refusal(self.counters, refusal, n)
        whose.refused += n
        raise refusal

    def _accept(self, request: Request) -> None:
        """Answer for `request` from now on: it is counted, and ends by its deadline."""
        self.counters.accepted += request.unsettled
        request.tenant.requests += 1
        if self._deadlines.add(request):
            self._deadline_alarm.set(self._deadlines.next_moment())

    def cancel(self, request: Request) -> None:
        """See `Engine.cancel`."""
        before = request.unsettled
        self._settling.end(request, lambda _: Cancelled())
        if before:
            self.wake()

    def recall(self, request: Request) -> None:
        """See `Engine.recall`."""
        if not request.wholly_fed:
            return
        for item in list(request.items):
            if item.state is SETTLED or has_begun(item):
                continue
            if item.frame is None or not item.frame.sent_ahead:
                self._settling.settle(item, Failure(Cancelled()))
            else:
                self.stages[item.stage].recall(item)
        self.wake()

    def begun(self, request: Request) -> bool:
        """See `Engine.begun`."""
        if request.unsettled < len(request.payloads):
            return True
        return any(has_begun(item) for item in request.items)

    def hold(self, nbytes: int) -> None:
        """See `HostedEngine.hold`."""
        self.ledger.hold(nbytes)
        if nbytes < 0:
            self._given_back()

    def hold_answer(self, nbytes: int) -> None:
        """See `HostedEngine.hold_answer`."""
        self.ledger.hold_answer(nbytes)
        if nbytes < 0:
            self._given_back()

    def _given_back(self) -> None:
        """Bytes were given back: what waited for room, wherever it is, may move now."""
        if not self.idle:
            self.wake()

    # -- the one pump -------------------------------------------------------------------------------------------------

    def wake(self) -> None:  # see `Hub`
        if not self._waking:
            self._waking = True
            self._running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._waking = False
        now = self._now()
        saturated = False
        admission = self._admission
        if admission.waiting or admission.held_back:
            self.feeding.feed_all(now)
        # The last stage first: what it takes makes room for the stage before it, in the same turn.
        for stage in reversed(self.stages):
            stage.count_workers(now)
            if len(stage.queue):
                stage.pump(now, self._rooms[stage.index], self._back_rooms[stage.index])
                if not saturated and len(stage.queue):
                    # While no worker is ready none has an item, and nothing can be learned of how fast they are.
                    free = least_busy(stage.workers, stage.concurrency, stage.most_batches)
                    saturated = stage.in_flight > 0 and free is None
            stage.note_work(now)
        self._retry_times.look(now, saturated)
        if admission.waiting or admission.held_back:
            if self.feeding.feed_all(now):
                self.wake()
            if admission.held_back:
                self._quota_alarm.set(self._quotas.next_moment())
        if self.on_pumped is not None:
            self.on_pumped()

    # -- what stages report -------------------------------------------------------------------------------------------

    def pool_changed(self, stage: StageDriver, failure: StartFailed | None) -> None:  # see `Hub`
        self._supervisor.pool_changed(stage, failure)

    def batch_answered(self, stage: StageDriver, items: list[Item], frame: Frame) -> None:
        """Move each item on, or settle it."""
        last = stage.last
        settling = self._settling
        now = self._now()
        for item, status, payload in zip(items, frame.statuses, frame.payloads, strict=True):
            if item.state is SETTLED:
                continue  # cancelled or expired meanwhile: masked from the next stage
            if status != OK:
                settling.settle(item, self._unrun(item, stage.name, status, payload))
            elif last:
                settling.settle(item, Result(payload))
            elif item.request.full:
                settling.settle(item, Failure(self._retry_times.too_many_results(False)))
            else:
                self._advance(item, payload, now)

    def _unrun(self, item: Item, stage: str, status: int, payload: Payload) -> Failure:
        """Why an item has no result, by its `status`."""
        if status == EXPIRED:
            return self._late(item)
        return Failure(Cancelled() if status == RECALLED else read_failure(stage, status, payload))

    def recalled(self, items: list[Item]) -> None:  # see `Hub`
        for item in items:
            self._settling.settle(item, Failure(Cancelled()))

    def missed(self, items: list[Item]) -> None:  # see `Hub`
        for item in items:
            self._settling.settle(item, self._late(item))

    def _late(self, item: Item) -> Failure:
        return Failure(self._retry_times.deadline_exceeded(item.request, item))

    def worker_lost(  # see `Hub`
        self, stage: StageDriver, items: list[Item], *, hung: bool, alone: bool
    ) -> None:
        for item in items:
            error = lost_with_worker(stage.name, hung=hung, alone=alone, again=item.suspect)
            self._settling.settle(item, Failure(error))

    def _advance(self, item: Item, payload: Payload, now: float) -> None:
        if item.request.lane == BACK:
            item.nbytes = payload_size(payload)
        else:
            self.ledger.advance(item, payload)
        item.payload, item.frame = payload, None
        item.suspect = item.ran = False
        item.stage += 1
        item.state = OFFER[item.state]
        self.stages[item.stage].queue.offer(item, now)

    # -- the end of all ----------------------------------------------------------------------------------------------

    def settle_all(self, error: Callable[[Item | None], RequestError]) -> None:
        """Settle every request in hand.  `error` makes an item's error; for what is no item yet it is given None."""
        for request in self._in_hand():
            self._settling.end(request, error)

    def _in_hand(self) -> Iterable[Request]:
        found: dict[Request, None] = dict.fromkeys(self._admission.requests())
        for stage in self.stages:
            found.update((item.request, None) for item in stage.queue)
            found.update((item.request, None) for w in stage.workers for sent in w.frames for item in sent.items)
        return list(found)

    # -- deadlines ------------------------------------------------------------------------------------------------

    def _end_expired(self) -> None:
        expired = self._deadlines.expired(self._now())
        expired.reverse()
        try:
            while expired:
                request = expired.pop()
                self._settling.end(request, partial(self._retry_times.deadline_exceeded, request))
        finally:
            # Where one raises, the others are ended by the next ring: they must not stay in hand for good.
            for request in expired:  # to end one that was settled meanwhile does nothing
                self._deadlines.add(request)
            self._retry_times.forget_expired()
            self._deadline_alarm.set(self._deadlines.next_moment())
            self.wake()

    def forget_deadlines(self) -> None:
        """Cancel the alarms: every request is settled."""
        self._deadline_alarm.cancel()
        self._quota_alarm.cancel()
