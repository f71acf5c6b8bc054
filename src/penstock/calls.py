"""Call a service in process: pack the items, submit them to its engine, unpack their answers.

Contract
--------
* Every call is made on the event loop that runs the engine.
* A packed item shares no memory with what the caller gave: the caller may change that while the item is queued.
* Answers come in the order of the items.  An answer is a result, or the `RequestError` the item ended with.
* A caller that is cancelled, or that leaves a stream early, takes back what has no answer yet.
* The deadline of a call is counted on the clock that was handed in.
* A fork of the process that started the service has a copy of it, and of its event loop, which nobody runs there.
  Every call there is a ConfigError at once, until the copy is dropped by `disconnect`.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from functools import partial
from typing import Any, NamedTuple

from penstock.codec.text import cut_middle
from penstock.config import ServiceOptions
from penstock.core.clock import Clock
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.payload import Buffer
from penstock.core.state import State
from penstock.core.tenants import BEST_URGENCY, USUAL_URGENCY, WORST_URGENCY, check_tenant_name
from penstock.errors import ConfigError, InvalidItem, NotReady, RequestError
from penstock.hosting.servable import HostedEngine
from penstock.runtime.caller_formats import CallerFormats, Packed
from penstock.streaming import InHand
from penstock.transport.messages import MESSAGE_BYTES


def is_failure(answer: Any) -> bool:
    """Whether `answer` is the error that an item ended with; `isinstance` would run code of a result's class."""
    return issubclass(type(answer), RequestError)


class Terms(NamedTuple):
    """What a call asks for itself: see the arguments of `Service.predict`."""

    timeout: float | None = None
    urgency: int = USUAL_URGENCY
    tenant: str = ""

    def check(self) -> None:
        """Raise ConfigError for an urgency or a tenant that cannot be."""
        if (
            not isinstance(self.urgency, int)
            or isinstance(self.urgency, bool)
            or not BEST_URGENCY <= self.urgency <= WORST_URGENCY
        ):
            raise ConfigError(
                f"urgency must be a whole number from 0 (most urgent) to 7 (least urgent), got {self.urgency!r}"
            )
        check_tenant_name(self.tenant)


class Submitted(NamedTuple):
    """Items that the engine has accepted as one request, and their outcomes once it has them."""

    engine: HostedEngine
    ticket: Any
    outcomes: asyncio.Future[list[Outcome]]

    def cancel(self) -> None:
        """Take back what is not settled yet."""
        self.engine.cancel(self.ticket)


class Calls:
    """The calls of one service.  There is one for the life of the service; each start connects it to a new engine."""

    def __init__(self, service_name: str, options: ServiceOptions, formats: CallerFormats, clock: Clock) -> None:
        self._service_name = service_name
        self._options = options
        self._formats = formats
        self.clock = clock
        self._now = clock.now
        self._engine: HostedEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        """The process that started the service."""

    def pack(self, x: Any) -> Packed:
        """Copy an item into one payload, or say why that cannot be; in whatever thread has the item."""
        return self._formats.pack(x, self._lease)

    def _lease(self, nbytes: int) -> memoryview | None:
        engine = self._engine
        return None if engine is None else engine.piece(nbytes)

    @property
    def is_copy(self) -> bool:
        """Whether another process started the service, and this one is a fork of it."""
        if self._process == os.getpid() or self._engine is None:
            return False
        return self._engine.state is not State.STOPPED  # what was stopped before the fork runs nowhere

    def check_process(self) -> None:
        """Do nothing, or raise ConfigError in a fork of the process that started the service; takes no lock."""
        if self.is_copy:
            raise self.started_elsewhere(self._process)

    def started_elsewhere(self, process: int) -> ConfigError:
        """The error of a call in another process than `process`."""
        return ConfigError(
            f"service {self._service_name!r} was started in process {process}, before a fork; start it after the fork"
        )

    def check_loop(self) -> None:
        """Do nothing, or raise ConfigError if the service was not stopped and its event loop is closed."""
        if self._loop is not None and self._loop.is_closed():
            raise ConfigError(
                f"service {self._service_name!r} was started on an event loop that is closed; call stop() and start "
                "it on the running loop"
            )

    def connect(self, engine: HostedEngine, loop: asyncio.AbstractEventLoop) -> None:
        """Send calls to `engine` from now on; it runs on `loop`."""
        self._engine = engine
        self._loop = loop
        self._process = os.getpid()

    def disconnect(self) -> None:
        """Refuse calls as before the first start: this process drops its copy."""
        self._engine = self._loop = None

    def in_hand(self) -> InHand[Any]:
        """An `InHand` for a new stream, with nothing in it yet."""
        return InHand.share_of(self._options)

    @staticmethod
    def terms(timeout: float | None, urgency: int, tenant: str) -> Terms:
        """What a call asks for itself."""
        return Terms(timeout, urgency, tenant)

    async def answer(self, x: Any, terms: Terms, *, wait: bool) -> Any:
        """The result of one item.

        Raises:
            RequestError: there is no result, and its class says why.
        """
        (answer,) = await self.answers([self.pack(x)], terms, wait=wait, lane=Lane.SINGLE)
        if is_failure(answer):
            try:
                raise answer
            finally:
                del answer  # it leads to this frame: only the cycle collector would free both, and the item
        return answer

    async def answer_many(self, xs: Iterable[Any], terms: Terms, *, wait: bool, return_exceptions: bool) -> list[Any]:
        """The answers to items that are all at hand; the first failure is raised, unless `return_exceptions`."""
        self.check_process()
        answers = await self.answers([self.pack(x) for x in xs], terms, wait=wait, lane=Lane.BULK)
        if not return_exceptions:
            for answer in answers:
                if is_failure(answer):
                    try:
                        raise answer
                    finally:
                        del answer, answers  # as in `answer`
        return answers

    async def answers(self, packed: list[Packed], terms: Terms, *, wait: bool, lane: Lane) -> list[Any]:
        """The answers to items that were packed already."""
        payloads = [payload for payload in packed if not isinstance(payload, InvalidItem)]
        invalid = [item if isinstance(item, InvalidItem) else None for item in packed]
        del packed  # the engine has the payloads, and lets go of each when a stage is done with it
        submitted = self._submit(payloads, terms, wait=wait, lane=lane)
        try:
            outcomes = iter(await submitted.outcomes)
        except asyncio.CancelledError:
            submitted.cancel()
            raise
        return [self._unpack(next(outcomes)) if item is None else item for item in invalid]

    async def stream(
        self,
        xs: Iterable[Any] | AsyncIterable[Any],
        terms: Terms,
        *,
        return_exceptions: bool,
        owner: object = None,  # noqa: ARG002  # see below
    ) -> AsyncIterator[Any]:
        """The answers to an iterable of any length, which is read as there is room.

        `owner` is kept alive as long as the stream: the service, whose workers end with it.
        """
        self.check_process()
        process = os.getpid()
        in_hand: InHand[Submitted | InvalidItem] = self.in_hand()
        reader = asyncio.get_running_loop().create_task(self._read(xs, in_hand, terms))
        try:
            while (oldest := await in_hand.first()) is not None:
                answer = oldest if isinstance(oldest, InvalidItem) else self._unpack((await oldest.outcomes)[0])
                in_hand.drop_first()
                del oldest  # it has the bytes of the result, and the caller may take its time with the answer
                if is_failure(answer) and not return_exceptions:
                    try:
                        raise answer
                    finally:
                        del answer  # as in `answer`
                yield answer
                if os.getpid() != process:  # the caller has forked between two answers
                    raise self.started_elsewhere(process)
            await reader
        finally:
            if os.getpid() == process:  # in a fork, the reader is a task of a loop that does not run there
                reader.cancel()
                await asyncio.wait((reader,))
                if not reader.cancelled():
                    reader.exception()  # marks it as seen: asyncio would log an error for a caller that left early
                for item in in_hand:
                    if isinstance(item, Submitted):
                        item.cancel()

    async def _read(
        self,
        xs: Iterable[Any] | AsyncIterable[Any],
        in_hand: InHand[Submitted | InvalidItem],
        terms: Terms,
    ) -> None:
        """Submit the items of `xs` as there is room.  `in_hand` is also ended where reading `xs` fails."""
        try:
            await in_hand.room()
            if isinstance(xs, AsyncIterable):
                async for x in xs:
                    self._put(x, in_hand, terms)
                    await in_hand.room()
            else:
                for x in xs:
                    self._put(x, in_hand, terms)
                    await in_hand.room()
        finally:
            in_hand.end()

    def _put(self, x: Any, in_hand: InHand[Submitted | InvalidItem], terms: Terms) -> None:
        packed = self.pack(x)
        if isinstance(packed, InvalidItem):
            in_hand.put(packed, 0)
        else:
            in_hand.put(self._submit([packed], terms, wait=True, lane=Lane.BULK), len(packed))

    def _submit(self, payloads: list[Buffer], terms: Terms, *, wait: bool, lane: Lane) -> Submitted:
        self.check_process()
        terms.check()
        loop = asyncio.get_running_loop()
        engine = self._engine
        if engine is None:
            raise NotReady(f"service {self._service_name!r} was never started", state=State.STOPPED)
        if loop is not self._loop:
            if engine.state is State.STOPPED:
                raise NotReady(f"service {self._service_name!r} has stopped", state=State.STOPPED)
            self.check_loop()
            raise ConfigError(
                f"service {self._service_name!r} runs on another event loop: "
                "call it there, or use blocking() from threads"
            )
        longest, timeout = self._options.timeout, terms.timeout
        deadline = self._now() + (longest if timeout is None else min(_read_timeout(timeout), longest))
        outcomes: asyncio.Future[list[Outcome]] = loop.create_future()
        ticket = engine.submit(
            payloads,
            self._formats.codec_in,
            self._formats.codec_out,
            deadline,
            partial(_resolve, outcomes),
            lane=lane,
            wait=wait,
            urgency=terms.urgency,
            tenant=terms.tenant,
        )
        return Submitted(engine, ticket, outcomes)

    def _unpack(self, outcome: Outcome) -> Any:
        match outcome:
            case Result(payload):
                return self._formats.unpack(payload)
            case Failure(error):
                return error


def _read_timeout(timeout: Any) -> float:
    """The seconds of a call's `timeout`; ConfigError for what is no number of seconds."""
    try:
        # This takes the numbers of every library, and no text: `float` reads "5" too.
        if not math.isnan(timeout):
            return float(timeout)
        got = "nan"
    except OverflowError:  # `repr` fails too for integers of some thousand digits
        got = "an integer too large for a float"
    except (TypeError, ValueError):  # ValueError: a Decimal that signals, an array of several
        got = cut_middle(repr(timeout), MESSAGE_BYTES)
    raise ConfigError(f"timeout must be a number of seconds, got {got}")


def _resolve(waiting: asyncio.Future[list[Outcome]], outcomes: list[Outcome]) -> None:
    """Hand over the outcomes.  A caller that was cancelled has a future that is done already."""
    if not waiting.done():
        waiting.set_result(outcomes)
