"""The shared memory of one running service, as its coordinator has it.

There is one slab for arrivals, which this process writes, and one for the results of each stage whose workers are
processes of ours.  The latter is divided into equal parts, one for each worker's place, which only that worker writes.
A worker reads the slab that its inputs lie in: that of arrivals, or that of the results of the stage before.

A waiting stage has none, because its workers answer in any order, and which inputs a stage keeps is told by the order
of answers.  Its inputs and its results travel inline.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from penstock.config import ServiceOptions
from penstock.core.payload import Handle
from penstock.core.slab_allocator import SlabAllocator
from penstock.core.slab_sizes import slab_bytes_each, slab_count
from penstock.errors import ProtocolError
from penstock.hosting.available_memory import memory_limit
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.spec import StageSpec
from penstock.transport.messages import SlabOrder
from penstock.transport.slab import SYSTEM_PAGE_BYTES, Slab, SlabsUnavailable, open_slab_bytes
from penstock.transport.slab_pieces import Pieces

log = guarded_logger("penstock.runtime")

_numbers = count(1)
"""Each slab of this process has a number of its own.

So a piece of another service, or of an earlier run of this one, is named to no worker, whoever mistook it.
"""
NO_SLAB: Final = -1
LOCK_SECONDS: Final = 0.01
"""How long a lease waits for another thread.

It is held for microseconds.  Who waits so long was called by the cycle collector in the midst of a lease of its own
thread; what it has travels inline.
"""


class Arrivals:
    """Leases pieces for what comes in.  Any thread may ask.

    Args:
        slab: where they lie.
        now: tells the time.
    """

    def __init__(self, slab: Slab, now: Callable[[], float]) -> None:
        self.slab = slab
        self._allocator = SlabAllocator(slab.nbytes)
        self._pieces = Pieces(slab.memory)
        self._serials = count(1)
        self._now = now
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def used_bytes(self) -> int:
        """The bytes of pieces that somebody holds, in whole pages."""
        self._forget_ended()
        return self._allocator.used_bytes

    def lease(self, nbytes: int) -> memoryview | None:
        """A place for `nbytes`, to be written to; None where there is no room.  It is free when no view is left.

        None also in a fork of the process that made the slab, which would write over pieces that are in use there.
        """
        if os.getpid() != self._process or not self._lock.acquire(timeout=LOCK_SECONDS):
            return None
        try:
            now = self._now()
            self._drop_ended(now)
            offset = self._allocator.take(nbytes)
            if offset is None:
                return None
            return self._pieces.view(Handle(self.slab.number, offset, nbytes, next(self._serials)))
        finally:
            self._lock.release()

    def trim(self, now: float, most_bytes: int) -> int:
        """Give pages back to the system that nobody has used for a minute; returns how many bytes they were."""
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            return 0
        try:
            self._drop_ended(now)
            runs = self._allocator.idle_runs(now, most_bytes)
            for offset, nbytes in runs:
                self.slab.give_back(offset, nbytes)
        finally:
            self._lock.release()
        return sum([nbytes for _, nbytes in runs])

    def _forget_ended(self) -> None:
        if self._lock.acquire(timeout=LOCK_SECONDS):
            try:
                self._drop_ended(self._now())
            finally:
                self._lock.release()

    def _drop_ended(self, now: float) -> None:
        for handle in self._pieces.ended():
            self._allocator.give_back(handle.offset, now)


class ResultPart:
    """The part of a stage's slab of results that the worker in one place writes, and what of it is still read here.

    The worker decides where it writes.  What it names is held to this part, and to what nobody reads any more.
    """

    def __init__(self, slab: Slab, offset: int, nbytes: int, now: Callable[[], float]) -> None:
        self.slab = slab
        self.offset = offset
        self.nbytes = nbytes
        self._allocator = SlabAllocator(nbytes)
        self._pieces = Pieces(slab.memory)
        self._last_serial = 0
        self._untold: list[int] = []
        """The serial numbers of results that nobody reads any more, which the worker was not told yet."""
        self._had_worker = False
        """History: whether a worker was told to write here."""
        self._now = now

    @property
    def used_bytes(self) -> int:
        """The bytes of results that somebody holds, in whole pages."""
        self._drop_ended()
        return self._allocator.used_bytes

    def read(self, handle: Handle) -> memoryview:
        """A view of the result that the worker names.

        Raises:
            ProtocolError: the handle is of another slab or part, of a result that is still read, or not of the one that
                comes next: a worker names its results in the order in which it has numbered them.
        """
        at = handle.offset - self.offset
        if handle.slab != self.slab.number or handle.serial != self._last_serial + 1:
            raise ProtocolError(
                f"expected result {self._last_serial + 1} of slab {self.slab.number}, the worker sent result "
                f"{handle.serial} of slab {handle.slab}"
            )
        if not self._allocator.take_at(at, handle.nbytes):
            raise ProtocolError(
                f"the worker sent {handle.nbytes} bytes at {handle.offset}, which it does not own or which are still "
                "in use"
            )
        self._last_serial = handle.serial
        return self._pieces.view(handle)

    @property
    def has_touched(self) -> bool:
        """Whether `idle_runs` may have anything to tell, now or later."""
        self._drop_ended()
        return self._allocator.has_touched

    @property
    def any_ended(self) -> bool:
        """Whether `released` has anything to tell."""
        return self._pieces.any_ended or bool(self._untold)

    def released(self) -> list[int]:
        """The serial numbers of the results that nobody reads any more, and that were not told before."""
        self._drop_ended()
        untold, self._untold = self._untold, []
        return untold

    def _drop_ended(self) -> None:
        now = self._now()
        for handle in self._pieces.ended():
            self._allocator.give_back(handle.offset - self.offset, now)
            self._untold.append(handle.serial)

    def order(self, inputs: Slab | None, least: int) -> SlabOrder:
        """What a worker in this place is told at its start.

        The one before it may have written anywhere, and told nobody.
        """
        self.released()
        if self._had_worker:
            self._allocator.touch_free(self._now())
        self._had_worker = True
        return SlabOrder(
            inputs=NO_SLAB if inputs is None else inputs.number,
            input_bytes=0 if inputs is None else inputs.nbytes,
            results=self.slab.number if self.nbytes else NO_SLAB,
            part_offset=self.offset,
            part_bytes=self.nbytes,
            held=[(handle.offset, handle.nbytes, handle.serial) for handle in self._pieces.in_use()],
            next_serial=self._last_serial + 1,
            least=least,
        )

    def idle_runs(self, most_bytes: int) -> list[tuple[int, int]]:
        """Ranges of this part, as offset and bytes, that nobody has used for a minute: the worker gives them back."""
        return [(self.offset + at, nbytes) for at, nbytes in self._allocator.idle_runs(self._now(), most_bytes)]


class StageSlabs(NamedTuple):
    """What one stage has of the slabs: what its workers read, and what each writes."""

    inputs: Slab | None
    """The slab of its inputs; without one they come inline: from workers outside, from a waiting stage, or to one."""
    parts: list[ResultPart]
    """Empty for a waiting stage."""
    least: int
    """Payloads of so many bytes or more lie in a slab."""

    @property
    def slab(self) -> Slab | None:
        """The slab of its results."""
        return self.parts[0].slab if self.parts else None

    def descriptors(self) -> tuple[int, int]:
        """The descriptors that a worker inherits: of its inputs, for reading, and of its results; -1 for none."""
        return (
            NO_SLAB if self.inputs is None else self.inputs.readable,
            NO_SLAB if self.slab is None else self.slab.descriptor,
        )

    def order(self, worker: int) -> SlabOrder | None:
        """The slabs that worker `worker` is told of; None where it has nothing of them."""
        return self.parts[worker].order(self.inputs, self.least) if self.parts else None


class ServiceSlabs:
    """All slabs of one running service."""

    def __init__(self, arrivals: Arrivals | None, stages: list[StageSlabs | None]) -> None:
        self.arrivals = arrivals
        self.stages = stages
        """For each stage what it has; None for one of workers from outside."""

    @classmethod
    def make(cls, workers: Sequence[int | None], nbytes: int, least: int, now: Callable[[], float]) -> ServiceSlabs:
        """Slabs of `nbytes` for a service whose stages have so many `workers` each.

        It is 0 where they come from outside, and None where the stage is a waiting one.

        Raises:
            SlabsUnavailable: the system has no such memory, or refuses it.
        """
        made: list[Slab] = []
        try:
            before: Slab | None = None
            arrivals = None
            stages: list[StageSlabs | None] = []
            if workers[0]:
                before = Slab.make(next(_numbers), nbytes)
                made.append(before)
                arrivals = Arrivals(before, now)
            for places in workers:
                if not places:
                    before = None
                    stages.append(StageSlabs(None, [], least) if places is None else None)
                    continue
                slab = Slab.make(next(_numbers), nbytes)
                made.append(slab)
                part = nbytes // places // SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES
                parts = [ResultPart(slab, place * part, part, now) for place in range(places)]
                stages.append(StageSlabs(before, parts, least))
                before = slab
        except SlabsUnavailable:
            for slab in made:
                slab.close()
            raise
        return cls(arrivals, stages)

    def close(self) -> None:
        """Close the descriptors: the service has stopped.  What callers still hold stays readable for them."""
        if self.arrivals is not None:
            self.arrivals.slab.close()
        for stage in self.stages:
            if stage is not None and stage.slab is not None:
                stage.slab.close()


def writing_workers(spec: StageSpec) -> int | None:
    """How many workers of a stage write to a slab: 0 where they come from outside, None where the stage waits."""
    if spec.concurrency:
        return None
    return 0 if spec.external is not None else spec.workers


OpenSlabs: TypeAlias = Callable[[str, Sequence[StageSpec], ServiceOptions, Callable[[], float]], ServiceSlabs | None]
"""Makes the slabs of the service of this name; None where everything travels inline."""


def open_slabs(
    service: str, specs: Sequence[StageSpec], options: ServiceOptions, now: Callable[[], float]
) -> ServiceSlabs | None:
    """The slabs of a service whose stages are `specs`; None where it is to have none, or the system has no such memory.

    A service whose stages all wait has no slab in them; what travels inline is counted all the same.

    Raises:
        ConfigError: `shm_bytes` was set to more than this machine allows.
    """
    workers = [writing_workers(spec) for spec in specs]
    slabs = slab_count([bool(places) for places in workers])
    nbytes, least = 0, options.shm_threshold
    if slabs:
        nbytes = slab_bytes_each(options.shm_bytes, slabs, memory_limit(), open_slab_bytes())
        least = min(least, nbytes + 1)  # what is larger lies nowhere, and a message carries 64 bits
    if not nbytes and (slabs or options.shm_bytes == 0 or None not in workers):
        return None
    try:
        return ServiceSlabs.make(workers, nbytes, least, now)
    except SlabsUnavailable as error:
        log.warning("service %r: shared memory is not available, large payloads are copied instead: %s", service, error)
        return None
