"""A service for synchronous code: its event loop runs in a thread, and any thread may call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from penstock.calls import Calls, Terms, is_failure
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.core.tenants import USUAL_URGENCY
from penstock.errors import ConfigError, InvalidItem, NotReady
from penstock.hosting.loop_thread import LoopThread
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

    async def predict(self, x: Any, *, timeout: float | None, wait: bool, urgency: int, tenant: str) -> Any:
        """Answer one item."""

    async def predict_many(
        self,
        xs: Iterable[Any],
        *,
        timeout: float | None,
        wait: bool,
        return_exceptions: bool,
        urgency: int,
        tenant: str,
    ) -> list[Any]:
        """Answer many items."""


def not_started(service_name: str) -> str:
    """What a call outside of the `with` block is told."""
    return f"service {service_name!r} is not started: use `with`"


class BlockingService:
    """What `Service.blocking()` gives: ``with service.blocking() as s: s.predict(3)``.

    The methods are those of `Service`, waiting in the calling thread; safe from many threads at once.

    A fork has neither the thread nor the event loop, and its copy of the lock may be held for ever.  So each method
    looks at the process first, and raises a ConfigError there; leaving the `with` block drops the copy.

    Some code of the user runs in the loop's own thread: the pickling of an item, a log handler, a finalizer.  If it
    waited there for an answer, nobody would ever get one, so each method raises a ConfigError there too.
    """

    def __init__(self, service: AwaitedService, calls: Calls, forget_engine: Callable[[], None]) -> None:
        self._service = service
        self._calls = calls
        self._forget_engine = forget_engine
        self._thread: LoopThread | None = None
        self._entering = threading.Lock()
        """Taken to make the thread: of two who enter at once, one does."""
        self._process = 0
        """The process that has the thread."""

    def __enter__(self) -> Self:
        self._calls.check_process()
        if self._is_copy:
            self._drop_copy()  # of the service it has been dropped already
        with self._entering:
            if self._thread is not None:
                raise ConfigError(f"service {self._service.name!r} is already started")
            self._process = os.getpid()
            self._thread = LoopThread(self._service.name, not_started(self._service.name))
        try:
            self._call(self._service.start())
        except BaseException:  # also an interrupt: without `__exit__`, nobody else would end the thread
            self._end_thread()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_copy:
            self._drop_copy()
            if self._calls.is_copy:
                self._forget_engine()
            return
        self._check_thread()
        thread = self._thread
        if thread is not None and sys.is_finalizing():
            self._thread = None  # the workers end with this process
            return
        try:
            self._call(self._service.stop())
        except NotReady:
            if thread is None or not thread.broken:
                raise
            _run_in_thread(self._service.stop())
        finally:
            self._end_thread()

    def __del__(self) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)
        if thread is None or self._is_copy or sys.is_finalizing():
            return
        thread.end_after(self._service.stop())  # first: the warning may be an error
        name = self._service.name
        warnings.warn(f"{name!r} was started but never stopped", ResourceWarning, source=self, stacklevel=2)

    def predict(
        self,
        x: Any,
        *,
        timeout: float | None = None,
        wait: bool = True,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> Any:
        """See `Service.predict`."""
        return self._call(self._service.predict(x, timeout=timeout, wait=wait, urgency=urgency, tenant=tenant))

    def predict_many(
        self,
        xs: Iterable[Any],
        *,
        timeout: float | None = None,
        wait: bool = True,
        return_exceptions: bool = False,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> list[Any]:
        """See `Service.predict_many`."""
        self._check_process()
        items = list(xs)
        return self._call(
            self._service.predict_many(
                items,
                timeout=timeout,
                wait=wait,
                return_exceptions=return_exceptions,
                urgency=urgency,
                tenant=tenant,
            )
        )

    def stream(
        self,
        xs: Iterable[Any],
        *,
        timeout: float | None = None,
        return_exceptions: bool = False,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> Iterator[Any]:
        """See `Service.stream`; `xs` is read, and its items are packed, in the calling thread."""
        self._check_process()
        process = os.getpid()
        terms = Terms(timeout, urgency, tenant)
        in_hand: InHand[concurrent.futures.Future[list[Any]]] = self._calls.in_hand()
        source = iter(xs)
        failure: Exception | None = None
        try:
            while True:
                while in_hand.full or (len(in_hand) and in_hand.oldest.done()):
                    yield _take_first(in_hand, return_exceptions)
                    self._check_process()  # the caller may have forked between two answers
                try:
                    packed = self._calls.pack(next(source))
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001  # the user's code; raised after the answers to earlier items
                    failure = error
                    break
                in_hand.put(
                    self._submit(self._calls.answers([packed], terms, wait=True, lane=Lane.BULK)),
                    0 if isinstance(packed, InvalidItem) else len(packed),
                )
            while len(in_hand):
                yield _take_first(in_hand, return_exceptions)
                self._check_process()
            if failure is not None:
                try:
                    raise failure
                finally:
                    failure = None  # as in `Calls.answer`
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
        self._thread = None
        self._entering = threading.Lock()

    # -- the loop's thread --------------------------------------------------------------------------------------------

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            self._check_process()
            self._check_thread()
        except ConfigError:
            coroutine.close()
            raise
        thread = self._thread
        if thread is None:
            coroutine.close()
            raise NotReady(not_started(self._service.name), state=State.STOPPED)
        return thread.submit(coroutine)

    def _check_thread(self) -> None:
        thread = self._thread
        if thread is not None and thread.is_current:
            raise ConfigError(
                f"service {self._service.name!r} was called from its own event loop thread, which would deadlock; do "
                "not call it while an item is pickled, in a log handler or in a finalizer"
            )

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = self._submit(coroutine)
        try:
            return future.result()
        except BaseException:
            # The coroutine's own error, or an interrupt in this thread, after which nobody waits for the coroutine.
            future.cancel()
            raise
        finally:
            del future  # its error leads to this frame: only the cycle collector would free both, and the item

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()


def _run_in_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run `coroutine` to its end on a loop of its own; this thread may have a loop that runs."""
    thread = threading.Thread(target=asyncio.run, args=(coroutine,), name="penstock blocking")
    thread.start()
    thread.join()


def _take_first(in_hand: InHand[concurrent.futures.Future[list[Any]]], return_exceptions: bool) -> Any:
    """Wait for the answer of the oldest item and remove the item; raises a failure unless `return_exceptions`."""
    (answer,) = in_hand.oldest.result()
    in_hand.drop_first()
    if is_failure(answer) and not return_exceptions:
        try:
            raise answer
        finally:
            del answer  # as in `Calls.answer`
    return answer
