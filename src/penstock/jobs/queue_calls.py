"""Call a queue from an event loop: each call in one of a few threads, and no more calls than may wait for them.

Contract
--------
* A call that finds no place is refused at once, as `Overloaded`.
* A store that does not answer holds up the calls that were made of it by then, and no others: for a second afterwards
  each call fails with what the last one said.
* A queue that could not be reached at the start is connected to by a later call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from penstock.errors import Overloaded, StoreUnavailable
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.store import StoreFull
from penstock.jobs.submitting import JobQueue

T = TypeVar("T")

THREADS: Final = 8
MOST_CALLS: Final = 256
"""The most calls that run or wait for a thread.  With inputs as large as they may be by default that is 64 MiB."""
REST_SECONDS: Final = 1.0
"""For how long a store that did not answer is not asked again."""


class QueueCalls:
    """The calls of one queue.

    Args:
        connect: connects to the queue; it may block.
        now: a clock that only goes forward, in seconds.
        threads: makes the threads.
    """

    def __init__(
        self,
        connect: Callable[[], JobQueue],
        *,
        now: Callable[[], float],
        threads: Callable[[int, str], CallThreads] = CallThreads,
    ) -> None:
        self._connect = connect
        self._now = now
        self._threads = threads(THREADS, "penstock-jobs")
        self._queue: JobQueue | None = None
        self._connecting = threading.Lock()
        self._closed = False
        self._in_hand = 0
        self._down_until = 0.0
        self._why = ""

    async def run(self, call: Callable[[JobQueue], T]) -> T:
        """What `call` returns or raises.

        Raises:
            Overloaded: too many calls are in hand.
            StoreUnavailable: the store does not answer, or everything has ended.
        """
        if self._in_hand >= MOST_CALLS:
            raise Overloaded("Too many calls about jobs are in flight; try again later.")
        self._in_hand += 1
        try:
            return await self._threads.run(partial(self._made, call))
        except RuntimeError:
            if not self._closed:
                raise
            raise StoreUnavailable("the connection to the queue is closed") from None
        finally:
            self._in_hand -= 1

    async def close(self) -> None:
        """Give up the connection.  Calls that have not begun by now fail."""
        self._closed = True
        if self._queue is not None:
            await self._threads.run(self._queue.close)
        self._threads.end()

    def _made(self, call: Callable[[JobQueue], T]) -> T:
        self._check_up()
        try:
            return call(self._connected())
        except StoreFull:  # it answers, and whatever takes no room goes on
            raise
        except StoreUnavailable as error:
            self._why = str(error)
            self._down_until = self._now() + REST_SECONDS
            raise

    def _connected(self) -> JobQueue:
        with self._connecting:
            if self._closed:
                raise StoreUnavailable("the connection to the queue is closed")
            if self._queue is None:
                self._check_up()
                self._queue = self._connect()
            return self._queue

    def _check_up(self) -> None:
        if self._now() < self._down_until:
            raise StoreUnavailable(self._why)
