"""The ids of the requests that a batch's items belong to, as one text that travels with the batch.

Contract
--------
* `split_ids(join_ids(items), len(items))` has an id for each item, in order.
* An item of a client batch has the batch's id and its own place in it: ``ID:3`` is the fourth.
* An item of a request without an id has "".  Where no request has one the text is empty.
* Neighbours of one client batch share an entry, so that a batch of 256 costs one.

An entry is an id, or ``ID:FIRST+COUNT``; a space is between two.  An id is of letters, digits and ``._-``: who lets
requests in has seen to it.
"""

from __future__ import annotations

from typing import Final

from penstock.core.item import Item
from penstock.core.lanes import Lane

BULK: Final = int(Lane.BULK)  # a constant costs nothing once compiled, a member of an enum is looked up


def join_ids(items: list[Item]) -> bytes:
    """The ids of `items` as one text."""
    if len(items) == 1 and items[0].request.lane != BULK:  # as most batches of a service with little to do
        return items[0].request.id
    entries: list[bytes] = []
    named = False
    i = 0
    n = len(items)
    while i < n:
        item = items[i]
        i += 1
        request = item.request
        if not request.id:
            entries.append(b"")
            continue
        named = True
        if request.lane != BULK:
            entries.append(request.id)
            continue
        count = 1
        while i < n and items[i].request is request and items[i].index == item.index + count:
            count += 1
            i += 1
        entries.append(b"%s:%d+%d" % (request.id, item.index, count))
    return b" ".join(entries) if named else b""


def split_ids(text: bytes, n: int) -> list[str]:
    """The ids of the `n` items of a batch with this text.  What it claims beyond those takes no memory."""
    if not text:
        return [""] * n
    ids: list[str] = []
    for entry in text.decode().split(" "):
        name, _, places = entry.partition(":")
        if places:
            first, _, count = places.partition("+")
            begin, most = int(first), n - len(ids)
            ids += [f"{name}:{place}" for place in range(begin, begin + min(int(count), most))]
        else:
            ids.append(name)
    return ids
