"""Shared memory as one worker has it: inputs that it reads in place, and the part that it writes its results to.

Contract
--------
* An input that the coordinator names becomes a view for reading only.  The stage may keep it, or a slice or an array
  of it: `tell` says so to the coordinator, which leaves the piece alone until a later `tell` says that it is gone.
* A large result is copied into the worker's part, where there is room.  It stays there until the
  coordinator says that nobody reads it any more.
* What the coordinator says is held to what can be: a piece lies in its slab, and not on one that is kept.
"""

from __future__ import annotations

import gc
import mmap
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.core.payload import Handle, Payload, write_payload
from penstock.core.slab_allocator import SlabAllocator
from penstock.errors import ProtocolError
from penstock.hosting.freed_memory import trim_heap
from penstock.transport.framing import Frame, Kind, encode_slab_note
from penstock.transport.messages import Kept, Released, SlabOrder, Trim, pack, unpack
from penstock.transport.slab import ReadableSlab, give_back_pages
from penstock.transport.slab_pieces import whole_pages

YOUNG: Final = 1
"""The generation of `gc.collect` that are objects which no collection, or one, has seen."""
COLLECT_PAUSE: Final = 50.0
"""After a collection of all objects there is none for so many times as long as it took."""


class Inputs:
    """The slab that the inputs lie in."""

    def __init__(self, slab: ReadableSlab, number: int, nbytes: int) -> None:
        self._slab = slab
        self._number = number
        self._nbytes = nbytes
        self._opened: dict[int, tuple[Handle, Any]] = {}
        """The inputs of the batch in hand by serial number, each with the weak reference to its exporter."""
        self._kept: dict[int, tuple[Handle, Any]] = {}
        """Those of earlier batches that the stage keeps views of."""
        self._has_kept = False
        """History: whether it ever kept one."""
        self._collect_again = 0.0
        """From when on the cycle collector may look at all objects again."""

    def open(self, frame: Frame) -> None:
        """Put views in place of the handles of `frame`; ProtocolError where one cannot be."""
        for place, handle in frame.handles:
            end = handle.offset + handle.nbytes
            if handle.slab != self._number or handle.nbytes < 1 or end > self._nbytes:
                raise ProtocolError(f"a batch refers to {handle.nbytes} bytes at {handle.offset} of slab {handle.slab}")
            for kept, _ in self._kept.values():
                if handle.offset < kept.offset + whole_pages(kept.nbytes) and kept.offset < end:
                    raise ProtocolError("a batch refers to memory of which the stage still has a view")
            frame.payloads[place], reference = self._slab.view(handle)
            self._opened[handle.serial] = (handle, reference)

    def tell(self) -> list[bytes]:
        """What the coordinator is to know before the answers: nothing, mostly.

        Ask when nothing but the stage can have views of the batch any more.
        """
        if not self._opened and not self._kept:
            return []
        kept = self._alive()
        if kept and not self._has_kept:
            # What waits for the cycle collector is no view that is kept.
            kept = self._collect()
        ended = [serial for serial, (_, reference) in self._kept.items() if reference() is None]
        for serial in ended:
            del self._kept[serial]
        for serial in kept:
            self._kept[serial] = self._opened[serial]
        self._opened.clear()
        return [encode_slab_note(Kind.KEPT, pack(Kept(kept, ended)))] if kept or ended else []

    def _collect(self) -> list[int]:
        """Run the cycle collector, and say what is still kept of the batch in hand.

        Cycles of one batch are young, mostly: to look at those alone takes little.  To look at all objects may take as
        long as a batch, so it has a fiftieth of the time at most, and what it would free counts as kept until then.
        """
        gc.collect(YOUNG)
        kept = self._alive()
        began = time.monotonic()
        if kept and began >= self._collect_again:
            gc.collect()
            ended = time.monotonic()
            self._collect_again = ended + COLLECT_PAUSE * (ended - began)
            kept = self._alive()
            self._has_kept = bool(kept)
        return kept

    @property
    def keeps(self) -> bool:
        """Whether the stage keeps inputs of earlier batches, as far as was told."""
        return bool(self._kept)

    def _alive(self) -> list[int]:
        return [serial for serial, (_, reference) in self._opened.items() if reference() is not None]


class Results:
    """The part of a slab that this worker writes."""

    def __init__(self, descriptor: int, order: SlabOrder) -> None:
        self._number = order.results
        self._offset = order.part_offset
        self._memory = mmap.mmap(descriptor, order.part_bytes, offset=order.part_offset)
        self._view = memoryview(self._memory)
        self._allocator = SlabAllocator(order.part_bytes)
        self._places: dict[int, int] = {}
        """Where each result lies that may still be read, by its serial number."""
        self._serial = order.next_serial
        for offset, nbytes, serial in order.held:
            self._allocator.take_at(offset - self._offset, nbytes)
            self._places[serial] = offset - self._offset

    def put(self, payload: Payload, nbytes: int) -> Handle | None:
        """Copy `payload`, which has `nbytes`; None where there is no room."""
        at = self._allocator.take(nbytes)
        if at is None:
            return None
        write_payload(payload, self._view[at : at + nbytes])
        serial = self._serial
        self._serial += 1
        self._places[serial] = at
        return Handle(self._number, self._offset + at, nbytes, serial)

    def release(self, serials: Sequence[int]) -> None:
        """Write over these from now on; ProtocolError for one that is no result of this worker's, or was released."""
        now = time.monotonic()
        for serial in serials:
            at = self._places.pop(serial, None)
            if at is None:
                raise ProtocolError(f"result {serial} was released twice or does not exist")
            self._allocator.give_back(at, now)

    def trim(self, runs: Sequence[tuple[int, int]]) -> None:
        """Give the pages of `runs` back to the system, but those of runs that were written to meanwhile."""
        for offset, nbytes in runs:
            if self._allocator.is_free(offset - self._offset, nbytes):
                give_back_pages(self._memory, offset - self._offset, nbytes)


class WorkerSlabs:
    """The slabs of one worker, or none of them."""

    def __init__(self, inputs: Inputs | None = None, results: Results | None = None) -> None:
        self._inputs = inputs
        self._results = results

    @classmethod
    def of(cls, order: SlabOrder | None, inputs: int, results: int) -> WorkerSlabs:
        """Those of `order`, by the descriptors that the worker inherited; it closes them."""
        if order is None:
            return cls()
        reads = writes = None
        if order.inputs >= 0:
            reads = Inputs(ReadableSlab(inputs, order.input_bytes), order.inputs, order.input_bytes)
        if order.results >= 0:
            writes = Results(results, order)
        for inherited in (inputs, results):  # also that of a slab in which it has no part
            if inherited >= 0:
                os.close(inherited)
        return cls(reads, writes)

    def open(self, frame: Frame) -> None:
        """Put views in place of the handles of a BATCH; ProtocolError where one cannot be."""
        if self._inputs is not None:
            self._inputs.open(frame)
        elif frame.handles:
            raise ProtocolError("a batch refers to memory that this worker does not have")

    @property
    def put(self) -> Callable[[Payload, int], Handle | None] | None:
        """Puts a result of so many bytes into the worker's part; None where it has none."""
        return None if self._results is None else self._results.put

    def note(self, frame: Frame) -> bool:
        """Act on what `frame` says of the worker's memory; False where it says nothing that can be."""
        results = self._results
        if frame.kind is Kind.RELEASED and results is not None:
            results.release(unpack(frame.payloads[0], Released).serials)
        elif frame.kind is Kind.TRIM:
            trim = unpack(frame.payloads[0], Trim)
            if trim.runs and results is None:
                return False
            if results is not None:
                results.trim(trim.runs)
            if trim.heap:
                gc.collect()  # views that wait for it in an idle worker would wait for ever
                trim_heap()
        else:
            return False
        return True

    @property
    def keeps(self) -> bool:
        """Whether the stage keeps inputs of earlier batches, as far as was told."""
        return self._inputs is not None and self._inputs.keeps

    def tell(self) -> list[bytes]:
        """What goes before the answers to a batch: frames that say which inputs the stage keeps."""
        return [] if self._inputs is None else self._inputs.tell()
