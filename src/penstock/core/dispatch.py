"""Decide which worker gets the next batch, how much it may hold, and which items may have killed a worker.

Pure: it is told which items are where, and moves none itself.

Contract
--------
* An idle worker gets a batch before a busy one is sent a batch ahead.  Of several equal ones it is the first.
* A worker never holds more batches than its window.
* Where a stage has a bound on its batches, its workers never hold more of them together.  Those of a worker that leaves
  or is being ended count until they are answered or it has ended.  An examination or a check is no batch.
* A stage sends on no more items than the next stage's queue takes.  An empty queue takes them however large they are.
* The last stage is sent nothing while finished answers take more than they may.
* Items of BACK have room of their own, and take none from the others: they are sent on while fewer of them wait for the
  next stage than its workers take at once.  Their answers are no finished answers of clients.
* A worker of a plain stage answers one frame before it reads the next, so when it dies only its oldest frame can have
  killed it.  A worker of a waiting stage runs its oldest `concurrency` frames at once, and each of them can.
* An item whose worker died runs once more, alone: its worker runs no other item then.  After a second death it is
  lost.
* An item that was taken back from a worker is not queued again when that worker ends before it has begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from penstock.core.item import Item, ItemState
from penstock.core.payload import Payload

SETTLED: Final = ItemState.SETTLED  # a constant costs nothing once compiled, a member of an enum is looked up


class SentFrame:
    """A batch that a worker holds; one without items is an examination: the worker runs an example.

    `unsettled` is how many of its items have no outcome yet.  Who settles an item counts it down.  `back` is how many
    of them are of BACK.  `moment` is when it was sent.  `views` are the payloads that the worker reads where they lie:
    they must stay there until it has answered, or has ended, whatever becomes of the items.  `recalled` are the items
    that the worker was told to leave out, and that settle when it has said whether that was in time.  `answers` is the
    answer of a worker whose device is lost: its failures hold only for items that get no other try.

    `began` is when a worker of a waiting stage may have begun it, `cancelled` whether that was told to cancel it, and
    `seat` the number under which the queue knows that worker, or the place in it.  `answered` says that the worker
    holds it no more.
    """

    __slots__ = (
        "answered",
        "answers",
        "back",
        "began",
        "cancelled",
        "frame_id",
        "holder",
        "items",
        "moment",
        "recalled",
        "seat",
        "unsettled",
        "views",
    )

    def __init__(
        self, frame_id: int, items: list[Item], holder: FrameHolder, back: int = 0, moment: float = 0.0
    ) -> None:
        self.frame_id = frame_id
        self.items = items
        self.holder = holder
        self.unsettled = len(items)
        self.back = back
        self.moment = moment
        self.views: Sequence[Payload] = ()
        self.recalled: Sequence[Item] = ()
        self.answers: Any = None
        self.seat = 0
        self.began = 0.0
        self.cancelled = False
        self.answered = False

    @property
    def running(self) -> bool:
        """Whether the worker is at work on it, as far as is known here: it is among the oldest `concurrency` frames."""
        if self.answered:
            return False
        frames = self.holder.frames
        if not frames:
            return False
        if frames[0] is self:
            return True
        most = self.holder.concurrency
        return most > 1 and self in islice(frames, 1, most)

    def settled(self) -> None:
        """Count one more of its items as settled, and tell its holder if nobody waits for it now."""
        self.unsettled -= 1
        if self.unsettled == 0 and not self.answered:
            if self.running:
                self.holder.deserted(self)
            elif self.sent_ahead:
                self.holder.recall(self, range(len(self.items)))

    @property
    def sent_ahead(self) -> bool:
        """Whether the worker holds it behind another: it has not begun, as far as is known here."""
        return self in self.holder.frames and not self.running


def has_begun(item: Item) -> bool:
    """Whether a worker has been at work on an unsettled item, in this stage or an earlier one, as far as is known here.

    One in a frame that was sent ahead is not begun.
    """
    frame: SentFrame | None = item.frame
    return item.stage > 0 or item.suspect or (frame is not None and frame.running)


def may_have_run(item: Item) -> bool:
    """Whether to send an unsettled item again may be to do work twice: it has begun, or was taken from who ran it."""
    return item.ran or has_begun(item)


class FrameHolder:
    """What dispatch knows of a worker: whether it can be given a frame, and those it holds, oldest first.

    It is a class to inherit from, and no Protocol: `least_busy` of four workers then costs 18 ns instead of 94.  So
    compiled code takes no other class: a test makes a `FrameHolder`, and no fake.
    """

    def __init__(self, concurrency: int = 1) -> None:
        self.ready = False
        self.frames: deque[SentFrame] = deque()
        self.concurrency = concurrency
        """How many of its frames it runs at once: the oldest ones."""
        self.alone = False
        """Whether it holds a suspect, beside which it is given nothing."""

    def deserted(self, sent: SentFrame) -> None:
        """The last item of `sent`, which runs, was settled without its answer: it expired, or its caller left."""

    def recall(self, sent: SentFrame, places: Sequence[int]) -> None:
        """Leave out the items at `places` of a frame that was sent ahead, if it has not begun."""


Holder = TypeVar("Holder", bound=FrameHolder)


def may_hold_another(workers: list[Holder], most: int | None) -> bool:
    """Whether `workers` together may be given another batch: while they hold fewer than `most`, None being no bound."""
    if most is None:
        return True
    held = 0
    for worker in workers:
        for frame in worker.frames:
            if frame.items:
                held += 1
    return held < most


def least_busy(workers: list[Holder], window: int, most: int | None = None) -> Holder | None:
    """The ready worker that has the fewest frames, if those are fewer than `window`, else None.

    Of several such workers it is the first.  While all together hold `most` batches it is None.
    """
    if not may_hold_another(workers, most):
        return None
    best, fewest = None, window
    for worker in workers:
        held = len(worker.frames)
        if worker.ready and held < fewest:
            if held == 0:
                return worker
            best, fewest = worker, held
    return best


def count_taking(workers: list[Holder]) -> int:
    """How many batches may run at once: of workers that are ready, and at no examination or check."""
    taking = 0
    for worker in workers:
        if worker.ready and (not worker.frames or worker.concurrency > 1 or worker.frames[0].items):
            taking += worker.concurrency
    return taking


def room_after(
    queued: int, queued_bytes: int, on_the_way: int, *, max_queued: int | None, max_bytes: int
) -> int | None:
    """How many items a stage may send on: None is any number, 0 is none now.

    Args:
        queued: the items in the next stage's queue.
        queued_bytes: their bytes.
        on_the_way: the items that the stage's workers hold, and that may come to that queue any time.
        max_queued: how many items that queue may have; None is any number.
        max_bytes: the bytes beyond which that queue takes no more.
    """
    # One batch always passes: an empty queue takes whatever comes, so a large result cannot block for ever.
    if queued and queued_bytes > max_bytes:
        return 0
    return None if max_queued is None else max(0, max_queued - queued - on_the_way)


def room_for_answers(answers: int, *, max_bytes: int) -> int | None:
    """How many items the last stage may be sent: None is any number, 0 is none now.

    `answers` are the bytes of finished answers that no client has taken, `max_bytes` those beyond which no more are
    made.  A single answer may take more: it is made while there are few.
    """
    return 0 if answers > max_bytes else None


def room_for_back(queued: int, queued_bytes: int, *, most: int, max_bytes: int) -> bool:
    """Whether a stage may send on items of BACK.

    Args:
        queued: the items of BACK in the next stage's queue.
        queued_bytes: their bytes.
        most: how many of them keep the next stage busy.
        max_bytes: the bytes beyond which that queue takes no more of them.
    """
    return queued < most and (queued == 0 or queued_bytes <= max_bytes)


class Reclaimed:
    """What becomes of the unsettled items of a worker that ended."""

    __slots__ = ("lost", "recalled", "returned", "suspects")

    def __init__(self) -> None:
        self.returned: list[Item] = []
        """They go back to the queue as they are, in the order in which they were sent."""
        self.suspects: list[Item] = []
        """They become suspects, and run once more, alone."""
        self.lost: list[Item] = []
        """They get no other try."""
        self.recalled: list[Item] = []
        """They were taken back, and it was in time."""


def reclaim(frames: Sequence[SentFrame], *, innocent: bool, retry: bool, concurrency: int = 1) -> Reclaimed:
    """Sort the items of a worker that ended and held `frames`, oldest first, and ran `concurrency` of them at once.

    `innocent` says that it was ended by us, and nothing it held can have killed it.  `retry` says whether an item whose
    worker died runs once more.  Items that may have run, which are those of the oldest frames, are marked so.
    """
    found = Reclaimed()
    for position, frame in enumerate(frames):
        for item in frame.items:
            if item.state is SETTLED:
                continue
            behind = position >= concurrency
            item.ran = item.ran or not behind
            if item in frame.recalled and (behind or innocent):
                found.recalled.append(item)
            elif behind or innocent:
                found.returned.append(item)
            elif retry and not item.suspect:
                found.suspects.append(item)
            else:
                found.lost.append(item)
    return found
