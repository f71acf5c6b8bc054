"""What a payload is: its size, its buffers, its bytes joined, and where it lies in a slab."""

import pytest

from penstock.core.payload import (
    ALIGNMENT,
    LEAST_LEASED,
    Handle,
    alignment_gap,
    copy_to_piece,
    handle_of,
    join_payload,
    payload_buffers,
    payload_size,
    write_payload,
)

PAYLOADS = [
    (b"", b""),
    (b"abc", b"abc"),
    (bytearray(4), bytes(4)),
    (memoryview(b"abcd").cast("I"), b"abcd"),
    ([], b""),
    ([b"ab", memoryview(b"cde"), bytearray(1)], b"abcde\0"),
    ([memoryview(b"abcdefgh").cast("Q")], b"abcdefgh"),
]


@pytest.mark.parametrize(("payload", "whole"), PAYLOADS)
def test_a_payload_is_as_large_as_its_buffers_together(payload, whole):
    assert payload_size(payload) == len(whole)


@pytest.mark.parametrize(("payload", "whole"), PAYLOADS)
def test_the_pieces_of_a_payload_are_its_bytes_in_order(payload, whole):
    assert b"".join(payload_buffers(payload)) == whole


@pytest.mark.parametrize(("payload", "whole"), PAYLOADS)
def test_a_joined_payload_is_one_buffer(payload, whole):
    joined = join_payload(payload)
    assert bytes(joined) == whole
    assert not isinstance(joined, list)


def test_a_payload_in_one_piece_is_not_copied():
    view = memoryview(b"abc")
    assert join_payload(view) is view
    assert payload_buffers(view)[0] is view


def test_a_gap_leads_to_the_next_multiple_of_64():
    assert ALIGNMENT == 64
    assert [alignment_gap(offset) for offset in (0, 1, 63, 64, 65, 128)] == [0, 63, 1, 0, 63, 0]


# -- a payload that lies in a slab ------------------------------------------------------------------------------------


class Exporter(bytearray):
    """What a view of a piece is of, as far as `handle_of` looks."""

    handle: object = None


def piece(nbytes, handle):
    exporter = Exporter(4096)
    exporter.handle = handle
    return memoryview(exporter)[:nbytes]


def test_a_view_of_a_whole_piece_has_its_handle():
    handle = Handle(1, 8192, 5, 17)
    view = piece(5, handle)
    assert handle_of(view) is handle
    assert handle_of(view.toreadonly()) is handle
    assert handle_of(view[:]) is handle


def test_what_is_not_the_whole_of_a_piece_has_none():
    view = piece(5, Handle(1, 8192, 5, 17))
    for other in (view[1:], view[:4], bytes(view), bytearray(view), memoryview(bytes(view)), [view]):
        assert handle_of(other) is None
    assert handle_of(piece(5, "no handle")) is None
    assert handle_of(piece(5, None)) is None


@pytest.mark.parametrize(("payload", "whole"), PAYLOADS)
def test_a_payload_is_written_from_the_beginning_of_its_place(payload, whole):
    place = bytearray(b"." * (len(whole) + 3))
    if isinstance(payload, memoryview):
        payload = payload.cast("B")
    elif isinstance(payload, list):
        payload = [buffer.cast("B") if isinstance(buffer, memoryview) else buffer for buffer in payload]
    write_payload(payload, memoryview(place))
    assert place == whole + b"..."


def test_a_small_payload_asks_for_no_piece_and_a_large_one_is_copied_into_its_own():
    asked = []

    def lease(nbytes):
        asked.append(nbytes)
        return memoryview(bytearray(nbytes))

    assert copy_to_piece(b"x" * (LEAST_LEASED - 1), lease) is None
    assert asked == []
    copy = copy_to_piece([b"x" * LEAST_LEASED, b"y"], lease)
    assert bytes(copy) == b"x" * LEAST_LEASED + b"y"
    assert asked == [LEAST_LEASED + 1]


def test_where_there_is_no_place_nothing_is_copied():
    assert copy_to_piece(b"x" * LEAST_LEASED, lambda _: None) is None
