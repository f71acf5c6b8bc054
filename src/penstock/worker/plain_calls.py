"""Run the plain functions of a waiting stage in the main thread of its worker, one after the other.

Frameworks bind what they load to the thread that loads it.  That is why `setup`, `predict`, `teardown` and `health`,
where they are plain, run in one thread, which is not that of the event loop.

Contract
--------
* Calls run in the order in which they were asked for, never two at once, each in a copy of its task's context.
* A task that is cancelled before its call has begun ends at once, and the call is never made.  After that it waits
  until the call has ended: nobody can interrupt it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeAlias

from penstock.worker.problems import USER_ERRORS

Outcome: TypeAlias = tuple[Any, BaseException | None]
"""The result of a call, and its error, which is not raised again: a coroutine cannot raise StopIteration."""


class _Call:
    """A call, from the moment when a task asks for it until its outcome is there."""

    __slots__ = ("_arguments", "_asked", "_began", "_claim", "_context", "_function", "_loop", "ended", "outcome")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._function = function
        self._arguments = arguments
        self._context = copy_context()
        self._claim = threading.Lock()
        self._asked = time.monotonic()
        self._began: float | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.outcome: Outcome | None = None

    def claim(self) -> bool:
        """Whether the caller is the first: the main thread, which then makes the call, or the task that gives it up."""
        return self._claim.acquire(blocking=False)

    def run(self) -> None:
        """Make the call, in the main thread."""
        if not self.claim():
            return
        self._began = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker ends, and nobody waits
            # No name for the outcome: the traceback of an error leads to this frame, and the frame would to the error.
            self._loop.call_soon_threadsafe(self._end, self._made())

    def waited(self) -> float:
        """How many seconds it has waited for the main thread."""
        began = self._began
        return (time.monotonic() if began is None else began) - self._asked

    def _made(self) -> Outcome:
        try:
            return self._context.run(self._function, *self._arguments), None
        except USER_ERRORS as error:
            return None, error
        finally:
            self._arguments = ()

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if not self.ended.done():
            self.ended.set_result(None)

    def renew(self) -> asyncio.Future[None]:
        """Another future to wait for, where the first was cancelled with its task."""
        self.ended = self._loop.create_future()
        return self.ended


class Waits:
    """How long the calls of one task have waited for the main thread, in all."""

    __slots__ = ("_before", "_call")

    def __init__(self) -> None:
        self._before = 0.0
        self._call: _Call | None = None
        """The call that waits or runs."""

    def begin(self, call: _Call) -> None:
        """Count the wait of `call` too."""
        self._call = call

    def end(self) -> None:
        """Note that the call has ended."""
        self._before, self._call = self.seconds(), None

    def seconds(self) -> float:
        """How long it was until now."""
        call = self._call
        return self._before if call is None else self._before + call.waited()


class PlainCalls:
    """The calls that wait for the main thread, which serves them until `stop`."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()

    def serve(self) -> None:
        """Make each call that is asked for; returns after those before `stop`.

        Raises:
            BrokenPipeError: a call has come back in a child that it has forked, where no event loop runs.
        """
        process = os.getpid()
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # and with it its outcome
            if os.getpid() != process:
                raise BrokenPipeError(
                    "a child process forked by the stage returned into the worker loop; it must exit instead"
                )

    def stop(self) -> None:
        """Have `serve` return."""
        self._calls.put(None)

    async def make(self, function: Callable[..., Any], *arguments: Any, waits: Waits | None = None) -> Outcome:
        """The outcome of a call in the main thread; its wait is counted in `waits`.

        Raises:
            CancelledError: the task was cancelled before the call had begun.
        """
        call = _Call(function, arguments)
        if waits is not None:
            waits.begin(call)
        self._calls.put(call)
        try:
            return await self._outcome(call)
        finally:
            if waits is not None:
                waits.end()

    async def _outcome(self, call: _Call) -> Outcome:
        waited = call.ended
        while True:
            try:
                await waited
            except asyncio.CancelledError:
                if call.outcome is None and call.claim():
                    raise
            outcome, call.outcome = call.outcome, None  # its traceback leads to the call
            if outcome is not None:
                return outcome
            waited = call.renew()
