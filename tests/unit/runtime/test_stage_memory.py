"""Which inputs of a stage are named, and what is counted as left out."""

from __future__ import annotations

import math

import pytest

from penstock.core.dispatch import FrameHolder, SentFrame
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.payload import Handle, handle_of
from penstock.runtime.slabs import ServiceSlabs, StageSlabs
from penstock.runtime.stage_memory import StageMemory
from penstock.transport.framing import Frame, Kind, Status

PAGE = 4096
SLAB = 16 * PAGE


@pytest.fixture
def slabs():
    made = ServiceSlabs.make([1, 1], SLAB, PAGE, lambda: 0.0)
    yield made
    made.close()


def sent(*payloads):
    request = Request(payloads, 1, 1, math.inf, lambda _: None, Lane.SINGLE)
    items = [Item(i, payload, len(payload), request, i) for i, payload in enumerate(payloads)]
    return SentFrame(1, items, FrameHolder())


def test_only_what_lies_in_the_slab_that_the_worker_reads_is_named(slabs):
    reasons = {}
    first, second = [StageMemory(stage, reasons) for stage in slabs.stages]
    arrived = slabs.arrivals.lease(PAGE)
    part = slabs.stages[0].parts[0]
    given = part.read(Handle(part.slab.number, part.offset, PAGE, 1))
    batch = sent(b"x" * PAGE, arrived, given, arrived[1:])
    assert first.name_inputs(batch, 0) == {1: handle_of(arrived)}
    assert batch.views == [arrived]
    batch = sent(b"x" * PAGE, arrived, given)
    assert second.name_inputs(batch, 0) == {2: handle_of(given)}
    assert batch.views == [given]
    assert reasons == {}


def test_a_worker_without_a_slab_of_inputs_gets_all_of_them(slabs):
    memory = StageMemory(StageSlabs(None, slabs.stages[0].parts, PAGE), {})
    batch = sent(slabs.arrivals.lease(PAGE))
    assert memory.name_inputs(batch, SLAB) == {}
    assert not batch.views


def test_from_a_quarter_that_is_kept_on_nothing_is_named_and_the_large_ones_count(slabs):
    reasons = {}
    memory = StageMemory(slabs.stages[0], reasons)
    batch = sent(slabs.arrivals.lease(PAGE), b"small", slabs.arrivals.lease(PAGE))
    assert len(memory.name_inputs(batch, SLAB // 4)) == 2
    assert reasons == {}
    assert memory.name_inputs(batch, SLAB // 4 + 1) == {}
    assert reasons == {"kept": 2}


def test_all_that_is_large_of_a_waiting_stage_counts_as_that(slabs):
    reasons = {}
    memory = StageMemory(StageSlabs(None, [], PAGE), reasons)
    batch = sent(slabs.arrivals.lease(PAGE), b"small", b"x" * PAGE)
    assert memory.name_inputs(batch, 0) == {}
    assert not batch.views
    assert reasons == {"waiting": 2}
    frame = Frame(Kind.ANSWERS, 1, 0.0, 1)
    large = memoryview(bytes(PAGE))
    frame.payloads = [large, large[1:], large]
    frame.statuses = (Status.OK, Status.OK, Status.FAILED)
    memory.count_unplaced(frame)
    assert reasons == {"waiting": 3}


def test_large_results_that_were_sent_count_as_left_out(slabs):
    reasons = {}
    frame = Frame(Kind.ANSWERS, 1, 0.0, 1)
    large = memoryview(bytes(PAGE))
    frame.payloads = [large, large[1:], large, large]
    frame.statuses = (Status.OK, Status.OK, Status.FAILED, Status.OK)
    frame.handles = [(3, Handle(1, 0, PAGE, 1))]
    StageMemory(slabs.stages[0], reasons).count_unplaced(frame)
    assert reasons == {"full": 1}
