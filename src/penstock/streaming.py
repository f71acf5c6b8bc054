"""Decide how far a stream's source may be read ahead of the answers.

Contract
--------
* Items leave in the order they entered.  An item is in hand from its `put` until its answer was taken.
* At most `max_items` are in hand.  Once `max_bytes` are in hand no further item is read: one item may pass the limit.
* The source is read only while there is room: its reader waits in `room` before it reads.
* `end` comes after the last item, however the reading ended, and never waits for room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from penstock.config import ServiceOptions

T = TypeVar("T")


class InHand(Generic[T]):
    """The items of one stream that are in hand, oldest first, each with its bytes.

    One task may fill it with `room`, `put` and `end`, while another empties it with `first` and `drop_first`.  A thread
    that fills and empties it by itself looks at `full` and `oldest` instead, and never waits.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._entries: deque[tuple[T, int]] = deque()
        self._nbytes = 0
        self._ended = False
        self._changed = asyncio.Event()

    @classmethod
    def share_of(cls, options: ServiceOptions) -> Self:
        """One with nothing in hand, for one stream: its limits are half of the service's, and at least one item."""
        return cls(max(1, options.max_in_flight // 2), options.max_queued_bytes // 2)

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
        """The item that is answered next; only while there is one."""
        return self._entries[0][0]

    def put(self, entry: T, nbytes: int) -> None:
        """Add an item of `nbytes` bytes; only while not `full`."""
        self._entries.append((entry, nbytes))
        self._nbytes += nbytes
        self._changed.set()

    def drop_first(self) -> None:
        """Remove the oldest item: its answer was taken."""
        self._nbytes -= self._entries.popleft()[1]
        self._changed.set()

    def end(self) -> None:
        """Say that nothing more will come."""
        self._ended = True
        self._changed.set()

    async def room(self) -> None:
        """Wait until one more item may be read."""
        while self.full:
            self._changed.clear()
            await self._changed.wait()

    async def first(self) -> T | None:
        """Wait for the oldest item, which stays in hand until `drop_first`; None at the end."""
        while not self._entries:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self.oldest
