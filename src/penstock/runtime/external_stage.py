"""Drives a stage whose workers attach from outside: they come and go, and none of them is ours to start or to kill."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from math import isinf
from typing import Final

from penstock.codec.formats import CODEC_NAMES, Codec
from penstock.codec.text import cut_line, cut_middle, printable
from penstock.codec.well_formed import well_formed
from penstock.config import ServiceOptions
from penstock.core.alarm import Alarm
from penstock.core.clock import Clock
from penstock.core.dispatch import SentFrame
from penstock.core.line_pace import LinePace
from penstock.core.load_progress import Loading
from penstock.core.presence import Presence
from penstock.core.supervision import WorkerHealth
from penstock.errors import ProtocolError
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.external_incarnation import ExternalPeer, ServiceStops
from penstock.runtime.incarnation import Incarnation, IncarnationOwner, StartIncarnation, WorkerStart
from penstock.runtime.launching import WorkerPlace
from penstock.runtime.spec import External, StageSpec
from penstock.runtime.stage_driver import Hub, StageDriver
from penstock.runtime.stage_failures import start_failure
from penstock.runtime.worker_slot import IncarnationEnd, WorkerSlot
from penstock.transport.external_messages import ExternalHello, ExternalLaunch, codecs_of, pack_json
from penstock.transport.framing import Frame, Status
from penstock.transport.messages import COUNTS_BYTES, Launch

log = guarded_logger("penstock.runtime")

LINES_PER_SECOND: Final = 16
"""Most lines a second that tell of workers that come and leave, and as many of those that die or cannot be set up."""
LANGUAGE_BYTES: Final = 100
REASON_BYTES: Final = 1024
EARLY_SECONDS: Final = 0.01
"""How long before its deadline a worker may call an item expired: the clocks of some languages tick no finer."""
OK: Final = int(Status.OK)
EXPIRED: Final = int(Status.EXPIRED)  # the last status that there is
NAMES: Final = {int(codec): name for name, codec in CODEC_NAMES.items()}


class ExternalStageDriver(StageDriver):
    """One running stage whose workers attach."""

    recalls = False
    """Workers from outside know no RECALL."""

    def __init__(
        self,
        hub: Hub,
        service: str,
        spec: StageSpec,
        index: int,
        *,
        codec_in: Codec | None,
        codec_out: Codec | None,
        options: ServiceOptions,
        inline: bool,
        clock: Clock,
        start_incarnation: StartIncarnation,
    ) -> None:
        super().__init__(
            hub,
            service,
            spec,
            index,
            codec_in=codec_in,
            codec_out=codec_out,
            options=options,
            inline=inline,
            clock=clock,
            start_incarnation=start_incarnation,
        )
        assert spec.external is not None
        self._external: External = spec.external
        self._bounds = options
        self.ending = self.fate = "cut off"
        self._presence = Presence(options.reattach_timeout)
        self._grace = Alarm(clock, self._grace_over)
        self._records: dict[int, WorkerHealth] = {}
        """What is known of the workers of each number: who is cut off for its failures comes back under one of them."""
        self._comings = LinePace(LINES_PER_SECOND)
        self._ends = LinePace(LINES_PER_SECOND)
        self._disbeliefs = LinePace()

    # -- what others read -----------------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Whether no worker has been there for too long, or the stage rests."""
        return self._presence.failed(self._now()) or (self.health.resting and self.live_workers == 0)

    @property
    def reason(self) -> str:
        """Why it has failed."""
        return self.health.reason if self.health.resting else str(self._waiting())

    @property
    def started(self) -> bool:
        """A start waits for no worker of somebody else."""
        return True

    @property
    def awaits_others(self) -> bool:
        """Whether no worker has been there yet."""
        return not self.health.ever_ready

    @property
    def loading(self) -> Loading | None:
        """What the service waits for here until the first worker is ready."""
        return None if self.health.ever_ready else self._waiting()

    def _waiting(self) -> Loading:
        attached = [worker for worker in self.workers if not worker.leaving]
        return Loading(self.name, len(attached), 1, self._presence.waited(self._now()), external=True)

    @property
    def _at_work(self) -> bool:
        """Not while items only wait for a worker: `reattach_timeout` says how long they may."""
        return self.in_flight > 0 or (len(self.queue) > 0 and not self.held and self.live_workers > 0)

    # -- workers come -----------------------------------------------------------------------------------------------

    def attach(self, peer: ExternalPeer, hello: ExternalHello, uid: int | None) -> None:
        """Give `peer`, which has said HELLO, a number, and tell it what to be.

        Raises:
            ProtocolError: it cannot serve here, and the text says why.
            ServiceStops: nobody can.
        """
        if self.stopping:
            raise ServiceStops
        missing = [NAMES[codec] for codec in self._external.accepts if codec not in codecs_of(hello.codecs)]
        if missing:
            raise ProtocolError(f"stage {self.name!r} also needs the formats {', '.join(missing)}")
        taken = {worker.index for worker in self.workers}
        if len(taken) >= self.seats:
            raise ProtocolError(f"stage {self.name!r} has reached max_remote_workers={self.seats}")
        index = next(number for number in range(self.seats) if number not in taken)
        record = self._records.setdefault(index, WorkerHealth(recycle_after=self.spec.options.unhealthy_after))
        worker = self._slot(index, record, partial(self._accepted, peer))
        worker.language = cut_middle(printable(hello.language), LANGUAGE_BYTES)
        worker.has_health = hello.health
        self.workers.append(worker)
        if hello.health and self._rounds is None:
            self._rounds = self._make_rounds()
        who = f"pid {peer.pid}, uid {'unknown' if uid is None else uid}, {worker.language or 'no language'}"
        self._tell(self._comings, logging.INFO, f"{worker} attached ({who})")
        worker.start()

    async def _accepted(self, peer: ExternalPeer, owner: IncarnationOwner, start: WorkerStart) -> Incarnation:  # noqa: ARG002  # of our own
        """Stands for the start of a worker that is there already: it reports to `owner` from now on."""
        peer.serve(owner, max_body=self._bounds.max_queued_bytes, max_items=self.spec.policy.max_size)
        return peer

    def start(self, launch: Callable[[int], Launch], places: list[WorkerPlace]) -> None:  # noqa: ARG002
        """Start nobody: wait."""
        self._started_at = self._now()
        self._presence.began(self._started_at)

    def start_of(self, index: int) -> WorkerStart:
        """Nothing is started: this only says who it is."""
        return WorkerStart(self.service, self.name, index, None, frozenset(), {})

    def launch_in(self) -> float:
        """Once a stage that rests may be tried again."""
        return self.health.rest_left(self._now()) or 0.0

    def launch_of(self, index: int) -> bytes:  # see `SlotOwner`
        return pack_json(
            ExternalLaunch(
                service=self.service,
                stage=self.name,
                index=index,
                count=self.seats,
                batched=self.spec.batch is not None,
                max_size=self.spec.policy.max_size,
                accepts=tuple(NAMES[codec] for codec in self._external.accepts),
                max_body=self._bounds.max_queued_bytes,
                validate_results=self._bounds.validate_results and self.last,
                allow_nan=self._bounds.nan_as_null,
                counts=self._bounds.max_queued_bytes >= COUNTS_BYTES,
            )
        )

    def worker_ready(self, worker: WorkerSlot) -> None:
        """A worker is ready: the stage is there, whatever was before."""
        if self.health.may_serve(self._now()):
            self._presence.became_ready()
            self._grace.cancel()
            if self._rounds is not None:
                self._rounds.another_came()
        super().worker_ready(worker)

    def _tell_ready(self, words: str) -> None:
        self._tell(self._comings, logging.INFO, words)

    # -- what they send ---------------------------------------------------------------------------------------------

    def check_answers(self, sent: SentFrame, frame: Frame) -> None:
        """Believe an answer only as far as it can be one."""
        if frame.ids != tuple([item.id for item in sent.items]):
            raise ProtocolError("the worker sent results for other items than it received")
        codec_out = self.codec_out
        now = self._now()
        for item, status, payload in zip(sent.items, frame.statuses, frame.payloads, strict=True):
            if status == OK:
                codec = item.request.codec_out if codec_out is None else codec_out
                if not well_formed(codec, payload):
                    raise ProtocolError(f"the worker sent a result that is not valid {NAMES[codec]}")
            elif status > EXPIRED:
                raise ProtocolError(f"the worker sent the unknown status {status}")
            elif status == EXPIRED and item.deadline > now + EARLY_SECONDS:
                left = "no deadline" if isinf(item.deadline) else f"{item.deadline - now:.3g} s left"
                raise ProtocolError(
                    f"the worker reported an item as expired that has {left}: check that it uses the clock of this host"
                )
        # What it says of its time decides when batches leave and how long a deserted one may run.
        most = now - sent.moment
        if not 0.0 <= frame.seconds <= most:  # also where it is no number
            frame.seconds = most

    def disbelieved(self, worker: WorkerSlot, why: str) -> None:  # see `SlotOwner`
        self._tell(self._disbeliefs, logging.ERROR, f"{worker}: {why}; the worker is {self.ending}")

    # -- workers go -------------------------------------------------------------------------------------------------

    def worker_detached(self, worker: WorkerSlot) -> None:
        """The worker takes nothing more; what it holds it answers."""
        self._tell(self._comings, logging.INFO, f"{worker} is detaching (pid {worker.pid})")
        self.hub.pool_changed(self, None)
        self.hub.wake()

    def worker_ended(self, worker: WorkerSlot, end: IncarnationEnd) -> None:
        """A worker is gone: its items are queued again or settled, and its number is free."""
        if self._rounds is not None:
            self._rounds.ended(worker)
        self.workers.remove(worker)
        self._reclaim(worker, end.frames, innocent=end.innocent, hung=end.hung)
        if not self.stopping:
            self._tell_end(worker, end)
            if self.health.ever_ready and not any(other.ready or other.leaving for other in self.workers):
                self._presence.all_gone(self._now())
                self._grace.set(self._presence.fails_at)
        self.hub.pool_changed(self, None)
        self.hub.wake()

    def _tell_end(self, worker: WorkerSlot, end: IncarnationEnd) -> None:
        if end.innocent or end.hung or end.disbelieved:
            return  # it was told when the worker was cut off
        if end.detached and not end.frames:
            self._tell(self._comings, logging.INFO, f"{worker} detached")
        elif end.was_ready:
            self._tell(self._ends, logging.ERROR, f"{worker} ended: {end.reason}")
        else:
            failure = start_failure(worker, end)
            now = self._now()
            self.health.died_before_ready(worker.index, str(failure).splitlines()[0], now)
            trace = f"\n{failure.traceback.rstrip()}" if failure.traceback else ""
            self._tell(self._ends, logging.ERROR, str(failure).partition("\n")[0], trace)

    def _grace_over(self) -> None:
        if self._presence.failed(self._now()):
            if not self.health.resting:  # else it has failed already, and the log says why
                log.error("stage %r has failed: no remote worker became ready within reattach_timeout", self.name)
            self.hub.pool_changed(self, None)
        else:
            self._grace.set(self._presence.fails_at)

    def _begin_stop(self) -> None:
        super()._begin_stop()
        self._grace.cancel()

    def _tell(self, pace: LinePace, level: int, words: str, trace: str = "") -> None:
        left_out = pace.take(self._now())
        if left_out is not None:
            more = f" ({left_out} similar lines were suppressed)" if left_out else ""
            log.log(level, "%s%s%s", cut_line(words, REASON_BYTES), more, trace)
