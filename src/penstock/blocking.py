"""A service for synchronous code: its event loop runs in a thread, and any thread may call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import uvloop

from penstock.calls import Calls, pack_item
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady, RequestError
from penstock.streaming import InHand

T = TypeVar("T")


class AwaitedService(Protocol):
    """A service whose methods are awaited: `BlockingService` awaits them in its thread."""

    @property
    def name(self) -> str:
        """The service's name, for messages."""

    async def start(self) -> None:
        """Return once the service is ready."""

    async def stop(self) -> None:
        """Drain the service and end its workers."""

    async def predict(self, x: Any, *, timeout: float | None, wait: bool) -> Any:
        """Answer one item."""

    async def predict_many(
        self, xs: Iterable[Any], *, timeout: float | None, wait: bool, return_exceptions: bool
    ) -> list[Any]:
        """Answer many items."""


class BlockingService:
    """What `Service.blocking()` gives: ``with service.blocking() as s: s.predict(3)``.

    The methods are those of `Service`, waiting in the calling thread; safe from many threads at once.

    A fork has neither the thread nor the event loop, and its copy of the lock may be held for ever.  So each method
    looks at the process first, and raises a ConfigError there; leaving the `with` block drops the copy.
    """

    def __init__(self, service: AwaitedService, calls: Calls) -> None:
        self._service = service
        self._calls = calls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._loop_lock = threading.Lock()
        """Taken to submit a coroutine to the loop, and to close the loop to callers: none is submitted after that."""
        self._process = 0
        """The process that has the thread."""

    def __enter__(self) -> Self:
        self._calls.check_process()
        if self._is_copy:
            self._drop_copy()  # of the service it has been dropped already
        if self._thread is not None:
            raise ConfigError(f"service {self._service.name!r} is started already")
        loop = uvloop.new_event_loop()
        self._loop = loop
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="penstock blocking", daemon=True)
        self._thread.start()
        try:
            self._call(self._service.start())
        except BaseException:  # also an interrupt: without `__exit__`, nobody else would end the thread
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_copy:
            self._drop_copy()
            if self._calls.is_copy:
                self._calls.disconnect()
            return
        try:
            self._call(self._service.stop())
        finally:
            self._end_loop()

    def predict(self, x: Any, *, timeout: float | None = None, wait: bool = True) -> Any:
        """See `Service.predict`."""
        return self._call(self._service.predict(x, timeout=timeout, wait=wait))

    def predict_many(
        self, xs: Iterable[Any], *, timeout: float | None = None, wait: bool = True, return_exceptions: bool = False
    ) -> list[Any]:
        """See `Service.predict_many`."""
        self._check_process()
        items = list(xs)
        return self._call(
            self._service.predict_many(items, timeout=timeout, wait=wait, return_exceptions=return_exceptions)
        )

    def stream(
        self, xs: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False
    ) -> Iterator[Any]:
        """See `Service.stream`; `xs` is read, and its items are packed, in the calling thread."""
        self._check_process()
        process = os.getpid()
        in_hand: InHand[concurrent.futures.Future[list[Any]]] = self._calls.in_hand()
        source = iter(xs)
        failure: Exception | None = None
        try:
            while True:
                while in_hand.full or (len(in_hand) and in_hand.oldest.done()):
                    yield _take_first(in_hand, return_exceptions)
                    self._check_process()  # the caller may have forked between two answers
                try:
                    packed = pack_item(next(source))
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001  # the user's code; raised after the answers to earlier items
                    failure = error
                    break
                answers = self._submit(self._calls.answers([packed], timeout, wait=True, lane=Lane.BULK))
                in_hand.put(answers, len(packed) if isinstance(packed, bytes) else 0)
            while len(in_hand):
                yield _take_first(in_hand, return_exceptions)
                self._check_process()
            if failure is not None:
                raise failure
        finally:
            if os.getpid() == process:  # else their locks may be held for ever
                for answers in in_hand:
                    answers.cancel()

    # -- after a fork -------------------------------------------------------------------------------------------------

    @property
    def _is_copy(self) -> bool:
        return self._thread is not None and self._process != os.getpid()

    def _check_process(self) -> None:
        if self._is_copy:
            raise self._calls.started_elsewhere(self._process)
        self._calls.check_process()

    def _drop_copy(self) -> None:
        self._loop = self._thread = None
        self._loop_lock = threading.Lock()

    # -- the loop's thread --------------------------------------------------------------------------------------------

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            self._check_process()
        except ConfigError:
            coroutine.close()
            raise
        with self._loop_lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise NotReady(f"service {self._service.name!r} is not started: use `with`", state=State.STOPPED)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = self._submit(coroutine)
        try:
            return future.result()
        except BaseException:
            # The coroutine's own error, or an interrupt in this thread, after which nobody waits for the coroutine.
            future.cancel()
            raise

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        # A call that was submitted just before the end is still answered or refused.
        while tasks := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _end_loop(self) -> None:
        with self._loop_lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


def _take_first(in_hand: InHand[concurrent.futures.Future[list[Any]]], return_exceptions: bool) -> Any:
    """Wait for the answer of the oldest item and remove the item; raises a failure unless `return_exceptions`."""
    (answer,) = in_hand.oldest.result()
    in_hand.drop_first()
    if isinstance(answer, RequestError) and not return_exceptions:
        raise answer
    return answer
