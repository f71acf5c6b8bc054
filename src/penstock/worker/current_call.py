"""Which requests the stage works for at this moment, and how much time each has left.

It is what `penstock.current_requests` and `WorkerInfo.remaining` tell.  The runner notes it before each call of user
code, which costs two assignments.  Ids and times are made of it where somebody asks.

The worker of a waiting stage makes many calls at once.  Each has its own `CurrentCall`, which a variable of the context
holds: a task that the stage starts inherits it, and so does a thread by `asyncio.to_thread`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from penstock.core.request_ids import split_ids
from penstock.transport.framing import Frame


class CurrentCall:
    """The call of user code that one worker makes now.

    Threads that the stage has started may ask for `remaining`; only the worker's own thread asks for `ids`.
    """

    __slots__ = ("_ids", "_ids_of", "_now", "frame", "places")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.frame: Frame | None = None
        """The batch in hand; None between two, and while examples run."""
        self.places: list[int] = []
        """The places in the batch of the items that the call got; of examples, which are in no batch, their numbers."""
        self._ids_of: Frame | None = None
        self._ids: list[str] = []
        """The ids of all items of `_ids_of`: a call may log many lines."""

    def ids(self) -> tuple[str, ...]:
        """The ids of the items that the call got, in order."""
        frame = self.frame
        if frame is None:
            return ()
        if self._ids_of is not frame:
            self._ids = split_ids(frame.request_ids(), len(frame.ids))
            self._ids_of = frame
        return tuple([self._ids[place] for place in self.places])

    def remaining(self) -> list[float]:
        """The seconds that each of the items has left that the call got, in order.

        0.0 where the deadline has passed, inf where there is none: examples have none.
        """
        frame, places = self.frame, self.places
        if frame is None:
            return [math.inf] * len(places)
        # Not what was left when the frame was sent: it may have lain in the channel behind another.
        passed = self._now() - frame.seconds
        return [max(0.0, frame.remaining[place] - passed) for place in places]

    def over(self) -> None:
        """Note that the batch, or the example, is done."""
        self.places = []
        self.frame = self._ids_of = None


CALL_OF_CONTEXT: Final[ContextVar[CurrentCall | None]] = ContextVar("penstock_current_call", default=None)
"""The call that a task of a waiting stage makes, or that was made for it in the main thread."""


class CallOfContext(CurrentCall):
    """The calls of a waiting stage: it answers for the one of the context that asks, and each is over by itself."""

    __slots__ = ()

    def ids(self) -> tuple[str, ...]:
        call = CALL_OF_CONTEXT.get()
        return () if call is None else call.ids()

    def remaining(self) -> list[float]:
        call = CALL_OF_CONTEXT.get()
        return [] if call is None else call.remaining()


_threads = threading.local()


def announce(call: CurrentCall, service: str, stage: str, worker: int) -> None:
    """Have `current_requests` tell of `call` in this thread, which is worker `worker` of that stage."""
    _threads.call = call
    _threads.marks = {"service": service, "stage": stage, "worker": worker}


def current_marks() -> dict[str, Any]:
    """What a log record of this thread is marked with; nothing where it is no worker's."""
    # Not `getattr` with a default, which costs 0.3 us more: a server asks for each line of its access log.
    marks: dict[str, Any] | None = _threads.__dict__.get("marks")
    return {} if marks is None else {**marks, "request_ids": current_requests()}


def current_requests() -> tuple[str, ...]:
    """The ids of the requests whose items this call of the stage got, in the order of the items.

    Call it in `predict`, `preprocess` or `postprocess`, or in what they call.  The id is that of the answer's
    ``X-Request-ID``; for the fourth item of a client batch it is ``ID:3``, and "" for an item of a call in process.  It
    is () everywhere else: in `setup`, while `examples` run, in threads that the stage has started, and outside of
    workers.

    Where the stage is async, tasks that such a call has started, and threads of `asyncio.to_thread`, tell of the same
    requests until these are answered.
    """
    call: CurrentCall | None = getattr(_threads, "call", None)
    if call is None:
        call = CALL_OF_CONTEXT.get()
    return () if call is None else call.ids()
