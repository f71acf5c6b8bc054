"""How far the reading of a stream's source may be ahead of the answers to it.

Contract
--------
* Items leave in the order they entered; one counts as in hand until its answer was taken.
* At most `max_items` are in hand, and nothing more is read once `max_bytes` are: one item may pass the bound.
* Room is waited for before the source is read, so nothing is read that has no place.
* The end is told after the last item, however the reading ended, and never waits for room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class InHand(Generic[T]):
    """The items of one stream in hand, oldest first, each with its bytes."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._entries: deque[tuple[T, int]] = deque()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return (entry for entry, _ in self._entries)

    @property
    def full(self) -> bool:
        """Whether no item may be read now."""
        return len(self._entries) >= self._max_items or (bool(self._entries) and self._nbytes >= self._max_bytes)

    @property
    def oldest(self) -> T:
        """The item to be answered next; only while there is one."""
        return self._entries[0][0]

    def put(self, entry: T, nbytes: int) -> None:
        """Add an item that holds `nbytes`; only while not `full`."""
        self._entries.append((entry, nbytes))
        self._nbytes += nbytes

    def drop_first(self) -> None:
        """The oldest item's answer was taken."""
        self._nbytes -= self._entries.popleft()[1]


class StreamWindow(Generic[T]):
    """What a stream has in hand, between one task that fills it and another that empties it."""

    def __init__(self, in_hand: InHand[T]) -> None:
        self._in_hand = in_hand
        self._ended = False
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[T]:
        return iter(self._in_hand)

    async def room(self) -> None:
        """Wait until one more item may be read."""
        while self._in_hand.full:
            self._changed.clear()
            await self._changed.wait()

    def put(self, entry: T, nbytes: int) -> None:
        """Add an item that holds `nbytes`; only after `room`."""
        self._in_hand.put(entry, nbytes)
        self._changed.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._changed.set()

    async def first(self) -> T | None:
        """The oldest item, waiting for one; None at the end.  It stays in hand until `drop_first`."""
        while not len(self._in_hand):
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._in_hand.oldest

    def drop_first(self) -> None:
        """The oldest item's answer was taken."""
        self._in_hand.drop_first()
        self._changed.set()
