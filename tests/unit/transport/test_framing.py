"""Frames on the wire: whole, in pieces, broken, and no larger in memory than what came."""

from __future__ import annotations

import struct
import tracemalloc
from collections import deque
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from night import examples
from penstock.core.payload import ALIGNMENT, payload_size
from penstock.errors import ProtocolError
from penstock.transport.framing import (
    ALIGN_FROM_BYTES,
    FIRST_CLAIM_BYTES,
    JOIN_BELOW_BYTES,
    MAX_BODY_BYTES,
    SCRATCH_BYTES,
    SLAB_VERSION,
    VERSION,
    FrameDecoder,
    Kind,
    Status,
    encode_answers,
    encode_batch,
    encode_control,
    encode_device_memory,
    encode_recall,
    encode_shortage,
    encode_slab_note,
    queue_frames,
    read_device_memory,
    read_shortage,
    written_statuses,
)
from rows import each

HEADER = struct.Struct("<2sBBIIQdQ")


def batch(payloads, frame_id=7, sent=2.5, request_ids=b""):
    n = len(payloads)
    ids, lengths = list(range(100, 100 + n)), [payload_size(p) for p in payloads]
    remaining = [0.5 + i for i in range(n)]
    columns = (ids, payloads, lengths, remaining, [1] * n, [2] * n)
    return b"".join(encode_batch(frame_id, sent, *columns, request_ids))


def answers(payloads, statuses=None, frame_id=7):
    n = len(payloads)
    return b"".join(encode_answers(frame_id, 0.25, 3, list(range(n)), payloads, statuses or [Status.OK] * n))


def header(*, magic=b"PS", version=VERSION, kind=Kind.BATCH, n=0, frame_id=1, length=0):
    return HEADER.pack(magic, version, kind, n, 0, frame_id, 0.0, length)


def plain(frame):
    """Everything a frame says, to be compared."""
    fields = (frame.kind, frame.frame_id, frame.seconds, frame.calls, frame.ids)
    columns = (frame.remaining, frame.codecs_in, frame.codecs_out, frame.statuses, frame.request_ids())
    return (*fields, [bytes(payload) for payload in frame.payloads], *columns)


def decode(wire, **options):
    decoder = FrameDecoder(**options)
    frames = decoder.feed(wire)
    decoder.end()
    return frames


WIRES = {
    "a hello": b"".join(encode_control(Kind.HELLO, b"hello")),
    "a ready without payload": b"".join(encode_control(Kind.READY, b"")),
    "a batch of nothing": batch([]),
    "a batch of one": batch([b"one"]),
    "a batch with empty payloads": batch([b"", b"x", b""]),
    "a batch with a payload that is aligned": batch(
        [b"a", b"b" * ALIGN_FROM_BYTES, b"c", b"d" * (ALIGN_FROM_BYTES + 1)]
    ),
    "a batch with the ids of its requests": batch([b"x", b"y" * ALIGN_FROM_BYTES], request_ids=b"abc d:3+1"),
    "answers of nothing": answers([]),
    "answers of every status": answers([b"ok", b"bad", b"worse", b"", b""], list(Status)),
}
FRAMES = [plain(frame) for wire in WIRES.values() for frame in decode(wire)]


# -- what is written is what is read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("size", [1, ALIGN_FROM_BYTES, JOIN_BELOW_BYTES])
def test_the_statuses_of_answers_can_be_read_where_they_were_written(n, size):
    statuses = [Status.OK, Status.FAILED, Status.EXPIRED][:n]
    buffers = encode_answers(7, 0.25, 3, list(range(n)), [bytes(size)] * n, statuses)
    assert written_statuses(buffers) == tuple(statuses)
    assert written_statuses([b"".join(buffers)]) == tuple(statuses)


def test_another_frame_has_no_statuses():
    assert written_statuses(encode_control(Kind.READY, b"")) is None
    assert written_statuses([encode_shortage(4, 2)]) is None


def test_a_batch_is_read_as_it_was_written():
    (frame,) = decode(batch([b"one", b"", b"three"], frame_id=9, sent=1.25, request_ids=b"a b c"))
    assert plain(frame) == (
        Kind.BATCH, 9, 1.25, 0, (100, 101, 102), [b"one", b"", b"three"], (0.5, 1.5, 2.5), (1, 1, 1), (2, 2, 2), (),
        b"a b c",
    )  # fmt: skip


def test_answers_are_read_as_they_were_written():
    (frame,) = decode(answers([b"one", b""], [Status.OK, Status.EXPIRED], frame_id=9))
    statuses = (Status.OK, Status.EXPIRED)
    assert plain(frame) == (Kind.ANSWERS, 9, 0.25, 3, (0, 1), [b"one", b""], (), (), (), statuses, b"")


@pytest.mark.parametrize(
    "kind", [Kind.HELLO, Kind.LAUNCH, Kind.READY, Kind.FAILED, Kind.EXAMINE, Kind.EXAMINED, Kind.CHECK, Kind.CHECKED]
)
def test_a_frame_of_another_kind_carries_one_payload(kind):
    for frame_id in (0, 9):
        (frame,) = decode(b"".join(encode_control(kind, b"payload", frame_id)))
        assert plain(frame) == (kind, frame_id, 0.0, 0, (), [b"payload"], (), (), (), (), b"")


def test_the_layout_is_the_documented_one():
    columns = struct.pack("<2Q2Q2d2B2B", 100, 101, 3, 2, 0.5, 1.5, 1, 1, 2, 2)
    assert batch([b"one", b"xy"]) == HEADER.pack(b"PS", 4, 5, 2, 0, 7, 2.5, len(columns) + 5) + columns + b"onexy"
    named = columns + b"a b"
    assert batch([b"one", b"xy"], request_ids=b"a b") == (
        HEADER.pack(b"PS", 4, 5, 2, 3, 7, 2.5, len(named) + 5) + named + b"onexy"
    )
    columns = struct.pack("<1Q1Q1B", 0, 3, 2)
    assert answers([b"one"], [Status.FAILED]) == HEADER.pack(b"PS", 4, 6, 1, 3, 7, 0.25, 20) + columns + b"one"
    assert encode_control(Kind.HELLO, b"hi") == [HEADER.pack(b"PS", 4, 1, 1, 0, 0, 0.0, 2) + b"hi"]


def test_the_numbers_that_travel_never_change():
    assert {kind.name: int(kind) for kind in Kind} == {
        "HELLO": 1, "LAUNCH": 2, "READY": 3, "FAILED": 4, "BATCH": 5, "ANSWERS": 6, "EXAMINE": 7, "EXAMINED": 8,
        "CHECK": 9, "CHECKED": 10, "DETACH": 11, "RELEASED": 12, "KEPT": 13, "TRIM": 14, "RECALL": 15,
        "SHORTAGE": 16, "LOST": 17, "SUSPECT": 18, "DEVICE_MEMORY": 19, "COUNTS": 20, "CANCEL": 21,
    }  # fmt: skip
    assert {status.name: int(status) for status in Status} == {
        "OK": 0, "INVALID": 1, "FAILED": 2, "EXPIRED": 3, "RECALLED": 4,
    }  # fmt: skip


def test_a_payload_in_several_buffers_is_read_as_if_joined():
    pieces = [[b"ab", memoryview(b"cd")], [b"e", bytearray(b"f"), b"g"], []]
    assert [bytes(p) for p in decode(batch(pieces))[0].payloads] == [b"abcd", b"efg", b""]
    large = [[b"a" * 700, b"b" * 700], b"c"]
    assert [bytes(p) for p in decode(batch(large))[0].payloads] == [b"a" * 700 + b"b" * 700, b"c"]


def test_a_small_frame_is_one_buffer_and_a_large_one_shares_its_payloads():
    small = encode_answers(1, 0.0, 1, [1], [b"x" * 100], [0])
    assert len(small) == 1
    payload = bytearray(JOIN_BELOW_BYTES)
    large = encode_answers(1, 0.0, 1, [1], [payload], [0])
    assert any(buffer is payload for buffer in large)


# -- alignment --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [batch, answers])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_large_payloads_start_at_a_multiple_of_64_and_small_ones_do_not_care(make, n):
    sizes = ([3, ALIGN_FROM_BYTES, 1, ALIGN_FROM_BYTES + 7, ALIGN_FROM_BYTES - 1] * n)[: n + 1]
    payloads = [bytes([i]) * size for i, size in enumerate(sizes)]
    wire = make(payloads)
    (frame,) = decode(wire)
    body = wire[HEADER.size :]
    for payload, sent in zip(frame.payloads, payloads, strict=True):
        assert payload == sent
        if len(sent) >= ALIGN_FROM_BYTES:
            assert body.index(bytes(sent)) % ALIGNMENT == 0


def test_a_payload_just_below_the_limit_is_not_padded():
    assert len(answers([b"x" * (ALIGN_FROM_BYTES - 1)])) == HEADER.size + 17 + ALIGN_FROM_BYTES - 1
    assert len(answers([b"x" * ALIGN_FROM_BYTES])) == HEADER.size + 64 + ALIGN_FROM_BYTES


# -- cut anywhere -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WIRES)
def test_a_frame_survives_being_cut_anywhere_and_is_missed_when_it_ends_early(name):
    wire = WIRES[name]
    whole = [plain(frame) for frame in decode(wire)]
    assert len(whole) == 1
    for cut in range(len(wire) + 1):
        decoder = FrameDecoder()
        first = decoder.feed(wire[:cut])
        if 0 < cut < len(wire):
            assert first == []
            with pytest.raises(ProtocolError, match="ended inside a frame"):
                decoder.end()
        else:
            decoder.end()
        assert [plain(frame) for frame in [*first, *decoder.feed(wire[cut:])]] == whole
        decoder.end()


@pytest.mark.parametrize("step", [1, 2, 35, 36, 37, 1000])
def test_many_frames_arrive_in_order_however_small_the_pieces(step):
    wire = b"".join(WIRES.values())
    decoder, frames = FrameDecoder(), []
    for i in range(0, len(wire), step):
        frames += decoder.feed(wire[i : i + step])
    decoder.end()
    assert list(map(plain, frames)) == FRAMES


@pytest.mark.parametrize("around", [-1, 0, 1])
def test_bodies_around_the_size_of_the_scratch_buffer_are_whole(around):
    payload = bytes(range(256)) * (SCRATCH_BYTES // 256)
    payload = payload[: SCRATCH_BYTES - HEADER.size + around]
    wire = b"".join(encode_control(Kind.LAUNCH, payload))
    for cut in (10, HEADER.size, HEADER.size + 1, len(wire) - 1):
        decoder = FrameDecoder()
        frames = decoder.feed(b"".join([WIRES["a hello"], wire[:cut]])) + decoder.feed(wire[cut:])
        assert [bytes(frame.payloads[0]) for frame in frames] == [b"hello", payload]
        decoder.end()


def test_a_stream_that_ends_inside_a_large_body_is_missed():
    decoder = FrameDecoder()
    decoder.feed(answers([b"z" * (2 * SCRATCH_BYTES)])[:-1])
    with pytest.raises(ProtocolError, match="ended inside a frame"):
        decoder.end()


# -- views, not copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, ALIGN_FROM_BYTES, 3 * SCRATCH_BYTES])
def test_payloads_are_writable_views_of_one_buffer(size):
    (frame,) = decode(answers([b"a" * size, b"b" * size]))
    first, second = frame.payloads
    assert not first.readonly
    assert first.obj is second.obj
    first[0] = ord("X")
    assert first.obj.count(b"X") == 1
    assert bytes(second) == b"b" * size


@pytest.mark.parametrize("size", [10, SCRATCH_BYTES * 2])
def test_payloads_can_be_had_read_only_so_that_what_came_stays(size):
    (frame,) = FrameDecoder(readonly=True).feed(batch([b"x" * size, b"y"]))
    assert [payload.readonly for payload in frame.payloads] == [True, True]
    assert [bytes(payload[:1]) for payload in frame.payloads] == [b"x", b"y"]


def test_payloads_stay_as_they_are_while_more_is_read():
    decoder = FrameDecoder()
    (kept,) = decoder.feed(answers([b"keep me"]))
    decoder.feed(answers([b"xxxxxxx"]) * 100)
    assert bytes(kept.payloads[0]) == b"keep me"


def test_a_large_body_is_read_into_its_final_place():
    size = 4 * SCRATCH_BYTES
    wire = answers([b"q" * size])
    decoder = FrameDecoder()
    decoder.feed(wire[: HEADER.size + 64])
    buffer = decoder.get_buffer()
    assert len(buffer) == size
    buffer[:] = wire[HEADER.size + 64 :]
    (frame,) = decoder.advance(size)
    assert frame.payloads[0].obj is buffer.obj


# -- what is not a frame ----------------------------------------------------------------------------------------------


@each(
    ("wire", "reason"),
    [
        (header(magic=b"HT"), "not a frame: it starts with b'HT'"),
        (header(version=1), "uses version 1 of the protocol, this process version 4"),
        (header(kind=0), "unknown kind of frame: 0"),
        (header(kind=12), "unknown kind of frame: 12"),
        (header(length=MAX_BODY_BYTES + 1), f"announces 0 items in {MAX_BODY_BYTES + 1} bytes"),
        (header(n=2, length=17), "announces 2 items in 17 bytes"),
        (header(n=0xFFFFFFFF, length=100), "announces 4294967295 items in 100 bytes"),
        (header(n=1, length=25) + bytes(25), "a frame of 25 bytes is too short for its 1 records"),
        (header(n=1, length=16, kind=Kind.ANSWERS) + bytes(16), "too short for its 1 records"),
        (header(n=1, length=27) + bytes(27), "1 bytes too many"),
        (header(n=0, length=3) + bytes(3), "3 bytes too many"),
        (header(n=1, length=18, kind=Kind.ANSWERS) + struct.pack("<QQB", 1, 2, 0) + b"x", "shorter than its payloads"),
        (header(n=1, length=17, kind=Kind.ANSWERS) + struct.pack("<QQB", 1, 2**64 - 1, 0), "shorter than its payloads"),
    ],
)
def test_what_is_not_a_frame_is_refused_with_a_reason(wire, reason):
    with pytest.raises(ProtocolError, match=reason):
        FrameDecoder().feed(wire)


def test_a_body_of_exactly_the_limit_passes_and_one_byte_more_does_not():
    wire = b"".join(encode_control(Kind.HELLO, b"x" * 10))
    assert len(decode(wire, max_body=10)) == 1
    with pytest.raises(ProtocolError, match="announces 1 items in 10 bytes"):
        decode(wire, max_body=9)


def test_a_claim_of_a_huge_body_allocates_little_before_its_bytes_come():
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        decoder.feed(header(kind=Kind.LAUNCH, n=1, length=MAX_BODY_BYTES) + bytes(1000))
        assert len(decoder.get_buffer()) > 0
        assert tracemalloc.get_traced_memory()[1] < 2 * FIRST_CLAIM_BYTES
    finally:
        tracemalloc.stop()
    with pytest.raises(ProtocolError):
        decoder.end()


def test_a_body_beyond_the_first_claim_grows_as_it_comes():
    payload = bytes(range(256)) * (7 * SCRATCH_BYTES // 256) + b"end"
    wire = b"".join(encode_control(Kind.LAUNCH, payload)) + WIRES["a hello"]
    for step in (len(wire), 50_000):
        decoder, frames = FrameDecoder(first_claim=2 * SCRATCH_BYTES), []
        for i in range(0, len(wire), step):
            frames += decoder.feed(wire[i : i + step])
        assert [frame.kind for frame in frames] == [Kind.LAUNCH, Kind.HELLO]
        assert frames[0].payloads[0] == payload
        assert not frames[0].payloads[0].readonly
        decoder.end()


def test_a_reader_may_hold_the_last_buffer_until_advance_has_returned():
    decoder = FrameDecoder(first_claim=2 * SCRATCH_BYTES)
    decoder.feed(header(kind=Kind.LAUNCH, n=1, length=5 * SCRATCH_BYTES))
    left = 5 * SCRATCH_BYTES
    while left:
        buffer = decoder.get_buffer()
        frames = decoder.advance(len(buffer))
        left -= len(buffer)
        del buffer
    assert len(frames[0].payloads[0]) == 5 * SCRATCH_BYTES


def test_what_a_frame_may_claim_can_be_bounded():
    decoder = FrameDecoder(max_body=100, max_items=1)
    with pytest.raises(ProtocolError, match="a frame announces 1 items in 101 bytes"):
        decoder.feed(header(kind=Kind.LAUNCH, n=1, length=101))
    with pytest.raises(ProtocolError, match="a frame announces 2 items in 90 bytes"):
        FrameDecoder(max_items=1).feed(header(n=2, length=90))
    decoder = FrameDecoder(max_body=0, max_items=0)
    decoder.bound(max_body=200, max_items=1)
    assert decoder.feed(header(kind=Kind.LAUNCH, n=1, length=101) + bytes(101))[0].kind is Kind.LAUNCH


# -- anything at all --------------------------------------------------------------------------------------------------


def feed_in_pieces(wire, cuts):
    decoder, frames = FrameDecoder(max_body=1 << 20), []
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    for begin, end in pairwise(edges):
        frames += decoder.feed(wire[begin:end])
    decoder.end()
    return frames


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=4))
def test_random_bytes_are_frames_or_a_protocol_error(wire, cuts):
    with suppress(ProtocolError):
        feed_in_pieces(wire, cuts)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(sorted(WIRES)),
    st.integers(0, 5000),
    st.integers(0, 255),
    st.lists(st.integers(0, 10_000), max_size=4),
)
def test_a_frame_with_one_byte_changed_is_a_frame_or_a_protocol_error(name, where, value, cuts):
    wire = bytearray(WIRES[name])
    wire[where % len(wire)] = value
    try:
        frames = feed_in_pieces(bytes(wire), cuts)
    except ProtocolError:
        return
    assert len(frames) == 1


def test_a_shortage_says_how_many_items_failed_and_how_many_ran():
    (frame,) = decode(encode_shortage(32, 5), slabs=True)
    assert (frame.kind, read_shortage(frame)) == (Kind.SHORTAGE, (32, 5))
    (frame,) = decode(encode_slab_note(Kind.SHORTAGE, b"1234"), slabs=True)
    with pytest.raises(ProtocolError, match="two numbers"):
        read_shortage(frame)


def test_counts_are_a_frame_of_every_worker():
    (frame,) = decode(b"".join(encode_control(Kind.COUNTS, b"counts")))
    assert (frame.kind, bytes(frame.payloads[0])) == (Kind.COUNTS, b"counts")


def test_a_device_memory_says_how_many_bytes():
    (frame,) = decode(encode_device_memory(1 << 40), slabs=True)
    assert (frame.kind, read_device_memory(frame)) == (Kind.DEVICE_MEMORY, 1 << 40)
    (frame,) = decode(encode_slab_note(Kind.DEVICE_MEMORY, b"1234"), slabs=True)
    with pytest.raises(ProtocolError, match="one number"):
        read_device_memory(frame)


# -- what is taken back -----------------------------------------------------------------------------------------------


def test_a_recall_marks_its_batch_among_those_that_have_not_begun_and_no_other():
    waiting = deque()
    frames = decode(batch([b"a"], 1) + batch([b"b", b"c", b"d"], 2) + encode_recall(2, [0, 2]), slabs=True)
    queue_frames(waiting, frames)
    queue_frames(waiting, decode(encode_recall(2, [1]) + encode_recall(3, [0]), slabs=True))
    assert [(frame.frame_id, frame.recalled) for frame in waiting] == [(1, set()), (2, {0, 1, 2})]


def test_a_recall_is_no_frame_of_the_version_that_workers_from_outside_speak():
    wire = encode_recall(1, [0])
    with pytest.raises(ProtocolError, match="version 5"):
        decode(wire)
    with pytest.raises(ProtocolError, match="unknown kind"):
        decode(wire[:2] + bytes([VERSION]) + wire[3:], slabs=True)


def test_a_recall_of_half_a_place_is_refused():
    (frame,) = decode(header(version=SLAB_VERSION, kind=Kind.RECALL, n=1, length=9) + bytes(9), slabs=True)
    with pytest.raises(ProtocolError, match="9 bytes"):
        queue_frames(deque(decode(batch([b"a"], 1))), [frame])
