"""Items and requests, and an item's legal moves as a table.

A *request* is one call by a client; it carries one or many *items*.  `Request.done` is told the outcomes once,
when the last of its items is settled.  Formats are numbers here (see `codec.formats`): the core moves payloads
and never looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

from penstock.core.lanes import Lane
from penstock.core.moves import Move
from penstock.core.outcome import Outcome
from penstock.core.payload import Payload
from penstock.core.tenants import ANYONE, USUAL_URGENCY, Tenant

Done: TypeAlias = Callable[[list[Outcome]], None]


class ItemState(IntEnum):
    """Where an item is in its life.  Numbers, because they are looked up several times for each item."""

    NEW = 0
    QUEUED = 1
    SENT = 2
    SETTLED = 3


OFFER = Move("offer", "an item", {ItemState.NEW: ItemState.QUEUED, ItemState.SENT: ItemState.QUEUED})
"""It enters a stage's queue: as a new item, from the stage before, or back from a worker that ended."""
SEND = Move("send", "an item", {ItemState.QUEUED: ItemState.SENT})
"""It goes to a worker, in a batch."""

# There is no row for settling: it is legal from every state.  To settle twice is harmless: the first outcome stands.


class Request:
    """One call: its payloads, their outcomes as they come, and `done`, which is told them.

    Items are made from `payloads` one at a time, as there is room for them; `fed` says how many were made.  So a client
    batch of any length costs the queue no more than its share.
    """

    __slots__ = (
        "admitted", "alone", "bucket", "codec_in", "codec_out", "deadline", "done", "fed", "full",
        "holds_results", "id", "items", "lane", "outcomes", "payloads", "result_bytes", "tenant", "unfed_bytes",
        "unsettled", "urgency",
    )  # fmt: skip

    def __init__(
        self,
        payloads: Sequence[Payload],
        codec_in: int,
        codec_out: int,
        deadline: float,
        done: Done,
        lane: Lane = Lane.SINGLE,
        holds_results: bool = False,
        request_id: bytes = b"",
        alone: bool = False,
        urgency: int = USUAL_URGENCY,
        tenant: Tenant = ANYONE,
    ) -> None:
        self.payloads = payloads
        self.codec_in = codec_in
        self.codec_out = codec_out
        self.deadline = deadline
        self.done = done
        self.lane: int = lane
        """A `Lane`, as a number, because it is an index into lists of lanes."""
        self.id = request_id
        """The id that its caller was told, or b""; see `core.request_ids`."""
        self.holds_results = holds_results
        """Whether its results count as held until the last one is there, and are bounded."""
        self.alone = alone
        """Whether each of its items must be a batch of its own, in every stage."""
        self.urgency = urgency
        """From 0, first, to 7, last."""
        self.tenant = tenant
        self.fed = 0
        self.admitted = False
        """Whether it is let in, and its payloads are held."""
        self.unfed_bytes = 0
        """Bytes of `payloads` that are not items yet."""
        self.result_bytes = 0
        """Bytes of results that are held in `outcomes` until the last one is there."""
        self.full = False
        """Whether it may gather no more results: what of it is not at a worker is not run."""
        self.items: list[Item] = []
        self.bucket: set[Request] | None = None
        """The bucket of `Deadlines` that it is in."""
        self.unsettled = len(payloads)
        self.outcomes: list[Any] = [None] * self.unsettled

    @property
    def wholly_fed(self) -> bool:
        """Whether every payload has become an item."""
        return self.fed >= len(self.payloads)


class Item:
    """One input on its way through the stages.

    `payload` is what the next stage will decode; `stage` is that stage's index.  `arrived` is when the item reached its
    present or last queue; it is unset before the first.  `frame` is the frame it was last sent in.  `suspect` says that
    a worker died while it ran the item's batch, `ran` that the item may have run in this stage although it waits again.
    """

    __slots__ = (
        "arrived", "deadline", "frame", "id", "index", "nbytes", "payload", "ran", "request", "stage", "state",
        "suspect",
    )  # fmt: skip

    def __init__(self, item_id: int, payload: Payload, nbytes: int, request: Request, index: int) -> None:
        self.id = item_id
        self.payload = payload
        self.nbytes = nbytes
        self.deadline = request.deadline
        self.request = request
        self.index = index
        self.stage = 0
        self.state = ItemState.NEW
        self.suspect = False
        self.ran = False
        self.frame: Any = None
        self.arrived: float
