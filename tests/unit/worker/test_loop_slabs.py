"""A worker with shared memory, told frame by frame: what it names, what it says of its inputs, what it refuses."""

from __future__ import annotations

import errno
import gc
import math
import mmap
import os
import pickle
from typing import Any

import numpy as np
import pytest

from launches import launch_of
from penstock.codec import pickle_
from penstock.codec.formats import Codec
from penstock.core.payload import Handle, join_payload
from penstock.errors import ProtocolError
from penstock.transport.framing import FrameDecoder, Kind, Status, encode_batch, encode_control, encode_slab_note
from penstock.transport.messages import Kept, Released, SlabOrder, Trim, pack, unpack
from penstock.transport.slab import Slab
from penstock.transport.slab_pieces import Pieces
from penstock.worker.loop import work
from penstock.worker.stage import Stage

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

PAGE = 4096
SIZE = 64 * PAGE
LEAST = 4 * PAGE
HALF = SIZE // 2


class Coordinator:
    """The other end of one worker, which says what a test has written down."""

    def __init__(self) -> None:
        self.inputs = Slab.make(1, SIZE)
        self.results = Slab.make(2, SIZE)
        self.frames: list[Any] = []
        self.sent: list[Any] = []
        self._pieces = Pieces(self.inputs.memory)
        self._decoder = FrameDecoder(readonly=True, slabs=True)

    def close(self):
        self.inputs.close()
        self.results.close()

    # -- what a worker asks of its end

    def receive(self):
        return self.frames.pop(0)() if self.frames else None

    def send(self, buffers):
        self.sent += FrameDecoder(slabs=True).feed(b"".join(buffers))

    # -- what a test has it say

    def say(self, wire):
        """Say this, in its turn: it is decoded only then, as nobody else may hold its views."""
        self.frames.append(lambda: self._decoder.feed(wire if isinstance(wire, bytes) else b"".join(wire))[0])

    def launch(self, **slabs):
        fields = {
            "inputs": 1, "input_bytes": SIZE, "results": 2, "part_offset": HALF, "part_bytes": HALF, "held": [],
            "next_serial": 1, "least": LEAST,
        }  # fmt: skip
        order = launch_of(count=2, sys_path=[], batched=True, max_size=8, slabs=SlabOrder(**{**fields, **slabs}))
        self.say(encode_control(Kind.LAUNCH, pack(order)))

    def batch(self, frame_id, *items, codec_in=Codec.RAW, codec_out=Codec.RAW, handles=None):
        """Items that are (page, bytes) lie in the slab of inputs, with the page as their serial number."""
        payloads, named = [], {}
        for place, item in enumerate(items):
            if isinstance(item, tuple):
                page, data = item
                named[place] = Handle(1, page * PAGE, len(data), page)
                self._pieces.view(named[place])[:] = data
                payloads.append(b"")
            else:
                payloads.append(item)
        n = len(items)
        lengths = list(map(len, payloads))
        rows = (range(n), payloads, lengths, [math.inf] * n, [codec_in] * n, [codec_out] * n)
        self.say(encode_batch(frame_id, 0.0, *rows, b"", handles or named))

    def note(self, kind, message):
        self.say(encode_slab_note(kind, pack(message)))

    def work(self, target):
        """Have a worker do all that was said; returns what it said after READY."""
        descriptors = (os.dup(self.inputs.readable), os.dup(self.results.descriptor))
        work(self, target=target, slab_descriptors=descriptors)
        ready = [frame.kind for frame in self.sent].index(Kind.READY)
        return self.sent[ready + 1 :]

    def result(self, frame, place):
        """A result, wherever it lies."""
        named = dict(frame.handles)
        if place not in named:
            return bytes(frame.payloads[place])
        handle = named[place]
        assert handle.slab == 2
        assert HALF <= handle.offset <= SIZE - handle.nbytes
        return self.results.memory[handle.offset : handle.offset + handle.nbytes]


@pytest.fixture
def coordinator():
    made = Coordinator()
    yield made
    made.close()


def kept(frames):
    """Those that were told to be kept, and to be kept no more, before each answer."""
    notes, found = [], ([], [])
    for frame in frames:
        if frame.kind is Kind.KEPT:
            note = unpack(frame.payloads[0], Kept)
            found = (sorted(note.kept), sorted(note.ended))
        else:
            assert frame.kind is Kind.ANSWERS
            notes.append(found)
            found = ([], [])
    return notes


class Echo(Stage):
    def predict(self, xs: list[memoryview]) -> list[memoryview]:
        return xs


class Heads(Stage):
    """The first 12 KB of each: too small to lie in a slab, and together too much for one buffer."""

    def predict(self, xs: list[memoryview]) -> list[memoryview]:
        return [x[:12_288] for x in xs]


class Keeps(Stage):
    """Keeps each item that begins with `k`, and drops all with one that begins with `d`."""

    kept: list = []

    def predict(self, xs: list[memoryview]) -> list[bytes]:
        for x in xs:
            if x[0] == ord("k"):
                self.kept.append(x[1:3])
            elif x[0] == ord("d"):
                self.kept.clear()
        return [b"done"] * len(xs)


@pytest.fixture(autouse=True)
def nothing_kept():
    Keeps.kept = []


def test_large_results_are_named_small_ones_are_sent(coordinator):
    items = [(0, b"a" * LEAST), b"small", (8, b"c" * (LEAST + 1)), b"i" * LEAST]
    coordinator.launch()
    coordinator.batch(7, *items)
    (frame,) = coordinator.work(Echo)
    assert [place for place, _ in frame.handles] == [0, 2, 3]
    assert [coordinator.result(frame, place) for place in range(4)] == [
        b"a" * LEAST, b"small", b"c" * (LEAST + 1), b"i" * LEAST,
    ]  # fmt: skip
    assert [handle.serial for _, handle in frame.handles] == [1, 2, 3]
    assert coordinator.results.memory[:HALF] == bytes(HALF)


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.NPY, Codec.JSON, Codec.MSGPACK, Codec.PICKLE])
def test_a_result_of_any_format_may_lie_in_a_slab(coordinator, codec):
    value = {
        Codec.RAW: b"r" * LEAST, Codec.NPY: np.arange(LEAST, dtype=np.uint16)[::2], Codec.JSON: "j" * LEAST,
        Codec.MSGPACK: ["m" * LEAST, 1], Codec.PICKLE: [np.arange(PAGE), b"p" * PAGE],
    }[codec]  # fmt: skip

    def give(xs: list) -> list:
        return [value] * len(xs)

    coordinator.launch()
    coordinator.batch(7, pickle.dumps(1), pickle.dumps(2), codec_in=Codec.PICKLE, codec_out=codec)
    (frame,) = coordinator.work(give)
    assert len(frame.handles) == 2
    first, second = coordinator.result(frame, 0), coordinator.result(frame, 1)
    assert first == second
    if codec is Codec.PICKLE:
        again = pickle_.loads(first)
        assert np.array_equal(again[0], value[0])
        assert again[1] == value[1]
    elif codec is Codec.RAW:
        assert first == value
    else:
        assert first == bytes(join_payload(encoded(codec, value)))


def encoded(codec, value):
    from penstock.codec.encode import ItemEncoder

    return ItemEncoder(Any).encode(codec, value)


def test_failures_are_sent_however_large_they_are(coordinator):
    def fail(xs: list) -> list:
        return [ValueError("x" * 5000), b"r" * LEAST, ValueError("y" * 5000)]

    coordinator.launch(least=PAGE)
    coordinator.batch(7, b"1", b"2", b"3")
    (frame,) = coordinator.work(fail)
    assert frame.statuses == (Status.FAILED, Status.OK, Status.FAILED)
    assert [place for place, _ in frame.handles] == [1]
    assert len(frame.payloads[0]) > PAGE


def test_what_finds_no_room_in_the_part_is_sent_until_the_coordinator_has_let_go(coordinator):
    size = HALF // 2
    coordinator.launch()
    for frame_id, mark in enumerate(b"abcd"):
        coordinator.batch(frame_id, bytes([mark]) * size)
        if frame_id == 2:
            coordinator.note(Kind.RELEASED, Released([1]))
    frames = coordinator.work(Echo)
    assert [len(frame.handles) for frame in frames] == [1, 1, 0, 1]
    assert frames[3].handles[0][1].offset == frames[0].handles[0][1].offset
    assert [coordinator.result(frames[i], 0)[:1] for i in (1, 2, 3)] == [b"b", b"c", b"d"]


def test_pages_are_given_back_when_the_coordinator_says_so(coordinator):
    coordinator.launch()
    coordinator.batch(1, b"a" * LEAST)
    coordinator.note(Kind.RELEASED, Released([1]))
    coordinator.note(Kind.TRIM, Trim([(HALF, LEAST)]))
    coordinator.work(Echo)
    assert os.fstat(coordinator.results.descriptor).st_blocks == 0


def test_a_worker_goes_on_where_the_system_takes_no_pages_back(coordinator, monkeypatch):
    refused = []

    def refuse(memory, option, start, length):
        refused.append((option, start, length))
        raise OSError(errno.EINVAL, "Invalid argument")

    class Map(mmap.mmap):
        madvise = refuse

    monkeypatch.setattr(mmap, "mmap", Map)
    coordinator.launch()
    coordinator.batch(1, b"a" * LEAST)
    coordinator.note(Kind.RELEASED, Released([1]))
    coordinator.note(Kind.TRIM, Trim([(HALF, LEAST)]))
    coordinator.batch(2, b"b" * LEAST)
    assert [coordinator.result(frame, 0) for frame in coordinator.work(Echo)][1] == b"b" * LEAST
    assert refused == [(mmap.MADV_REMOVE, 0, LEAST)]


def test_a_stage_that_keeps_nothing_says_nothing(coordinator):
    coordinator.launch()
    for frame_id in range(3):
        coordinator.batch(frame_id, (0, b"x" * LEAST), b"small")
    assert kept(coordinator.work(Keeps)) == [([], [])] * 3


def test_what_a_stage_keeps_is_said_before_the_answer_and_its_end_before_a_later_one(coordinator):
    coordinator.launch()
    coordinator.batch(1, (8, b"k1" * LEAST), (24, b"x" * LEAST))
    coordinator.batch(2, b"in between")
    coordinator.batch(3, (32, b"k2" * LEAST))
    coordinator.batch(4, b"drop")
    coordinator.batch(5, (1, b"x" * LEAST))
    frames = coordinator.work(Keeps)
    assert kept(frames) == [([8], []), ([], []), ([32], []), ([], [8, 32]), ([], [])]


def test_an_idle_worker_says_what_its_stage_keeps_no_more_when_it_is_asked(coordinator):
    mine = []

    class Keeps(Stage):
        def predict(self, xs: list[memoryview]) -> list[bytes]:
            mine.append(xs[0][:1])
            return [b""]

    coordinator.launch(part_bytes=0, results=-1)
    coordinator.batch(1, (0, b"a" * LEAST))
    coordinator.note(Kind.TRIM, Trim([]))
    coordinator.frames.append(lambda: mine.clear() or coordinator.frames.pop(0)())
    coordinator.note(Kind.TRIM, Trim([]))
    coordinator.note(Kind.TRIM, Trim([]))
    frames = coordinator.work(Keeps)
    assert [frame.kind for frame in frames] == [Kind.KEPT, Kind.ANSWERS, Kind.KEPT]
    assert unpack(frames[2].payloads[0], Kept) == Kept([], [0])


def test_what_waits_for_the_cycle_collector_in_an_idle_worker_is_freed_with_its_heap(coordinator):
    class Cycles(Stage):
        def predict(self, xs: list[memoryview]) -> list[bytes]:
            self.first = getattr(self, "first", None) or xs[0]
            cycle = [xs[0]]
            cycle.append(cycle)
            return [b""]

    coordinator.launch(part_bytes=0, results=-1)
    coordinator.batch(1, (0, b"a" * LEAST))  # kept: from now on the collector is left alone
    coordinator.batch(2, (8, b"b" * LEAST))
    coordinator.note(Kind.TRIM, Trim([], heap=True))
    gc.disable()
    try:
        frames = coordinator.work(Cycles)
    finally:
        gc.enable()
    assert kept(frames[:-1]) == [([0], []), ([8], [])]
    assert unpack(frames[-1].payloads[0], Kept) == Kept([], [8])


def test_shared_memory_that_cannot_be_mapped_is_told_as_a_failure(coordinator):
    coordinator.launch(part_offset=1)
    descriptors = (os.dup(coordinator.inputs.readable), os.dup(coordinator.results.descriptor))
    work(coordinator, target=Stage, slab_descriptors=descriptors)
    assert [frame.kind for frame in coordinator.sent] == [Kind.HELLO, Kind.FAILED]
    os.close(descriptors[0])
    os.close(descriptors[1])


@pytest.mark.parametrize("n", [8, 1], ids=["in buffers of their own", "in one buffer"])
def test_results_that_are_views_of_the_inputs_are_not_kept_by_the_stage(coordinator, n):
    coordinator.launch()
    for frame_id in range(2):
        coordinator.batch(frame_id, *[(8 * i, bytes([65 + i]) * LEAST) for i in range(n)])
    frames = coordinator.work(Heads)
    assert kept(frames) == [([], [])] * 2
    assert [bytes(payload) for payload in frames[1].payloads] == [bytes([65 + i]) * 12_288 for i in range(n)]


@pytest.mark.parametrize("part", [0, HALF])
def test_inputs_that_are_given_back_as_they_are_are_not_kept_by_the_stage(coordinator, part):
    """Also where there is no room for them."""
    size = HALF // 2 + 1
    coordinator.launch(part_bytes=part, results=2 if part else -1)
    coordinator.batch(1, (0, b"a" * size), b"b")
    coordinator.batch(2, (32, b"c" * size), b"d")
    frames = coordinator.work(Echo)
    assert kept(frames) == [([], [])] * 2
    assert [bool(frame.handles) for frame in frames] == [part > 0, False]
    assert [coordinator.result(frame, 0) for frame in frames] == [b"a" * size, b"c" * size]


def test_a_stage_that_fails_keeps_nothing(coordinator):
    class Fails(Stage):
        def predict(self, xs: list[memoryview]) -> list[bytes]:
            mine = xs[0][1:]
            raise ValueError(f"no {mine[0]}")

    coordinator.launch()
    for frame_id in range(2):
        coordinator.batch(frame_id, (0, b"x" * LEAST), (8, b"y" * LEAST))
    gc.disable()
    try:
        frames = coordinator.work(Fails)
    finally:
        gc.enable()
    assert kept(frames) == [([], [])] * 2


def test_items_are_decoded_again_from_their_pieces_when_a_batch_is_bisected(coordinator):
    class Picky(Stage):
        def predict(self, xs: list[np.ndarray]) -> list[np.ndarray]:
            if any(x[0] == 3 for x in xs):
                raise ValueError("a three")
            return [x + 1 for x in xs]

    arrays = [np.full(LEAST, i, np.uint8) for i in range(6)]
    coordinator.launch()
    npy = [bytes(join_payload(encoded(Codec.NPY, a))) for a in arrays]
    coordinator.batch(1, *[(8 * i, data) for i, data in enumerate(npy)], codec_in=Codec.NPY, codec_out=Codec.NPY)
    (frame,) = coordinator.work(Picky)
    assert [status == Status.FAILED for status in frame.statuses] == [i == 3 for i in range(6)]
    for i in (0, 1, 2, 4, 5):
        assert coordinator.result(frame, i) == bytes(join_payload(encoded(Codec.NPY, arrays[i] + 1)))


@pytest.mark.parametrize(("kind", "is_view"), [(memoryview, True), (bytes, False), (bytearray, False)])
def test_a_view_cannot_be_written_to_and_any_other_bytes_are_a_copy(coordinator, kind, is_view):
    seen = []

    class Looks(Stage):
        def predict(self, xs: list[kind]) -> list[bytes]:
            seen.append(type(xs[0]))
            if is_view:
                assert xs[0].readonly
            self.kept = xs
            return [b""]

    Looks.predict.__annotations__["xs"] = list[kind]
    coordinator.launch()
    coordinator.batch(1, (1, b"x" * LEAST))
    assert kept(coordinator.work(Looks)) == [([1] if is_view else [], [])]
    assert seen == [kind]


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_worker_ends_where_a_batch_names_what_it_cannot_read(coordinator):
    coordinator.launch()
    coordinator.batch(1, b"", handles={0: Handle(2, 0, LEAST, 1)})
    with pytest.raises(ProtocolError, match="a batch refers to"):
        coordinator.work(Echo)


@pytest.mark.parametrize(("kind", "message"), [(Kind.RELEASED, Released([1])), (Kind.TRIM, Trim([(0, PAGE)]))])
def test_a_worker_without_a_part_is_told_of_no_results(coordinator, kind, message):
    coordinator.launch(results=-1)
    coordinator.note(kind, message)
    with pytest.raises(ProtocolError, match=f"expected a BATCH frame, got {kind.name}"):
        coordinator.work(Echo)


def test_a_worker_is_not_told_what_workers_tell(coordinator):
    coordinator.launch()
    coordinator.note(Kind.KEPT, Kept([], []))
    with pytest.raises(ProtocolError, match="expected a BATCH frame, got KEPT"):
        coordinator.work(Echo)
