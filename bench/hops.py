"""Where a microsecond goes: each hop of a request through the real code, alone and warm, in one process.

    python bench/hops.py                 # the hops
    python bench/hops.py --loaded        # and what a whole request costs in a running server, to compare

The request is the echo's, in batches of 32, Penstock's default.  What a hop costs here is the least it costs in a
server, where the caches are colder; system calls and the event loop are in none of the hops.
"""

from __future__ import annotations

import asyncio
from typing import Any

from floor import FloorProtocol
from payload import BODY, request
from penstock.codec.formats import Codec
from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.item import Item, Request
from penstock.transport.framing import encode_batch
from timing import Work

BATCH = 32
REQUEST = request("/predict", 8000)


class Sink(asyncio.Transport):
    """A transport that takes every answer and sends it nowhere."""

    def write(self, data: Any) -> None:
        """Forget `data`."""

    def writelines(self, list_of_data: Any) -> None:
        """Forget all of it."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing is open."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default


# -- coordinator, on the way in -------------------------------------------------------------------------------------


def floor_parses(n: int) -> Work:
    """The floor's own work: llhttp and one write."""
    protocol = FloorProtocol()
    protocol.connection_made(Sink())

    def work() -> None:
        for _ in range(n):
            protocol.data_received(REQUEST)

    return work


def queue_and_cut(n: int) -> Work:
    """Into the stage's queue, and out in batches."""
    queue = BatchQueue(Batch(max_size=BATCH))
    items = [_item(i) for i in range(n)]

    def work() -> None:
        for begin in range(0, n, BATCH):
            for item in items[begin : begin + BATCH]:
                queue.offer(item, 1.0)
            queue.take(1.0)

    return work


def _item(i: int) -> Item:
    return Item(i, BODY, len(BODY), Request([BODY], Codec.JSON, Codec.JSON, 60.0, lambda _: None, False), 0)


def write_batch_frame(n: int) -> Work:
    """A batch as the bytes of a frame."""
    ids, payloads = list(range(BATCH)), [BODY] * BATCH
    remaining, codecs = [60.0] * BATCH, [Codec.JSON] * BATCH

    def work() -> None:
        for _ in range(n // BATCH):
            encode_batch(1, 1.0, ids, payloads, remaining, codecs, codecs)

    return work
