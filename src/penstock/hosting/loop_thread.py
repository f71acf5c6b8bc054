"""A thread that runs an event loop for other threads: for synchronous callers, and for synchronous servers.

Contract
--------
* Any thread may give the loop something to do.  It is done in the order in which it was given.
* Nobody who waits for an answer waits for ever: whatever ends the thread, each of them is told, with NotReady.
* What was given before the end is still done, but what nobody waits for is not where an error has ended the loop.
* The thread lives until `end`, or as long as the process: workers may be tied to it.
* It is a thread of the system.  Where a library has replaced those, as gevent does, there is none: a ConfigError.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine
from types import BuiltinFunctionType
from typing import Any, TypeVar

import uvloop

from penstock.core.state import State
from penstock.errors import ConfigError, NotReady

T = TypeVar("T")


def check_threads() -> None:
    """ConfigError where threads are not those of the system, so that a loop in one would keep all others waiting.

    What gevent and eventlet put in the place of this function is written in Python.
    """
    if not isinstance(threading.get_ident, BuiltinFunctionType):
        raise ConfigError(
            "the threads of this process are patched, as by gevent or eventlet: an event loop in one "
            "of them would block all others. Use native threads, as `gunicorn -k gthread` does"
        )


class LoopThread:
    """A daemon thread that runs an event loop, until `end`.

    It knows nothing of the service that it is for, which can so be collected while the thread runs.
    """

    def __init__(self, service_name: str, ended: str) -> None:
        """Start the thread.  `ended` is what those are told who come after its end."""
        check_threads()
        self._service_name = service_name
        self._ended = ended
        self._loop = uvloop.new_event_loop()
        # A signal handler or a finalizer may call in the middle of a call of the same thread.
        self._lock = threading.RLock()
        """Taken to give the loop something, and to refuse what comes after: nothing is given to it after that."""
        self._refusal = ""
        """Why nothing is taken any more."""
        self.broken = False
        """Whether an error has ended the thread."""
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._stopped = False
        """Whether the loop has been asked to end; only its own thread says so."""
        self._thread = threading.Thread(target=self._run, name="penstock loop", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # there can be no more threads
            self._loop.close()
            raise

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks: whoever waits here, waits for ever."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `coroutine` on the loop; NotReady where nobody would run it."""
        with self._lock:
            refusal = self._why_not()
            if not refusal:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
                self._pending.add(future)
        if refusal:
            coroutine.close()
            raise NotReady(refusal, state=State.STOPPED)
        future.add_done_callback(self._pending.discard)
        return future

    def ask(self, begin: Callable[[concurrent.futures.Future[T]], object]) -> concurrent.futures.Future[T]:
        """Call `begin` on the loop, which answers the future that it is given, now or later.

        As `submit`, without a task.  What `begin` raises is the answer; NotReady where nobody would call it.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            refusal = self._why_not()
            if not refusal:
                self._loop.call_soon_threadsafe(_begin, begin, future)
                self._pending.add(future)
        if refusal:
            raise NotReady(refusal, state=State.STOPPED)
        future.add_done_callback(self._pending.discard)
        return future

    def tell(self, call: Callable[[], object]) -> None:
        """Call `call` on the loop, in the order in which it was told and asked; NotReady where nobody would."""
        with self._lock:
            refusal = self._why_not()
            if not refusal:
                self._loop.call_soon_threadsafe(call)
        if refusal:
            raise NotReady(refusal, state=State.STOPPED)

    def _why_not(self) -> str:
        # At the interpreter's end, daemon threads do not run any more.
        return self._refusal if not sys.is_finalizing() else self._words("the interpreter is shutting down")

    def end(self) -> None:
        """Take no further coroutine, finish those that were taken, and wait for the end of the thread."""
        self._begin_end()
        if not sys.is_finalizing():
            self._thread.join()

    def end_after(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run `coroutine` and then end, without waiting for either."""
        try:
            future = self.submit(coroutine)
        except NotReady:
            return
        future.add_done_callback(lambda _: self._begin_end())

    def _begin_end(self) -> None:
        with self._lock:
            self._refusal = self._refusal or self._ended
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if not self._stopped:  # once: a second stop would be one of what still runs after the first
            self._stopped = True
            self._loop.stop()

    def _run(self) -> None:
        loop = self._loop
        error: BaseException | None = None
        try:
            asyncio.set_event_loop(loop)
            while not self._stopped:
                # A task that raises one of these gives it to its caller, and asyncio raises it here as well.  It is no
                # reason to leave all the others without an answer.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
            # A call that was submitted just before the end is still answered or refused.
            while tasks := asyncio.all_tasks(loop):
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_until_complete(asyncio.wait(tasks))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        except BaseException as unexpected:  # noqa: BLE001  # the top of this thread: whatever it is, callers are told
            error = unexpected
        self._refuse_all(error)

    def _refuse_all(self, error: BaseException | None) -> None:
        """Nobody runs the loop any more: refuse who waits, and who comes."""
        words = "" if error is None else self._words(f"its event loop stopped with {type(error).__name__}: {error}")
        with self._lock:
            self._refusal = refusal = words or self._refusal
            self.broken = error is not None
        for future in list(self._pending):
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was answered or cancelled meanwhile
                future.set_exception(NotReady(refusal, state=State.STOPPED))

    def _words(self, reason: str) -> str:
        return f"service {self._service_name!r}: {reason}"


def _begin(begin: Callable[[concurrent.futures.Future[T]], object], future: concurrent.futures.Future[T]) -> None:
    try:
        begin(future)
    except BaseException as error:  # noqa: BLE001  # it goes to who waits
        future.set_exception(error)
