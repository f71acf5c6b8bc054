"""An engine for calls in process: in memory, and it answers when a test says so."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.calls import Calls
from penstock.codec import pickle_
from penstock.codec.formats import Codec
from penstock.config import ServiceOptions
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Result
from penstock.core.state import State
from penstock.errors import Cancelled
from penstock.runtime.caller_formats import CallerFormats


def pytest_collection_finish() -> None:
    """Hide what pytest and all modules keep from the collector of cycles.

    A test that asks whether something is freed makes it look at every object there is.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def umask():
    """Sets the umask, until the end of the test."""
    before = os.umask(0o077)
    os.umask(before)
    yield os.umask
    os.umask(before)


class Submission:
    """One request as the engine got it."""

    def __init__(self, payloads, codecs, deadline, done, *, lane, wait) -> None:
        self.codecs = codecs
        self.items = [pickle_.loads(payload) if codecs[0] is Codec.PICKLE else payload for payload in payloads]
        self.deadline = deadline
        self.lane = lane
        self.wait = wait
        self._done = done

    def settle(self, *answers: Any) -> None:
        """Exceptions stand for failures, bytes for payloads, the rest for results; a second settling does nothing."""
        outcomes = [Failure(a) if isinstance(a, Exception) else Result(_payload(a)) for a in answers]
        done, self._done = self._done, lambda _: None
        done(outcomes)


def _payload(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else bytes(pickle_.dumps(answer))


class CalledEngine:
    """Implements what `Calls` and `Service` need of an engine."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.submissions: list[Submission] = []
        self.cancelled: list[Submission] = []
        self.state = State.STOPPED
        self.stopped_with: list[float] = []
        self.abandoned = 0
        self.answer: Callable[[Any], Any] | None = None
        """Answers each item at once, where a test sets it."""

    async def start(self) -> None:
        self.state = State.READY

    async def stop(self, drain: float) -> None:
        self.stopped_with.append(drain)
        self.state = State.STOPPED

    def abandon(self) -> None:
        self.abandoned += 1
        self.state = State.STOPPED

    def submit(
        self, payloads, codec_in, codec_out, deadline, done, *, lane=Lane.SINGLE, wait=False, urgency=3, tenant=""
    ):
        submission = Submission(payloads, (codec_in, codec_out), deadline, done, lane=lane, wait=wait)
        submission.urgency, submission.tenant = urgency, tenant
        self.submissions.append(submission)
        if self.answer is not None:
            submission.settle(*(self.answer(item) for item in submission.items))
        return submission

    def cancel(self, submission: Submission) -> None:
        self.cancelled.append(submission)
        submission.settle(*(Cancelled() for _ in submission.items))


NOON = 1000.0
"""The time at which every test of calls begins, and ends."""


@pytest.fixture
def engine() -> CalledEngine:
    return CalledEngine()


@pytest.fixture
def make_engine() -> type[CalledEngine]:
    return CalledEngine


@pytest.fixture
def make_calls():
    """Calls to an engine, connected to the running loop where there is one."""

    def make(
        engine: CalledEngine | None,
        loop: asyncio.AbstractEventLoop | None = None,
        formats: CallerFormats | None = None,
        **options: Any,
    ) -> Calls:
        found = formats or CallerFormats(Codec.PICKLE, Codec.PICKLE, "last")
        calls = Calls("here", ServiceOptions(**options), found, SimpleNamespace(now=lambda: NOON))
        if engine is not None:
            calls.connect(engine, loop or asyncio.get_running_loop())
        return calls

    return make
