"""Shared memory as a worker has it: inputs that a stage may keep, and the part that its results are written to."""

from __future__ import annotations

import gc
import os
import time

import numpy as np
import pytest
from processes import open_files

from penstock.core.payload import Handle
from penstock.errors import ProtocolError
from penstock.transport.framing import Frame, FrameDecoder, Kind, encode_control, encode_slab_note
from penstock.transport.messages import Kept, Released, SlabOrder, Trim, pack, unpack
from penstock.transport.slab import ReadableSlab, Slab
from penstock.transport.slab_pieces import Pieces
from penstock.worker.worker_slabs import Inputs, Results, WorkerSlabs

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

PAGE = 4096
SIZE = 16 * PAGE
MOST = (1 << 64) - 1


@pytest.fixture
def slab():
    made = Slab.make(7, SIZE)
    yield made
    made.close()


def handle(page=0, nbytes=PAGE, serial=1, number=7):
    return Handle(number, page * PAGE, nbytes, serial)


def batch(*handles):
    """A BATCH as it was read: its payloads are those that `handles` name, or the bytes among them."""
    frame = Frame(Kind.BATCH, 1, 0.0, 0)
    for place, what in enumerate(handles):
        named = isinstance(what, Handle)
        frame.payloads.append(memoryview(b"" if named else what))
        if named:
            frame.handles.append((place, what))
    return frame


def told(notes):
    """What a worker says of its inputs: those that it keeps, and those that it keeps no more; None for nothing."""
    if not notes:
        return None
    (note,) = notes
    (frame,) = FrameDecoder(slabs=True).feed(note)
    assert frame.kind is Kind.KEPT
    kept = unpack(frame.payloads[0], Kept)
    return sorted(kept.kept), sorted(kept.ended)


# -- inputs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def inputs(slab):
    return Inputs(ReadableSlab(slab.readable, SIZE), 7, SIZE)


def write(slab, page, data):
    Pieces(slab.memory).view(Handle(7, page * PAGE, len(data), 1))[:] = data


def test_an_input_is_read_where_it_lies_and_cannot_be_written_to(inputs, slab):
    write(slab, 3, b"there")
    frame = batch(b"sent", handle(3, 5, 1), handle(5, PAGE + 1, 2))
    inputs.open(frame)
    assert [payload.nbytes for payload in frame.payloads] == [4, 5, PAGE + 1]
    assert bytes(frame.payloads[1]) == b"there"
    assert frame.payloads[1].readonly
    assert frame.payloads[2].readonly


def test_of_a_batch_that_names_nothing_nothing_is_told(inputs):
    inputs.open(batch(b"sent"))
    assert inputs.tell() == []
    assert not inputs.keeps


def view(payload):
    return payload


def slice_(payload):
    return payload[2:3]


def array(payload):
    return np.frombuffer(payload, np.uint8)


def row(payload):
    return np.frombuffer(payload, np.uint8)[:4].reshape(2, 2)[1]


def view_of_array(payload):
    return memoryview(np.frombuffer(payload, np.uint8))[1:]


@pytest.mark.parametrize("make", [view, slice_, array, row, view_of_array])
def test_what_a_stage_keeps_is_told_once_and_so_is_its_end(inputs, make):
    frame = batch(handle(0, 100, 41), handle(1, 100, 42))
    inputs.open(frame)
    kept = make(frame.payloads[1])
    del frame
    assert told(inputs.tell()) == ([42], [])
    assert inputs.keeps
    assert inputs.tell() == []
    later = batch(handle(2, 100, 43))
    inputs.open(later)
    del later
    assert inputs.tell() == [], "it is kept as before"
    del kept
    assert inputs.keeps, "the coordinator was not told yet"
    assert told(inputs.tell()) == ([], [42])
    assert not inputs.keeps
    assert inputs.tell() == []


def test_a_view_that_was_released_keeps_what_its_slices_do(inputs):
    frame = batch(handle(0, 100, 41))
    inputs.open(frame)
    kept = frame.payloads[0][5:6]
    frame.payloads[0].release()
    del frame
    assert told(inputs.tell()) == ([41], [])
    del kept
    assert told(inputs.tell()) == ([], [41])


def test_one_note_tells_of_ends_and_of_what_is_kept_now(inputs):
    kept = {}
    for serial in (1, 2, 3):
        frame = batch(handle(serial, 100, serial))
        inputs.open(frame)
        kept[serial] = frame.payloads[0]
        if serial == 3:
            del kept[1]
        del frame
        notes = told(inputs.tell())
    assert notes == ([3], [1])
    kept.clear()
    assert told(inputs.tell()) == ([], [2, 3])


@pytest.mark.parametrize("old", [False, True])
def test_what_waits_for_the_cycle_collector_is_not_kept(inputs, monkeypatch, old):
    frame = batch(handle(0, 100, 1))
    inputs.open(frame)
    cycle = [frame.payloads[0]]
    cycle.append(cycle)
    if old:
        gc.collect()
    generations, collect = [], gc.collect
    monkeypatch.setattr(gc, "collect", lambda generation=2: (generations.append(generation), collect(generation)))
    del cycle, frame
    assert inputs.tell() == []
    assert not inputs.keeps
    assert generations == ([1, 2] if old else [1]), "all objects are looked at only where the young ones are not enough"


def test_once_something_was_kept_the_cycle_collector_is_left_alone(inputs, monkeypatch):
    collected = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation))
    kept = []
    for serial in (1, 2, 3):
        frame = batch(handle(serial, 100, serial))
        inputs.open(frame)
        kept.append(frame.payloads[0])
        del frame
        inputs.tell()
    assert collected == [1, 2]


def test_the_cycle_collector_looks_at_all_objects_for_a_fiftieth_of_the_time(inputs, monkeypatch):
    now, collected, collect = [100.0], [], gc.collect

    def collects(generation=2):
        collected.append(generation)
        if generation == 2:
            now[0] += 1.0
            collect()

    said = []
    gc.disable()
    try:
        with monkeypatch.context() as patched:  # the clock of all others too, pytest's among them, and so soon put back
            patched.setattr(gc, "collect", collects)
            patched.setattr(time, "monotonic", lambda: now[0])
            for serial, at in ((1, 100.0), (2, 150.9), (3, 151.0), (4, 151.0)):
                now[0] = at
                frame = batch(handle(serial, 100, serial))
                inputs.open(frame)
                cycle = [frame.payloads[0]]
                cycle.append(cycle)
                del cycle, frame
                said.append(told(inputs.tell()))
    finally:
        gc.enable()
    assert collected == [1, 2, 1, 1, 2, 1]
    assert said == [None, ([2], []), ([], [2]), ([4], [])], "what could be freed counts as kept meanwhile"


@pytest.mark.parametrize(
    "forged",
    [
        handle(number=8),
        handle(number=0),
        handle(number=MOST),
        handle(nbytes=0),
        handle(page=16),
        handle(page=15, nbytes=PAGE + 1),
        handle(nbytes=SIZE + 1),
        handle(nbytes=(1 << 63) - 1),
        Handle(7, MOST, PAGE, 1),
        Handle(7, MOST, 1, 1),
    ],
    ids=[
        "of another slab", "of slab 0", "of a slab far away", "nothing", "behind the slab", "over its end", "too large",
        "huge", "far away", "at the largest number",
    ],
)  # fmt: skip
def test_what_no_coordinator_names_is_refused(inputs, forged):
    with pytest.raises(ProtocolError, match="a batch refers to"):
        inputs.open(batch(forged))


@pytest.mark.parametrize(("page", "nbytes"), [(4, 1), (4, 2 * PAGE), (5, PAGE), (3, PAGE + 1), (5, 1), (0, SIZE)])
def test_nothing_is_named_over_what_is_kept(inputs, page, nbytes):
    frame = batch(handle(4, PAGE + 1, 1))
    inputs.open(frame)
    kept = frame.payloads[0]
    del frame
    inputs.tell()
    with pytest.raises(ProtocolError, match="a batch refers to memory of which the stage still has a view"):
        inputs.open(batch(handle(page, nbytes, 2)))
    for beside in (handle(3, PAGE, 3), handle(6, PAGE, 4)):
        inputs.open(batch(beside))
    del kept


# -- results ----------------------------------------------------------------------------------------------------------


def order(**changed):
    """The second half of slab 7, of which nothing is held."""
    fields = {
        "inputs": -1, "input_bytes": 0, "results": 7, "part_offset": 8 * PAGE, "part_bytes": 8 * PAGE, "held": [],
        "next_serial": 1, "least": PAGE,
    }  # fmt: skip
    return SlabOrder(**{**fields, **changed})


@pytest.fixture
def results(slab):
    return Results(slab.descriptor, order())


def numbers(placed):
    return (placed.slab, placed.offset, placed.nbytes, placed.serial)


def test_a_result_is_copied_to_the_lowest_place_of_the_part_and_numbered(results, slab):
    assert numbers(results.put(b"x" * 5000, 5000)) == (7, 8 * PAGE, 5000, 1)
    assert numbers(results.put([b"ab", bytearray(b"cd"), memoryview(b"e")], 5)) == (7, 10 * PAGE, 5, 2)
    assert slab.memory[: 8 * PAGE] == bytes(8 * PAGE)
    assert slab.memory[8 * PAGE : 8 * PAGE + 5001] == b"x" * 5000 + b"\0"
    assert slab.memory[10 * PAGE : 10 * PAGE + 6] == b"abcde\0"


def test_where_there_is_no_room_nothing_is_put_until_something_is_released(results):
    assert results.put(bytes(8 * PAGE + 1), 8 * PAGE + 1) is None
    first = results.put(b"1" * 5 * PAGE, 5 * PAGE)
    assert results.put(b"2" * 4 * PAGE, 4 * PAGE) is None
    assert results.put(b"3" * 3 * PAGE, 3 * PAGE).serial == 2, "what found no room has no number"
    results.release([first.serial])
    assert numbers(results.put(b"2" * 4 * PAGE, 4 * PAGE)) == (7, 8 * PAGE, 4 * PAGE, 3)


@pytest.mark.parametrize("serials", [[1, 1], [2], [0], [-1], [MOST]])
def test_what_is_no_result_cannot_be_released_and_what_was_cannot_be_again(results, serials):
    results.put(b"x", 1)
    with pytest.raises(ProtocolError, match="was released twice or does not exist"):
        results.release(serials)


def test_a_successor_writes_around_what_is_held_and_releases_it_when_told(slab):
    write(slab, 8, b"a" * PAGE)
    write(slab, 10, b"b" * 5)
    results = Results(slab.descriptor, order(held=[(8 * PAGE, PAGE, 4), (10 * PAGE, 5, 6)], next_serial=7))
    placed = [results.put(bytes([i]) * PAGE, PAGE) for i in range(6)]
    assert [(p.offset // PAGE, p.serial) for p in placed] == [(9, 7), (11, 8), (12, 9), (13, 10), (14, 11), (15, 12)]
    assert results.put(b"x", 1) is None
    assert slab.memory[8 * PAGE : 9 * PAGE] == b"a" * PAGE
    assert slab.memory[10 * PAGE : 10 * PAGE + 5] == b"b" * 5
    results.release([6])
    assert numbers(results.put(b"x", 1)) == (7, 10 * PAGE, 1, 13)


def test_a_part_that_is_wholly_held_takes_nothing(slab):
    results = Results(slab.descriptor, order(held=[(8 * PAGE, 8 * PAGE, 1)], next_serial=2))
    assert results.put(b"x", 1) is None


def blocks(slab):
    return os.fstat(slab.descriptor).st_blocks * 512


def test_idle_pages_are_given_back_but_for_those_that_were_written_to_meanwhile(results, slab):
    first = results.put(b"1" * 2 * PAGE, 2 * PAGE)
    second = results.put(b"2" * 2 * PAGE, 2 * PAGE)
    results.release([first.serial, second.serial])
    results.put(b"3", 1)
    results.trim([(8 * PAGE, 2 * PAGE), (10 * PAGE, 2 * PAGE)])
    assert blocks(slab) == 2 * PAGE
    assert slab.memory[8 * PAGE : 8 * PAGE + 2] == b"31", "the first run is in use again, so that it stays whole"
    assert slab.memory[10 * PAGE : 12 * PAGE] == bytes(2 * PAGE)


@pytest.mark.parametrize(
    "run", [(0, PAGE), (8 * PAGE, 9 * PAGE), (16 * PAGE, PAGE), (8 * PAGE + 1, PAGE), (-PAGE, PAGE)]
)
def test_a_range_that_is_none_of_the_part_is_left_alone(results, slab, run):
    write(slab, 0, b"x" * SIZE)
    results.trim([run])
    assert slab.memory[:SIZE] == b"x" * SIZE


# -- both of them, or none --------------------------------------------------------------------------------------------


def duplicates(slab):
    return os.dup(slab.readable), os.dup(slab.descriptor)


@pytest.mark.parametrize("inputs", [7, -1])
@pytest.mark.parametrize("results", [7, -1])
def test_a_worker_has_those_of_its_order_and_closes_what_it_inherited(slab, inputs, results):
    before = open_files()
    slabs = WorkerSlabs.of(order(inputs=inputs, input_bytes=SIZE, results=results), *duplicates(slab))
    assert len(open_files() - before) == (results >= 0), "a map of Python's has one of its own"
    if inputs >= 0:
        slabs.open(batch(handle()))
    else:
        with pytest.raises(ProtocolError, match="a batch refers to memory that this worker does not have"):
            slabs.open(batch(handle()))
    assert (slabs.put is None) == (results < 0)
    (released,) = FrameDecoder(slabs=True).feed(encode_slab_note(Kind.RELEASED, pack(Released([]))))
    assert slabs.note(released) == (results >= 0)


@pytest.mark.parametrize("sent", [order(inputs=-1, results=-1), None])
def test_a_worker_may_have_none(sent):
    slabs = WorkerSlabs.of(sent, -1, -1)
    slabs.open(batch(b"sent"))
    with pytest.raises(ProtocolError, match="a batch refers to memory that this worker does not have"):
        slabs.open(batch(b"sent", handle()))
    assert slabs.put is None
    assert slabs.tell() == []
    assert not slabs.keeps
    for kind, message in ((Kind.RELEASED, Released([])), (Kind.TRIM, Trim([(0, PAGE)]))):
        (frame,) = FrameDecoder(slabs=True).feed(encode_slab_note(kind, pack(message)))
        assert not slabs.note(frame)
    (frame,) = FrameDecoder(slabs=True).feed(encode_slab_note(Kind.TRIM, pack(Trim([], heap=True))))
    assert slabs.note(frame), "it has a heap all the same"


def test_what_a_worker_cannot_read_of_its_results_is_refused_and_any_other_frame_is_left_alone(slab):
    slabs = WorkerSlabs.of(order(inputs=7, input_bytes=SIZE), *duplicates(slab))
    for kind in (Kind.RELEASED, Kind.TRIM):
        (frame,) = FrameDecoder(slabs=True).feed(encode_slab_note(kind, b"\xff"))
        with pytest.raises(ProtocolError, match="not a"):
            slabs.note(frame)
    (frame,) = FrameDecoder().feed(b"".join(encode_control(Kind.CHECK, b"")))
    assert not slabs.note(frame)
