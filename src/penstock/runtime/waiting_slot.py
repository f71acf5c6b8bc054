"""The slot of a worker of a waiting stage: it runs several frames at once, and answers them in any order.

Contract
--------
* The oldest `concurrency` frames count as running.  The others are behind: they begin, as far as is known here, when
  one before them is answered.
* A frame that runs, and of which the last item is settled without its answer, is cancelled at once.  The worker answers
  it all the same.  From the cancel on it is deserted, as a batch of a plain stage.
* The worker itself cancels a batch after the stage's `timeout`.  It is killed where that batch is not answered
  `UNWIND_SECONDS` later.
* Where `predict` is plain, batches wait for their turn in the worker's main thread, and that is not their time.  When a
  turn begins is not known here, but no later than when the batch before it is answered.
* A suspect is alone: its worker is given nothing beside it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

from penstock.core.abandonment import WARNING_SECONDS
from penstock.core.dispatch import SentFrame
from penstock.runtime.worker_slot import AT_WORK, WorkerSlot
from penstock.transport.framing import Kind, encode_slab_note

UNWIND_SECONDS: Final = 5.0
"""How long a batch may take to end that was cancelled for its time: to close connections takes a round trip or two."""


class WaitingSlot(WorkerSlot):
    """A worker of a waiting stage."""

    def _begin_life(self) -> None:
        super()._begin_life()
        self.alone = False
        self._free = [*reversed(self.seats())]
        """The seats that no batch has; the next one is given the last of them."""
        self._warned_at = -math.inf
        """When the log has told last of a batch that goes on after its cancel."""

    # -- frames -------------------------------------------------------------------------------------------------

    def send(self, sent: SentFrame, buffers: list[Any], now: float) -> None:
        assert self._incarnation is not None
        if sent.items:
            self._free.pop()
            self.alone = sent.items[0].suspect
        self.frames.append(sent)
        if len(self.frames) <= self.concurrency:
            self._begin(sent, now)
        self._incarnation.send(buffers)

    def _begin(self, sent: SentFrame, now: float) -> None:
        sent.began = now
        if sent.items:
            self._watch_batch(sent, now)

    def _held(self, frame_id: int) -> SentFrame | None:
        for sent in self.frames:
            if sent.frame_id == frame_id:
                return sent
        return None

    def _finish(self, sent: SentFrame) -> float:
        ran = sent.running
        self.frames.remove(sent)
        sent.answered = True
        now = self.running_since = self._now()
        if sent.items:
            self._free.append(sent.seat)
            self.alone = False
            for timers in (self._hangs, self._deserted):
                timer = timers.pop(sent.frame_id, None)
                if timer is not None:
                    timer.cancel()
        if ran and len(self.frames) >= self.concurrency:
            self._begin(self.frames[self.concurrency - 1], now)
        return now

    @property
    def busy_seconds(self) -> float | None:
        return self._now() - self.frames[0].began if self.frames else None

    # -- what runs too long -------------------------------------------------------------------------------------

    def deserted(self, sent: SentFrame) -> None:
        if self._state in AT_WORK:
            sent.cancelled = True
            assert self._incarnation is not None
            self._incarnation.send([encode_slab_note(Kind.CANCEL, b"", sent.frame_id)])
            super().deserted(sent)

    def _may_warn(self) -> bool:
        """Whether the log is to tell: where one batch goes on all may, and the stacks are those of the worker."""
        now = self._now()
        if now - self._warned_at < WARNING_SECONDS:
            return False
        self._warned_at = now
        return True

    @property
    def _time_limit(self) -> float | None:
        return None if self._timeout is None else self._timeout + UNWIND_SECONDS

    def _hung(self, sent: SentFrame, began: float, limit: float) -> None:
        turn = began
        if self._timeout is not None and self._owner.in_turn:
            # Not later than if all that were in progress with it had taken all of their time.
            latest = sent.began + (self.concurrency - 1) * self._timeout
            turn = max(began, min(self.running_since, latest))
        if turn > began:
            left = max(0.0, turn + limit - self._now())
            self._hangs[sent.frame_id] = self._clock.call_later(left, partial(self._hung, sent, turn, limit))
        else:
            super()._hung(sent, began, limit)

    def _overdue_words(self) -> str:
        return f"{super()._overdue_words()}, and kept running for {UNWIND_SECONDS:g} s after it was cancelled"

    # -- who takes the next batch ---------------------------------------------------------------------------------

    def free_seat(self) -> int:
        return self._free[-1]

    def seats(self) -> range:
        window = self._owner.window
        return range(self.index * window, (self.index + 1) * window)
