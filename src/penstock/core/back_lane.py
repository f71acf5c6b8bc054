"""The lane behind the others: what waits there for one stage, and what it is owed while the others saturate.

Contract
--------
* Items leave in the order they were offered; an item put back goes to the head.
* Of the items that run it earns its share, to the millionth.  It spends at most what it has earned, and what it could
  not use when it had nothing left to run is not owed to it later.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from penstock.core.item import Item

MILLION: Final = 1_000_000


class BackLane:
    """The items of `Lane.BACK` in the queue of a stage.

    `share` is what it gets of all items while the other lanes could fill every batch, from 0 to 1.  `nbytes` is the
    size of the payloads, `len()` the number of items.
    """

    def __init__(self, share: float) -> None:
        self.nbytes = 0
        self._items: OrderedDict[Item, None] = OrderedDict()
        self._alone = 0
        """How many of them are to be alone."""
        # Whole millionths are counted, because sums of floats drift.
        self._share = round(share * MILLION)
        self._owed = 0
        """Millionths of items."""

    def __len__(self) -> int:
        return len(self._items)

    def list_items(self) -> list[Item]:
        """The items, in their order."""
        return list(self._items)

    @property
    def first(self) -> Item:
        """The next item to leave; there must be one."""
        return next(iter(self._items))

    def offer(self, item: Item) -> None:
        """Take `item` in, behind all others."""
        self._items[item] = None
        self._count(item, 1)

    def put_back(self, item: Item) -> None:
        """Return `item` to the head."""
        self._items[item] = None
        self._items.move_to_end(item, last=False)
        self._count(item, 1)

    def discard(self, item: Item) -> None:
        """Forget `item`, which waits here."""
        del self._items[item]
        self._count(item, -1)
        self._forget_if_empty()

    def together(self, most: int) -> int:
        """How many of the first `most` items may run together: those before the first that is to be alone."""
        most = min(most, len(self._items))
        if self._alone:
            for place, item in enumerate(islice(self._items, most)):
                if item.request.alone:
                    return place
        return most

    def take(self, count: int) -> list[Item]:
        """The first `count` items."""
        taken = []
        for _ in range(count):
            item = self._items.popitem(last=False)[0]
            self._count(item, -1)
            taken.append(item)
        self._forget_if_empty()
        return taken

    def earn(self, items: int) -> int:
        """Earn the share of `items` that are about to run; returns how many whole items are owed by now."""
        self._owed += self._share * items
        return self._owed // MILLION

    def spend(self, items: int) -> None:
        """Have got so many of the items that were owed."""
        self._owed -= items * MILLION

    def _forget_if_empty(self) -> None:
        if not self._items:
            self._owed %= MILLION  # who has nothing to run is not owed it later

    def _count(self, item: Item, n: int) -> None:
        self.nbytes += n * item.nbytes
        if item.request.alone:
            self._alone += n
