"""Give memory back to the system that nobody has used for a minute: pages of slabs, and the heaps of idle workers.

The pages of arrivals are given back here.  A part of results is its worker's, which may be about to write there: it is
told which ranges are idle, and gives back what of them still is, and then what its C library keeps.  An idle worker is
also asked what its stage keeps no more of its inputs, which it would only say with its next answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.clock import Clock, Timer
from penstock.core.slab_allocator import IDLE_SECONDS
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.slabs import Arrivals, ResultPart
from penstock.runtime.stage_driver import StageDriver
from penstock.runtime.stage_memory import released_note
from penstock.runtime.worker_slot import WorkerSlot
from penstock.transport.framing import Kind, encode_slab_note
from penstock.transport.messages import Trim, pack

log = guarded_logger("penstock.runtime")

INTERVAL_SECONDS: Final = 5.0
MOST_BYTES: Final = 8 * 1024 * 1024
"""Most bytes that are given back in one turn of the event loop, which takes half a millisecond."""


class SlabUpkeep:
    """Looks every few seconds for idle pages, from `start` to `stop`."""

    def __init__(self, service: str, arrivals: Arrivals | None, stages: Sequence[StageDriver], clock: Clock) -> None:
        self._service = service
        self._arrivals = arrivals
        self._stages = stages
        self._clock = clock
        self._idle_since: dict[WorkerSlot, float] = {}
        """The workers that were told to give their heaps back, and since when they were idle then."""
        self._told_refusal = False
        """History: whether the log has said that the system takes no pages back."""
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look from now on."""
        self._timer = self._clock.call_later(INTERVAL_SECONDS, self._look)

    def stop(self) -> None:
        """Look no more; harmless if it does not look."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        more = self._trim_arrivals() or self._trim_results()
        self._tell_idle_workers()
        self._tell_refusal()
        self._timer = self._clock.call_later(0.0 if more else INTERVAL_SECONDS, self._look)

    def _trim_arrivals(self) -> bool:
        """Give pages of arrivals back; whether there may be more."""
        if self._arrivals is None:
            return False
        return self._arrivals.trim(self._clock.now(), MOST_BYTES) >= MOST_BYTES

    def _trim_results(self) -> bool:
        """The same for the part of one worker."""
        for stage in self._stages:
            for worker in stage.workers:
                part = worker.part
                if part is not None and part.has_touched and self._trim_part(part, worker) >= MOST_BYTES:
                    return True
        return False

    def _tell_refusal(self) -> None:
        if self._told_refusal:
            return
        slabs = [worker.part.slab for stage in self._stages for worker in stage.workers if worker.part is not None]
        slabs += [] if self._arrivals is None else [self._arrivals.slab]
        refusals = [slab.refusal for slab in slabs if slab.refusal is not None]
        if refusals:
            self._told_refusal = True
            log.warning(
                "service %r: unused shared memory stays allocated, because the system cannot release parts of it: %s",
                self._service,
                refusals[0].strerror,
            )

    def _tell_idle_workers(self) -> None:
        """Have those that have been idle for so long give their heaps back, once until they work again.

        Those whose stages keep inputs then say of which they do no more, as the others do each time.
        """
        now = self._clock.now()
        for stage in self._stages:
            for worker in stage.workers:
                since = worker.idle_since
                if worker.part is None or since is None:
                    continue
                if now - since >= IDLE_SECONDS and self._idle_since.get(worker) != since:
                    self._idle_since[worker] = since
                    worker.tell(encode_slab_note(Kind.TRIM, pack(Trim([], heap=True))))
                elif worker.kept:
                    worker.tell(encode_slab_note(Kind.TRIM, pack(Trim([]))))

    def _trim_part(self, part: ResultPart, worker: WorkerSlot) -> int:
        """The bytes that were idle.  While a worker starts nobody can say what it does with its part: that can wait."""
        if worker.alive and not worker.ready:
            return 0
        runs = part.idle_runs(MOST_BYTES)
        if runs and worker.ready:
            if part.any_ended:
                worker.tell(released_note(part))  # first: what it takes for read it does not give back
            worker.tell(encode_slab_note(Kind.TRIM, pack(Trim(runs))))
        elif runs:
            for offset, nbytes in runs:
                part.slab.give_back(offset, nbytes)
        return sum([nbytes for _, nbytes in runs])
