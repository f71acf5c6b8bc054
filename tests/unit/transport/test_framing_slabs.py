"""Frames that name payloads in place of carrying them: what is written is read, and whatever is damaged is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.payload import Handle
from penstock.errors import ProtocolError
from penstock.transport.framing import (
    JOIN_BELOW_BYTES,
    SLAB_VERSION,
    VERSION,
    FrameDecoder,
    Kind,
    Status,
    encode_answers,
    encode_batch,
    encode_control,
    encode_slab_note,
)

HEADER = struct.Struct("<2sBBIIQdQ")
NAMED = 1 << 63
MOST = (1 << 64) - 1
NOTES = (Kind.RELEASED, Kind.KEPT, Kind.TRIM)


def batch(payloads, handles=None, request_ids=b""):
    """A BATCH; a payload that `handles` names may be anything of its size."""
    n = len(payloads)
    lengths = list(map(len, payloads))
    rows = (list(range(n)), payloads, lengths, [0.5] * n, [1] * n, [2] * n)
    return b"".join(encode_batch(7, 2.5, *rows, request_ids, handles))


def answers(payloads, handles=None, request_ids=b""):  # called as `batch` is
    statuses = [Status.OK] * len(payloads)
    return b"".join(encode_answers(7, 0.25, 3, list(range(len(payloads))), payloads, statuses, None, handles))


def decode(wire, **options):
    decoder = FrameDecoder(**{"slabs": True, **options})
    frames = decoder.feed(wire)
    decoder.end()
    return frames


def numbers(handle):
    return (handle.slab, handle.offset, handle.nbytes, handle.serial)


def named(frame):
    return {place: numbers(handle) for place, handle in frame.handles}


both = pytest.mark.parametrize("make", [batch, answers])


@both
def test_a_payload_that_is_named_is_not_sent_and_the_others_are(make):
    large = b"L" * 100_000
    wire = make([b"one", large, b"", large], {1: Handle(3, 8192, len(large), 17), 3: Handle(3, 4096, len(large), 18)})
    assert len(wire) < 1000
    (frame,) = decode(wire)
    assert [bytes(payload) for payload in frame.payloads] == [b"one", b"", b"", b""]
    assert named(frame) == {1: (3, 8192, 100_000, 17), 3: (3, 4096, 100_000, 18)}
    assert frame.ids == (0, 1, 2, 3)
    assert frame.nbytes == len(wire) - HEADER.size


def test_the_layout_is_the_documented_one():
    columns = struct.pack("<2Q2Q2d2B2B", 0, 1, 3, NAMED | 5000, 0.5, 0.5, 1, 1, 2, 2)
    body = columns + b"id" + b"one" + struct.pack("<3Q", 9, 4096, 77)
    wire = batch([b"one", b"x" * 5000], {1: Handle(9, 4096, 5000, 77)}, b"id")
    assert wire == HEADER.pack(b"PS", 5, Kind.BATCH, 2, 2, 7, 2.5, len(body)) + body
    columns = struct.pack("<1Q1Q1B", 0, NAMED | 5000, 0)
    body = columns + struct.pack("<3Q", 9, 4096, 77)
    assert answers([b"x" * 5000], {0: Handle(9, 4096, 5000, 77)}) == (
        HEADER.pack(b"PS", 5, Kind.ANSWERS, 1, 3, 7, 0.25, len(body)) + body
    )


@both
@pytest.mark.parametrize("handles", [None, {}])
def test_a_frame_that_names_nothing_is_of_the_version_that_every_worker_reads(make, handles):
    wire = make([b"x" * 100_000], handles)
    assert wire[2] == VERSION
    (frame,) = decode(wire, slabs=False)
    assert frame.handles == []


@both
def test_the_largest_numbers_pass_as_they_are(make):
    wire = bytearray(make([b"x"], {0: Handle(MOST, MOST, 1, MOST)}))
    at = wire.index(struct.pack("<Q", NAMED | 1))
    wire[at : at + 8] = b"\xff" * 8
    (frame,) = decode(bytes(wire))
    assert named(frame) == {0: (MOST, MOST, NAMED - 1, MOST)}


def test_a_frame_that_names_much_is_one_small_buffer():
    n = 40
    large = bytearray(1 << 20)
    handles = {i: Handle(1, i << 20, len(large), i) for i in range(n)}
    buffers = encode_answers(1, 0.0, 1, range(n), [large] * n, [0] * n, None, handles)
    assert len(buffers) == 1
    assert len(buffers[0]) < JOIN_BELOW_BYTES


@pytest.mark.parametrize("kind", NOTES)
def test_a_note_about_slabs_carries_one_payload_and_is_of_their_version(kind):
    wire = encode_slab_note(kind, b"payload")
    assert wire[2] == SLAB_VERSION
    (frame,) = decode(wire)
    assert (frame.kind, bytes(frame.payloads[0]), frame.handles) == (kind, b"payload", [])


def test_lengths_that_are_known_are_not_measured_again():
    handles = {0: Handle(1, 0, 5000, 1)}
    assert encode_answers(7, 0.0, 1, [1, 2], [b"", b"abc"], [0, 0], [5000, 3], handles) == encode_answers(
        7, 0.0, 1, [1, 2], [b"x" * 5000, b"abc"], [0, 0], None, handles
    )


# -- any mixture ------------------------------------------------------------------------------------------------------

sizes = st.one_of(st.integers(0, 40), st.sampled_from([1023, 1024, 1025, 4096, 70_000]))
items = st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=8)
unsigned = st.integers(0, MOST)


@both
@given(items=items, data=st.data(), request_ids=st.binary(max_size=9))
def test_any_mixture_is_read_as_it_was_written_however_it_is_divided(make, items, data, request_ids):
    payloads = [bytes([i + 1]) * size for i, (size, _) in enumerate(items)]
    handles = {
        i: Handle(data.draw(unsigned), data.draw(unsigned), size, data.draw(unsigned))
        for i, (size, is_named) in enumerate(items)
        if is_named and size
    }
    wire = make(payloads, handles, request_ids) + encode_slab_note(Kind.KEPT, b"behind")
    decoder = FrameDecoder(slabs=True, readonly=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=4)))
    frames = []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        frames += decoder.feed(wire[begin:end])
    decoder.end()
    frame, note = frames
    assert [bytes(p) for p in frame.payloads] == [b"" if i in handles else p for i, p in enumerate(payloads)]
    assert named(frame) == {place: numbers(handle) for place, handle in handles.items()}
    assert list(frame.ids) == list(range(len(items)))
    assert frame.request_ids() == (request_ids if make is batch else b"")
    assert bytes(note.payloads[0]) == b"behind"


@both
@given(data=st.data())
def test_a_damaged_frame_is_refused_or_says_something_else_and_nothing_worse(make, data):
    wire = bytearray(make([b"one", b"x" * 5000, b"y" * 2000], {1: Handle(1, 4096, 5000, 3)}))
    for at in data.draw(st.lists(st.integers(0, len(wire) - 1), min_size=1, max_size=3)):
        wire[at] = data.draw(st.integers(0, 255))
    try:
        frames = decode(bytes(wire))
    except ProtocolError:
        return
    for frame in frames:
        for place, handle in frame.handles:
            assert not frame.payloads[place]
            assert 0 <= handle.nbytes < NAMED
            assert all(0 <= number <= MOST for number in numbers(handle))


# -- what is refused --------------------------------------------------------------------------------------------------


def refused(wire, words, **options):
    with pytest.raises(ProtocolError, match=words):
        decode(wire, **options)


@both
def test_nothing_is_named_to_a_decoder_without_slabs(make):
    wire = make([b"x" * 5000], {0: Handle(1, 0, 5000, 1)})
    refused(wire, "the peer uses version 5 of the protocol, this process version 4", slabs=False)


@both
def test_a_frame_of_the_older_version_names_nothing(make):
    wire = bytearray(make([b"x" * 5000], {0: Handle(1, 0, 5000, 1)}))
    wire[2] = VERSION
    for slabs in (False, True):
        refused(bytes(wire), "a frame is shorter than its payloads", slabs=slabs)


@pytest.mark.parametrize("kind", NOTES)
def test_a_note_about_slabs_is_no_frame_of_the_older_version(kind):
    wire = b"".join(encode_control(kind, b"payload"))
    for slabs in (False, True):
        refused(wire, f"unknown kind of frame: {int(kind)}", slabs=slabs)
    refused(encode_slab_note(kind, b"payload"), "the peer uses version 5", slabs=False)


@pytest.mark.parametrize("version", [0, 3, 6, 255])
def test_no_other_version_is_read(version):
    wire = bytearray(encode_slab_note(Kind.KEPT, b""))
    wire[2] = version
    refused(bytes(wire), f"the peer uses version {version}")


@pytest.mark.parametrize("kind", [0, 22, 255])
def test_no_other_kind_is_read(kind):
    wire = bytearray(encode_slab_note(Kind.KEPT, b""))
    wire[3] = kind
    refused(bytes(wire), f"unknown kind of frame: {kind}")


def answers_by_hand(lengths, rest, n=None):
    n = len(lengths) if n is None else n
    body = struct.pack(f"<{n}Q", *range(n)) + struct.pack(f"<{len(lengths)}Q", *lengths) + bytes(n) + rest
    return HEADER.pack(b"PS", SLAB_VERSION, Kind.ANSWERS, n, 1, 7, 0.0, len(body)) + body


@pytest.mark.parametrize("missing", [1, 8, 23, 24])
def test_a_handle_that_is_cut_off_is_refused(missing):
    handle = struct.pack("<3Q", 1, 4096, 1)
    refused(answers_by_hand([NAMED | 5000], handle[: 24 - missing]), "a frame is shorter than its payloads")


def test_a_frame_with_more_than_its_handles_is_refused():
    handle = struct.pack("<3Q", 1, 4096, 1)
    refused(answers_by_hand([NAMED | 5000], handle + b"x"), "a frame has 1 bytes too many")
    refused(answers_by_hand([NAMED | 5000], handle * 2), "a frame has 24 bytes too many")


def test_a_handle_of_nothing_is_read_and_left_to_who_knows_the_slab():
    (frame,) = decode(answers_by_hand([NAMED], struct.pack("<3Q", 1, 4096, 1)))
    assert named(frame) == {0: (1, 4096, 0, 1)}


def test_a_length_that_no_memory_has_is_refused_where_nothing_is_named():
    refused(answers_by_hand([NAMED - 1], b"x"), "a frame is shorter than its payloads")
