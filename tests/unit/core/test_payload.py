"""What a payload is: its size, its pieces, its bytes joined."""

import pytest

from penstock.core.payload import ALIGNMENT, alignment_gap, join_payload, payload_pieces, payload_size

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
    assert b"".join(payload_pieces(payload)) == whole


@pytest.mark.parametrize(("payload", "whole"), PAYLOADS)
def test_a_joined_payload_is_one_buffer(payload, whole):
    joined = join_payload(payload)
    assert bytes(joined) == whole
    assert not isinstance(joined, list)


def test_a_payload_in_one_piece_is_not_copied():
    view = memoryview(b"abc")
    assert join_payload(view) is view
    assert payload_pieces(view)[0] is view


def test_a_gap_leads_to_the_next_multiple_of_64():
    assert ALIGNMENT == 64
    assert [alignment_gap(offset) for offset in (0, 1, 63, 64, 65, 128)] == [0, 63, 1, 0, 63, 0]
