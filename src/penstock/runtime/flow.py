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
from itertools import count
from typing import Final, NoReturn, Protocol

from penstock.codec.formats import Codec
from penstock.config import ServiceOptions
from penstock.core.admission import Admission
from penstock.core.alarm import Alarm
from penstock.core.clock import FOREVER_SECONDS, Clock
from penstock.core.counters import ServiceCounters, count_refusal
from penstock.core.deadlines import Deadlines
from penstock.core.dispatch import has_begun, least_busy, room_after, room_for_answers, room_for_back
from penstock.core.displacement import item_to_displace
from penstock.core.item import OFFER, Done, Item, ItemState, Request
from penstock.core.lanes import Lane
from penstock.core.ledger import ByteLedger
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.pace import Pace
from penstock.core.payload import Payload, payload_size
from penstock.core.predicted_end import PACKED_RUN, predicted_end, seconds_others_miss, seconds_to_clear
from penstock.core.quotas import Quotas
from penstock.core.retry_slots import RetrySlots, whole_milliseconds, whole_seconds
from penstock.core.shown_tenants import shown_rows
from penstock.core.tenants import BEST_URGENCY, USUAL_URGENCY, WORST_URGENCY, Tenant, TenantNumbers, Tenants
from penstock.core.token_bucket import Allowance
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    Overloaded,
    ProtocolError,
    QuotaExceeded,
    RequestError,
    StageFailed,
    StartFailed,
    WorkerLost,
)
from penstock.runtime.incarnation import StartIncarnation
from penstock.runtime.settling import Settling
from penstock.runtime.spec import StageSpec
from penstock.runtime.stage_driver import StageDriver
from penstock.transport.framing import Frame, Status
from penstock.transport.messages import Problem, invalid_input, stage_failure, unpack

SECONDS_PER_LOOK: Final = 0.05
"""How often the pace is looked at while it is measured."""

# Looked up for every item, several times: constants cost nothing once compiled, members of an enum do.
SETTLED: Final = ItemState.SETTLED
OK: Final = int(Status.OK)
EXPIRED: Final = int(Status.EXPIRED)
BACK: Final = Lane.BACK


class Supervisor(Protocol):
    """Who starts and stops the stages."""

    def refusal(
        self,
        nbytes: int = 0,
        deadline: float = math.inf,
        lane: Lane = Lane.SINGLE,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> RequestError | None:
        """See `HostedEngine.refusal`."""

    def pool_changed(self, stage: StageDriver, failure: StartFailed | None) -> None:
        """A worker of `stage` became ready or ended; `failure` is why, where it ended before it was ready."""


class Flow:
    """The requests in hand and the stages they pass.

    The supervisor sets `accepting`.  While it waits for something it also sets `on_pumped`, which is called after each
    pump.
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
        tenants: Tenants | None = None,
    ) -> None:
        self.counters = ServiceCounters()
        self.accepting = False
        self.on_pumped: Callable[[], None] | None = None
        self._supervisor = supervisor
        self._now = clock.now
        by_deadline = options.order == "deadline"
        self.stages = [
            StageDriver(
                self,
                name,
                spec,
                i,
                last=i == len(specs) - 1,
                back_share=options.jobs_min_share,
                stalls_after=options.stall_unready,
                by_deadline=by_deadline,
                inline=inline,
                clock=clock,
                start_incarnation=start_incarnation,
            )
            for i, spec in enumerate(specs)
        ]
        self._admission = Admission(options.max_queued, options.max_queued_bytes, by_deadline=by_deadline)
        self.tenants = Tenants() if tenants is None else tenants
        # It holds no share and owes none, for `tenants` does not know it; nothing of it is ever over its share.
        self._prober = Tenant("", math.inf)
        """Whose probes are: nobody's, so that they cost no tenant anything."""
        self._weights = 0.0
        """The weights of the tenants with items in hand, unless `Admission.tenants_changed`."""
        self._quotas = Quotas(self._admission)
        self._deadlines = Deadlines()
        self._by_prediction = options.admission == "deadline"
        self._by_room_alone = not self._by_prediction and not self.tenants.anyone.limited
        """Whether who names no tenant is refused for no other reason than room."""
        self._overtakes = options.order == "deadline"
        self._pace = Pace()
        self._slots = RetrySlots()
        self._told_late: dict[Request, float] = {}
        """What the requests are told that run out of time just now: for how long to stay away."""
        self._settling = Settling(
            name,
            [stage.queue for stage in self.stages],
            self._admission,
            self._deadlines,
            self.counters,
            self._too_many_results,
            self._tenant_idle,
        )
        for stage in self.stages:
            stage.tenants = self.tenants
        self._quota_alarm = Alarm(clock, self.wake)
        self._deadline_alarm = Alarm(clock, self._end_expired)
        self._item_ids = count(1)
        self._first_limit = specs[0].options.max_queued
        # A request keeps its items, so that they can be ended.  A long one drops its settled items beyond so many.
        self._kept_items = 2 * options.max_queued + 1000
        share = options.max_queued_bytes // len(specs)
        followed = list(zip(self.stages, [*self.stages[1:], None], strict=True))
        self._rooms = [_room_after(stage, following, share, self._admission.ledger) for stage, following in followed]
        self._back_rooms = [_back_room_after(following, share) for _, following in followed]
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
    def held_bytes(self) -> int:
        """Bytes held: payloads, half-received bodies, gathered results, finished answers; nothing of BACK."""
        return self._admission.ledger.held

    @property
    def answer_bytes(self) -> int:
        """Those of `held_bytes` that are finished answers."""
        return self._admission.ledger.answers

    @property
    def answers_overfull(self) -> bool:
        """Whether finished answers take more bytes than they may."""
        return self._admission.ledger.answers_overfull

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand."""
        if self._admission.items or self._settling.back_items:
            return False
        return self._admission.waiting == 0 and self._admission.held_back == 0

    def has_room(self, nbytes: int, urgency: int = WORST_URGENCY) -> bool:
        """Whether a request of `nbytes` would be let in now."""
        return self._admission.has_room(nbytes, urgency) and self._first_queue_open

    def leaves_room(self, nbytes: int, urgency: int) -> bool:
        """The same, where somebody waits, once those who do have taken what room there is for them."""
        if not self._admission.waiting:
            return False
        self._feed()
        return self.has_room(nbytes, urgency)

    def open_to_anyone(self, nbytes: int) -> bool:
        """Whether a request of nobody by name is let in for sure, whatever its urgency, lane and deadline."""
        return self.accepting and self._by_room_alone and self.has_room(nbytes)

    def full_of_what(self) -> str:
        """What there is no room for, where a request is not let in: a reason of `Overloaded`.

        Asked when those who wait have taken what room there is.  So where there is room for items, they wait for bytes.
        """
        admission = self._admission
        return "full" if admission.items >= admission.max_items or not self._first_queue_open else "bytes"

    def has_bytes(self, nbytes: int) -> bool:
        """Whether so many bytes more may come in."""
        return self._admission.ledger.has_room(nbytes)

    @property
    def memory_short(self) -> bool:
        """See `HostedEngine.memory_short`."""
        return self._admission.ledger.memory_short

    def set_memory_short(self, short: bool) -> None:
        """Let nobody in while memory is short; who waited for room is fed when it is not any more."""
        self._admission.ledger.memory_short = short
        if not short:
            self.wake()

    # -- whose it is ------------------------------------------------------------------------------------------------

    def find_tenant(self, name: str) -> Tenant:
        """The tenant called `name`, as it is served now."""
        return self.tenants.find(name, self._now()) if name else self.tenants.anyone

    def _tenant_idle(self, tenant: Tenant) -> None:
        self.tenants.answered(tenant, self._now())

    def tenant_rows(self) -> list[tuple[str, TenantNumbers]]:
        """See `HostedEngine.tenant_rows`."""
        return shown_rows(self.tenants, self._now())

    def allowance(self, tenant: str) -> Allowance | None:
        """See `HostedEngine.allowance`."""
        bucket = self.find_tenant(tenant).bucket
        return None if bucket is None else bucket.allowance(self._now())

    def over_quota(self, tenant: Tenant) -> QuotaExceeded | None:
        """Why `tenant` may have nothing more now by its own limits, or None; the refusal takes the next slot."""
        if not tenant.limited:
            return None
        now = self._now()
        if self._allows(tenant):
            return None
        if tenant.has_room and tenant.bucket is not None:
            seconds = tenant.bucket.next_slot(now, self._quotas.ahead_of_newcomers(tenant)) - now
            why = f"this tenant may send {tenant.bucket.rate:g} items a second"
        else:
            seconds = self._take_slot()
            why = f"this tenant may have {tenant.max_queued} items in hand"
        retry_after = whole_seconds(seconds)
        return QuotaExceeded(
            f"{why}; try again in {retry_after} s",
            retry_after=retry_after,
            retry_after_ms=whole_milliseconds(seconds),
        )

    def to_displace(self, tenant: Tenant, urgency: int) -> Item | None:
        """The item that makes way for a newcomer of `tenant`; None where none does, or there is no need."""
        admission = self._admission
        queue = self.stages[0].queue
        if (admission.items < admission.max_items and self._first_queue_open) or not queue.front_items:
            return None
        if admission.tenants_changed:
            admission.tenants_changed = False
            self._weights = self.tenants.sum_weights()
        weights = self._weights if tenant.items else self._weights + tenant.weight
        # Whichever bound is reached, what is in hand now is as much as may be: that of the first stage may come far
        # before `max_items`, and by parts of that everybody would be below its share.
        return item_to_displace(tenant, urgency, queue.newest_unrun(), admission.items, weights)

    def _displace(self, item: Item) -> None:
        """End `item`, whose place is taken already.

        Its caller is told after the submission that it made way for: else it could submit in the midst of that, and
        displace what has just come in.
        """
        request = item.request
        if request.unsettled == 1:
            request.done = partial(self._tell_soon, request.done)
        error = self.overloaded("the service is full, and this made way for another tenant or urgency", "share")
        self._settling.settle(item, Failure(error))

    def _tell_soon(self, done: Done, outcomes: list[Outcome]) -> None:
        self._running_loop().call_soon(self._settling.tell, done, outcomes)

    # -- how long it will take ------------------------------------------------------------------------------------

    def seconds_too_late(self, deadline: float, lane: Lane, urgency: int, tenant: str) -> float:
        """By how many seconds a newcomer would miss its deadline, or make others miss theirs; 0 if it does neither.

        It is 0 too where newcomers are refused by room alone, for what is of BACK, where nothing waits for an idle
        worker of the first stage, and while some stage has run nothing or has no worker.
        """
        if not self._by_prediction or lane is BACK or deadline > FOREVER_SECONDS:
            return 0.0
        first = self.stages[0]
        if not first.queue.front_items and first.has_idle_worker:
            return 0.0
        now = self._now()
        whose = self.find_tenant(tenant)
        loads = []
        for stage in self.stages:
            load = stage.load(now, stage.queue.ahead_of(urgency, whose, lane, deadline))
            if load is None:
                return 0.0
            if self._overtakes:
                load.run *= PACKED_RUN
            loads.append(load)
        late = now + predicted_end(loads) - deadline
        if late > 0 or not self._overtakes:
            return max(0.0, late)
        behind = first.queue.deadlines_behind(urgency, whose, lane, deadline)
        return seconds_others_miss(loads, now, behind) if behind else 0.0

    @property
    def backlog_seconds(self) -> float:
        """How long what is in hand will take, but for what is of BACK; 0 while nothing is in hand."""
        if not self._admission.items:
            return 0.0
        now = self._now()
        loads = [load for stage in self.stages if (load := stage.load(now, stage.queue.front_items)) is not None]
        if len(loads) < len(self.stages):
            return self._admission.items / self.rate()
        return seconds_to_clear(loads)

    # -- when to come again -----------------------------------------------------------------------------------------

    def overloaded(self, why: str, reason: str, lead: float | None = None) -> Overloaded:
        """The refusal of a newcomer, who takes the next slot; the first one is `lead` seconds away.

        Without `lead` that is when half of what is in hand has ended.  So those who come back a little early still find
        room, and if they are a little late the workers still have work.
        """
        return _overloaded(why, reason, self._take_slot(lead))

    def _take_slot(self, lead: float | None = None) -> float:
        rate = self.rate()
        return self._slots.take(self._now(), self._lead(rate) if lead is None else lead, rate)

    def _lead(self, rate: float, gone: int = 0) -> float:
        """When half of what is in hand has ended, less `gone` items that end just now."""
        return max((self._admission.items - gone) / 2, 1.0) / rate

    def rate(self) -> float:
        """How many items a second the service ends under load, as far as is known."""
        return self._pace.rate(min([stage.known_rate for stage in self.stages]))

    # -- requests ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        payloads: Sequence[Payload],
        codec_in: Codec,
        codec_out: Codec,
        deadline: float,
        done: Done,
        request_id: bytes = b"",
        *,
        lane: Lane = Lane.SINGLE,
        wait: bool = False,
        nbytes: int | None = None,
        hold_results: bool = False,
        alone: bool = False,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> Request:
        """See `Engine.submit`."""
        n = len(payloads)
        if nbytes is None:
            nbytes = payload_size(payloads[0]) if n == 1 else sum(map(payload_size, payloads))
        whose = self.tenants.anyone if not tenant else self.find_tenant(tenant)
        allowed = not whose.limited or lane is BACK or self._allows(whose)
        has_room = self.accepting and (lane is BACK or self.has_room(nbytes))
        if urgency < whose.best_urgency and lane is not BACK:
            urgency = whose.best_urgency
        displaced: Item | None = None
        predicted = self._by_prediction and lane is not BACK
        if (predicted or not has_room or not allowed) and not (wait and self.accepting):
            displaced = self._judge(n, nbytes, deadline, lane, urgency, whose)
            allowed, has_room = True, displaced is None
        if (
            whose.limited
            and lane is not BACK
            and not wait
            and self._quotas.holds_too_long(whose, n, nbytes, self._now())
        ):
            self._refuse(self._waits_too_large(), n, whose)
        # A deadline a generation away never comes, and one before the clock began has passed.
        deadline = math.inf if deadline > FOREVER_SECONDS else max(deadline, 0.0)
        request = Request(
            payloads,
            codec_in,
            codec_out,
            deadline,
            done,
            lane,
            hold_results,
            request_id,
            alone,
            urgency,
            whose,
        )
        self.counters.accepted += n
        if n == 0:
            self._running_loop().call_soon(done, [])
            return request
        whose.requests += 1
        if self._deadlines.add(request):
            self._deadline_alarm.set(self._deadlines.next_moment())
        if lane is BACK:
            self._feed_back(request)
        else:
            request.unfed_bytes = nbytes
            whose.accepted += n
            if allowed:
                at_once = displaced is not None or (has_room and not (wait and self._admission.must_wait(lane)))
                self._take_in(request, at_once=at_once)
            else:
                self._quotas.line_up(request, self._now())
            if displaced is not None:
                self._displace(displaced)
        if not self._waking:
            self.wake()
        return request

    def submit_probe(self, payload: Payload, deadline: float, done: Done) -> None:
        """See `HostedEngine.submit_probe`.  It takes no token and no slot, and displaces nobody."""
        refusal = self._refuse_probe(payload_size(payload))
        if refusal is not None:
            count_refusal(self.counters, refusal)
            raise refusal
        whose = self._prober
        request = Request(
            (payload,), Codec.PICKLE, Codec.PICKLE, deadline, done, Lane.SINGLE, urgency=BEST_URGENCY, tenant=whose
        )
        self.counters.accepted += 1
        whose.requests += 1
        self._deadlines.add(request)
        self._deadline_alarm.set(self._deadlines.next_moment())
        request.unfed_bytes = payload_size(payload)
        self._take_in(request, at_once=True)
        self.wake()

    def _refuse_probe(self, nbytes: int) -> RequestError | None:
        if not self.accepting:
            return self._supervisor.refusal()
        if self.has_room(nbytes):
            return None
        if self.memory_short:
            return Overloaded("the service has too little memory left", reason="memory")
        return Overloaded("the service is full", reason=self.full_of_what())

    def _judge(self, n: int, nbytes: int, deadline: float, lane: Lane, urgency: int, whose: Tenant) -> Item | None:
        """Refuse `n` items that cannot wait, or return the item that makes way for them, if one has to."""
        refusal = self._supervisor.refusal(nbytes, deadline, lane, urgency, whose.name)
        if refusal is not None:
            self._refuse(refusal, n, whose)
        return None if self.has_room(nbytes, urgency) else self.to_displace(whose, urgency)

    def _refuse(self, refusal: RequestError, n: int, whose: Tenant) -> NoReturn:
        count_refusal(self.counters, refusal, n)
        whose.refused += n
        raise refusal

    def _waits_too_large(self) -> Overloaded:
        """Why a client batch is refused that would wait for its tenant's tokens."""
        most = self._admission.ledger.max_bytes // 2
        return self.overloaded(
            f"client batches that wait for the rates of their tenants would take more than {most} bytes; send fewer "
            "items at a time",
            "bytes",
        )

    def _take_in(self, request: Request, *, at_once: bool) -> None:
        """Let `request` in `at_once`, or have it wait for room; what of it cannot be fed at once waits too."""
        admission = self._admission
        if at_once:
            admission.let_in(request)
            self._feed_one(request)
        if not request.wholly_fed:
            if request.tenant.limited:
                self._quotas.line_up(request, self._now())
            else:
                admission.line_up(request)

    def cancel(self, request: Request) -> None:
        """See `Engine.cancel`."""
        before = request.unsettled
        self._settling.end(request, lambda _: Cancelled())
        if before:
            self.wake()

    def begun(self, request: Request) -> bool:
        """See `Engine.begun`."""
        if request.unsettled < len(request.payloads):
            return True
        return any(has_begun(item) for item in request.items)

    def hold(self, nbytes: int) -> None:
        """See `HostedEngine.hold`."""
        self._admission.ledger.hold(nbytes)
        if nbytes < 0:
            self._given_back()

    def hold_answer(self, nbytes: int) -> None:
        """See `HostedEngine.hold_answer`."""
        self._admission.ledger.hold_answer(nbytes)
        if nbytes < 0:
            self._given_back()

    def _given_back(self) -> None:
        """Bytes were given back: what waited for room, wherever it is, may move now."""
        if not self.idle:
            self.wake()

    @property
    def _first_queue_open(self) -> bool:
        return self._first_limit is None or self.stages[0].queue.front_items < self._first_limit

    def _feed(self) -> bool:
        """Feed the requests that wait, as far as there is room; returns whether any was fed."""
        fed = False
        while self._first_queue_open:
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

    def _feed_all(self, now: float) -> bool:
        """The same, those included whose tenants may have one more item by now."""
        admission = self._admission
        if admission.held_back:
            self._quotas.release(now)
        return admission.waiting > 0 and self._feed()

    def _allows(self, tenant: Tenant) -> bool:
        """Whether a newcomer of `tenant` may go on by its own limits; those of it who wait go first."""
        now = self._now()
        if self._admission.held_back:
            self._quotas.release_one(tenant, now)
            if self._admission.waiting:
                self._feed()
        return self._quotas.allows(tenant, now)

    def _feed_back(self, request: Request) -> None:
        """Feed all of `request` at once: whoever submits to BACK bounds what lies there."""
        request.holds_results = False
        for fed in range(len(request.payloads)):
            request.fed = fed
            self._offer_next(request)
        request.fed = len(request.payloads)
        self._settling.back_items += request.fed

    def _offer_next(self, request: Request) -> Item:
        """Make the next payload of `request` an item of the first stage; who calls counts it as fed."""
        index = request.fed
        payload = request.payloads[index]
        item = Item(next(self._item_ids), payload, payload_size(payload), request, index)
        if len(request.items) > self._kept_items:
            request.items = [i for i in request.items if i.state is not SETTLED]
        request.items.append(item)
        item.state = OFFER[item.state]
        self.stages[0].queue.offer(item, self._now())
        return item

    # -- the one pump -------------------------------------------------------------------------------------------------

    def wake(self) -> None:  # noqa: D102  # see `Hub`
        if not self._waking:
            self._waking = True
            self._running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._waking = False
        now = self._now()
        saturated = False
        admission = self._admission
        if admission.waiting or admission.held_back:
            self._feed_all(now)
        # The last stage first: what it takes makes room for the stage before it, in the same turn.
        for stage in reversed(self.stages):
            if len(stage.queue):
                stage.pump(now, self._rooms[stage.index], self._back_rooms[stage.index])
                if not saturated and len(stage.queue):
                    # While no worker is ready none has an item, and nothing can be learned of how fast they are.
                    saturated = stage.in_flight > 0 and least_busy(stage.workers, 1) is None
            stage.note_work(now)
        pace = self._pace
        if saturated != pace.saturated or (saturated and now - pace.looked_at >= SECONDS_PER_LOOK):
            counters = self.counters
            pace.look(now, counters.succeeded + counters.failed + counters.invalid, saturated)
        if admission.waiting or admission.held_back:
            if self._feed_all(now):
                self.wake()
            if admission.held_back:
                self._quota_alarm.set(self._quotas.next_moment())
        if self.on_pumped is not None:
            self.on_pumped()

    # -- what stages report -------------------------------------------------------------------------------------------

    def pool_changed(self, stage: StageDriver, failure: StartFailed | None) -> None:  # noqa: D102  # see `Hub`
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
                late = status == EXPIRED
                error = (
                    self._deadline_exceeded(item.request, item) if late else _read_failure(stage.name, status, payload)
                )
                settling.settle(item, Failure(error))
            elif last:
                settling.settle(item, Result(payload))
            elif item.request.full:
                settling.settle(item, Failure(self._too_many_results(False)))
            else:
                self._advance(item, payload, now)

    def missed(self, items: list[Item]) -> None:  # noqa: D102  # see `Hub`
        for item in items:
            self._settling.settle(item, Failure(self._deadline_exceeded(item.request, item)))

    def worker_lost(  # noqa: D102  # see `Hub`
        self, stage: StageDriver, items: list[Item], *, hung: bool, alone: bool
    ) -> None:
        for item in items:
            words = _lost_words(hung=hung, alone=alone, again=item.suspect)
            self._settling.settle(item, Failure(WorkerLost(words, stage=stage.name, hung=hung, alone=alone)))

    def _too_many_results(self, takes_slot: bool) -> RequestError:
        """Why items end unrun whose client batch has gathered too many results."""
        most = self._admission.ledger.max_bytes
        return _overloaded(
            f"the results of unfinished batches take more than {most} bytes, most of them those of this one; send "
            "fewer items at a time",
            "bytes",
            self._take_slot() if takes_slot else self._slots.look(self._now(), self._lead(self.rate())),
        )

    def _advance(self, item: Item, payload: Payload, now: float) -> None:
        if item.request.lane == BACK:
            item.nbytes = payload_size(payload)
        else:
            self._admission.ledger.advance(item, payload)
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
                self._settling.end(request, partial(self._deadline_exceeded, request))
        finally:
            # Where one raises, the others are ended by the next ring: they must not stay in hand for good.
            for request in expired:  # to end one that was settled meanwhile does nothing
                self._deadlines.add(request)
            self._told_late.clear()
            self._deadline_alarm.set(self._deadlines.next_moment())
            self.wake()

    def _deadline_exceeded(self, request: Request, item: Item | None) -> DeadlineExceeded:
        """Why an item of `request` ends whose deadline has passed.

        Those that waited take a slot, all of one request the same, as if it had been refused.
        """
        ran = item is not None and item.frame is not None and item.frame.running
        error = DeadlineExceeded(ran=ran)
        returns = item is None or (request.lane != BACK and request.tenant is not self._prober)
        if not ran and returns:
            seconds = self._told_late.get(request, -1.0)
            if seconds < 0:
                in_hand = request.unsettled - (len(request.payloads) - request.fed)
                seconds = self._told_late[request] = self._take_slot(self._lead(self.rate(), in_hand))
            error.retry_after = whole_seconds(seconds)
            error.retry_after_ms = whole_milliseconds(seconds)
        return error

    def forget_deadlines(self) -> None:
        """Cancel the alarms: every request is settled."""
        self._deadline_alarm.cancel()
        self._quota_alarm.cancel()


def _room_after(
    stage: StageDriver, following: StageDriver | None, max_bytes: int, ledger: ByteLedger
) -> Callable[[], int | None]:
    """A function that returns how many items `stage` may be sent now, by the room behind it.

    None is any number, 0 is none now.
    """
    if following is None:
        return lambda: room_for_answers(ledger.answers, max_bytes=ledger.max_bytes)
    queue, limit = following.queue, following.spec.options.max_queued

    # A nested function is slow to make once compiled; this one is made once for each stage.
    def room() -> int | None:
        on_the_way = stage.in_flight - stage.back_in_flight
        return room_after(queue.front_items, queue.front_nbytes, on_the_way, max_queued=limit, max_bytes=max_bytes)

    return room


def _back_room_after(following: StageDriver | None, max_bytes: int) -> Callable[[], bool]:
    """A function that returns whether the stage before `following` may be sent items of BACK now."""
    if following is None:
        return lambda: True
    queue, spec = following.queue, following.spec
    most = spec.workers * spec.policy.max_size
    return lambda: room_for_back(queue.back_items, queue.back_nbytes, most=most, max_bytes=max_bytes)


def _overloaded(why: str, reason: str, seconds: float) -> Overloaded:
    """An error that says to come again in so many seconds."""
    retry_after = whole_seconds(seconds)
    return Overloaded(
        f"{why}; try again in {retry_after} s",
        retry_after=retry_after,
        retry_after_ms=whole_milliseconds(seconds),
        reason=reason,
    )


def _read_failure(stage: str, status: int, payload: Payload) -> RequestError:
    """What a worker of `stage` says of an item that it has run and that has no result."""
    try:
        problem = unpack(payload, Problem)
    except ProtocolError as broken:
        # The worker no longer holds the batch: if the item is not settled here, it never is.
        return StageFailed(str(broken), stage=stage)
    error = invalid_input(problem) if status == Status.INVALID else stage_failure(problem, stage)
    error.begun = True
    return error


def _lost_words(*, hung: bool, alone: bool, again: bool) -> str:
    """How a worker ended under an item; `again` says that it was the second one."""
    what = "this item alone" if alone else "a batch with this item"
    how = f"was killed, because it ran {what} longer than its timeout" if hung else f"died while it ran {what}"
    if again:
        return f"The worker process {how}; another one had ended under it before."
    return f"The worker process {how}."
