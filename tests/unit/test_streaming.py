"""What a stream may have in hand."""

from __future__ import annotations

import asyncio

from penstock.streaming import InHand, StreamWindow


def test_items_in_hand_are_bounded_in_number():
    in_hand = InHand(max_items=2, max_bytes=100)
    in_hand.put("a", 1)
    assert not in_hand.full
    in_hand.put("b", 1)
    assert in_hand.full
    assert in_hand.oldest == "a"
    in_hand.drop_first()
    assert not in_hand.full
    assert list(in_hand) == ["b"]


def test_items_in_hand_are_bounded_in_bytes_and_one_always_passes():
    in_hand = InHand(max_items=10, max_bytes=100)
    assert not in_hand.full
    in_hand.put("a", 99)
    assert not in_hand.full
    in_hand.put("b", 500)
    assert in_hand.full
    in_hand.drop_first()
    assert in_hand.full
    in_hand.drop_first()
    assert not in_hand.full
    assert len(in_hand) == 0


def test_no_bytes_at_all_still_let_one_item_pass_at_a_time():
    in_hand = InHand(max_items=10, max_bytes=0)
    assert not in_hand.full
    in_hand.put("a", 0)
    assert in_hand.full


async def test_a_window_has_room_again_when_the_oldest_was_taken_and_tells_its_end():
    window = StreamWindow(InHand(max_items=1, max_bytes=100))
    await window.room()
    window.put("a", 1)
    waiting = asyncio.ensure_future(window.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await window.first() == "a"
    window.drop_first()
    await waiting
    reader = asyncio.ensure_future(window.first())
    await asyncio.sleep(0)
    assert not reader.done()
    window.end()
    assert await reader is None
