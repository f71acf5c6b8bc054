"""Let what a task awaits be ended from outside, at a moment or at once, with an error of its own.

`asyncio.timeout` does it by the clock of the event loop; here the clock is handed in, so that a test moves it.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from types import TracebackType
from typing import Self

from penstock.core.clock import FOREVER_SECONDS, Clock, Timer
from penstock.errors import PenstockError


class Interruption:
    """``with Interruption(clock) as ended:`` raises in the task that is inside what `interrupt` is given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._timer: Timer | None = None
        self._error: PenstockError | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None, "only a task can be interrupted"
        self._cancelling = self._task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_be()
        task, self._task = self._task, None
        ended_by, self._error = self._error, None  # the error leads to whoever has this object
        if ended_by is None or task is None:
            return
        # The task may have been cancelled by somebody else besides: that goes on then.
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise ended_by from None

    def interrupt(self, error: PenstockError) -> None:
        """End what the task awaits, with `error`; harmless where it was ended before."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    def interrupt_at(self, moment: float, error: PenstockError) -> None:
        """Interrupt at `moment`, unless another moment is named before; inf is never."""
        self.let_be()
        left = max(0.0, moment - self._clock.now())
        if moment < math.inf and left <= FOREVER_SECONDS:
            self._timer = self._clock.call_later(left, partial(self.interrupt, error))

    def let_be(self) -> None:
        """Forget the moment that was named."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
