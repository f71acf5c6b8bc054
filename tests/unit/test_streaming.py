"""What a stream may have in hand."""

from __future__ import annotations

import asyncio

from penstock.config import ServiceOptions
from penstock.streaming import InHand


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


def test_a_stream_has_half_of_what_its_service_may_hold_and_at_least_one_item():
    in_hand = InHand.share_of(ServiceOptions(max_in_flight=4, max_queued_bytes=100))
    in_hand.put("a", 49)
    assert not in_hand.full
    in_hand.put("b", 0)
    assert in_hand.full
    in_hand.drop_first()
    in_hand.drop_first()
    in_hand.put("c", 50)
    assert in_hand.full
    smallest = InHand.share_of(ServiceOptions(max_in_flight=1))
    assert not smallest.full
    smallest.put("a", 0)
    assert smallest.full


async def test_there_is_room_again_when_the_oldest_was_dropped():
    in_hand = InHand(max_items=1, max_bytes=100)
    await in_hand.room()
    in_hand.put("a", 1)
    waiting = asyncio.ensure_future(in_hand.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await in_hand.first() == "a"
    assert await in_hand.first() == "a"
    in_hand.drop_first()
    await waiting


async def test_the_first_item_is_waited_for_until_the_end():
    in_hand = InHand(max_items=2, max_bytes=100)
    reader = asyncio.ensure_future(in_hand.first())
    await asyncio.sleep(0)
    assert not reader.done()
    in_hand.put("a", 1)
    assert await reader == "a"
    in_hand.end()
    assert await in_hand.first() == "a"
    in_hand.drop_first()
    assert await in_hand.first() is None


async def test_the_end_is_told_to_one_who_waits_already():
    in_hand = InHand(max_items=1, max_bytes=100)
    reader = asyncio.ensure_future(in_hand.first())
    await asyncio.sleep(0)
    in_hand.end()
    assert await reader is None
