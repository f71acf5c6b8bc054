"""A service for synchronous code: the event loop lives in a thread, and any thread may call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady, RequestError

if TYPE_CHECKING:
    from penstock.service import Service
    from penstock.streaming import InHand

T = TypeVar("T")


class BlockingService:
    """What `Service.blocking()` gives: ``with service.blocking() as s: s.predict(3)``.

    The methods are those of `Service`, waiting in the calling thread; safe from many threads at once.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Lock()
        """Held while a call is handed to the loop, and while the loop is taken away from callers."""

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise ConfigError(f"service {self._service.name!r} is started already")
        loop = uvloop.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=self._run, args=(loop,), name="penstock blocking", daemon=True)
        self._thread.start()
        try:
            self._call(self._service.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._call(self._service.stop())
        finally:
            self._end()

    def predict(self, x: Any, *, timeout: float | None = None, wait: bool = True) -> Any:
        """See `Service.predict`."""
        return self._call(self._service.predict(x, timeout=timeout, wait=wait))

    def predict_many(
        self, xs: Iterable[Any], *, timeout: float | None = None, wait: bool = True, return_exceptions: bool = False
    ) -> list[Any]:
        """See `Service.predict_many`."""
        items = list(xs)
        return self._call(
            self._service.predict_many(items, timeout=timeout, wait=wait, return_exceptions=return_exceptions)
        )

    def stream(
        self, xs: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False
    ) -> Iterator[Any]:
        """See `Service.stream`; `xs` is read, and its items are packed, in the calling thread."""
        service = self._service
        in_hand: InHand[concurrent.futures.Future[list[Any]]] = service._in_hand()
        source = iter(xs)
        failure: Exception | None = None

        def answer() -> Any:
            (first,) = in_hand.oldest.result()
            in_hand.drop_first()
            if isinstance(first, RequestError) and not return_exceptions:
                raise first
            return first

        try:
            while True:
                while in_hand.full or (len(in_hand) and in_hand.oldest.done()):
                    yield answer()
                try:
                    payload = service._packed(next(source))
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001  # the user's code; told after the answers to what it gave
                    failure = error
                    break
                future = self._submit(service._answers([payload], timeout, wait=True, lane=Lane.BULK))
                in_hand.put(future, len(payload) if isinstance(payload, bytes) else 0)
            while len(in_hand):
                yield answer()
            if failure is not None:
                raise failure
        finally:
            for future in in_hand:
                future.cancel()

    # -- the loop's thread --------------------------------------------------------------------------------------------

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._ending:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise NotReady(f"service {self._service.name!r} is not started: use `with`", state=State.STOPPED)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = self._submit(coroutine)
        try:
            return future.result()
        except BaseException:
            # An interrupt in this thread: whoever asked no longer waits.
            future.cancel()
            raise

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        # Whoever called just before the end is still told how that ended.
        while tasks := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _end(self) -> None:
        with self._ending:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
