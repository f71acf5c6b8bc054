"""The facade people import: a description of a service, and the ways to call it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import time
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

from penstock.blocking import BlockingService
from penstock.codec import pickle_
from penstock.codec.formats import Codec
from penstock.config import ServerOptions, ServiceOptions
from penstock.core.item import Request
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.payload import join_payload
from penstock.core.state import State
from penstock.errors import ConfigError, InvalidItem, NotReady, RequestError, StageFailed
from penstock.hosting.loop_clock import LoopClock
from penstock.runtime.engine import Engine
from penstock.runtime.incarnation import ProcessIncarnation, ThreadIncarnation
from penstock.runtime.spec import StageSpec, stage
from penstock.streaming import InHand, StreamWindow
from penstock.worker.loading import GUARD, ImportState
from penstock.worker.problems import describe_error

log = logging.getLogger("penstock")

# Another loop that ends its service may itself be ended, and tells nobody: so often it is looked whether it runs.
LOOK_AGAIN = 0.5

Packed: TypeAlias = bytes | InvalidItem
"""An input on its way: its payload, or why it has none."""


class Service:
    """A sequence of stages, and the bounds they run within.

    Use it as ``async with service: await service.predict(x)``, as ``with service.blocking() as s: s.predict(x)``, or
    serve it over HTTP with `serve`, ``penstock serve`` or `penstock.asgi`.

    Args:
        stages: what `penstock.stage` made, or stage classes and functions as they are.
        name: the service's name in routes, metrics, logs and process lists.
        cpus: cores the coordinator is pinned to while the service runs.
        inline: run every worker as a thread of this process, for a debugger; env, cpus and the retry after a death
            do not apply.
        options: a `ServiceOptions`, or its fields one by one: max_queued, max_queued_bytes, timeout, validate,
            validate_results, allow_nan.

    Raises:
        ConfigError: an argument has a value it cannot have.
    """

    def __init__(
        self,
        *stages: StageSpec | type | Callable[[Any], Any],
        name: str = "service",
        cpus: Sequence[int] | None = None,
        inline: bool = False,
        options: ServiceOptions | None = None,
        **fields: Any,
    ) -> None:
        if not stages:
            raise ConfigError("a service needs at least one stage")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a service's name is a string that is not empty, got {name!r}")
        if not isinstance(inline, bool):
            raise ConfigError(f"service {name!r}: inline must be True or False, got {inline!r}")
        self.name = name
        self.stages: tuple[StageSpec, ...] = tuple(s if isinstance(s, StageSpec) else stage(s) for s in stages)
        self.inline = inline
        self.cpus = _cores(name, cpus)
        self.options = _options(name, options, fields)
        names = [spec.name for spec in self.stages]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ConfigError(f"stage names must differ: {sorted(twice)} is there twice; use stage(name=...)")
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        """The process that started it: the workers are no business of a fork of that."""

    def __repr__(self) -> str:
        return f"<Service {self.name!r}: {' -> '.join(spec.name for spec in self.stages)}; {self.state}>"

    def configured(self, **fields: Any) -> Service:
        """The same service with some of its `ServiceOptions`, or `inline`, changed; not started.

        Raises:
            ConfigError: there is no such option, or it cannot have that value.
        """
        inline = fields.pop("inline", self.inline)
        options = _options(self.name, None, {**dataclasses.asdict(self.options), **fields})
        return Service(*self.stages, name=self.name, cpus=self.cpus, inline=inline, options=options)

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine | None:
        """What runs the service; None before the first `start`."""
        return self._engine

    @property
    def state(self) -> State:
        """What the service is doing."""
        return self._engine.state if self._engine is not None else State.STOPPED

    async def start(self) -> None:
        """Start the workers on the running event loop; returns when they are ready.

        Raises:
            ConfigError: it runs already, or a stage cannot be run as described.
            StartFailed: a stage could not be set up; carries the remote traceback.
        """
        if ImportState.importing:
            raise ConfigError(
                f"service {self.name!r} was started while a worker process imports this script: "
                f"put what starts it under `{GUARD}`"
            )
        if self.state is not State.STOPPED:
            raise ConfigError(f"service {self.name!r} is {self.state} already")
        if self.inline:
            _say_inline(self)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        clock = LoopClock()
        self._engine = Engine(
            self.name,
            self.stages,
            self.options,
            clock=clock,
            start_incarnation=ThreadIncarnation.start if self.inline else partial(ProcessIncarnation.start, clock),
            cpus=self.cpus,
            inline=self.inline,
        )
        await self._engine.start()

    async def stop(self, drain: float = 30.0) -> None:
        """Finish what was accepted for up to `drain` seconds (0: at once, inf: however long), then end the workers.

        Any time, any number of times, on any event loop; where the one that started it runs no more, at once.

        Raises:
            ConfigError: `drain` is no such number; nothing was stopped.
        """
        seconds = _drain_seconds(drain)
        engine, home = self._engine, self._loop
        if engine is None or home is None or engine.state is State.STOPPED:
            return
        if self._pid != os.getpid():
            self._engine = None
        elif home is asyncio.get_running_loop():
            await engine.stop(seconds)
        else:
            await _stop_elsewhere(engine, home, seconds)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and engine.state is not State.STOPPED and self._pid == os.getpid():
            warnings.warn(f"{self.name!r} was started and never stopped", ResourceWarning, source=self, stacklevel=2)
            engine.abandon()

    # -- calls ------------------------------------------------------------------------------------------------------

    async def predict(self, x: Any, *, timeout: float | None = None, wait: bool = True) -> Any:
        """Answer one item.

        Args:
            x: the first stage's input.
            timeout: seconds until the answer is worthless, waiting for room included; None or more than the service's
                own `timeout` means that one.
            wait: whether to wait for room when the service is full.

        Raises:
            RequestError: the way it ended without a result; see `penstock.errors`.
        """
        (answer,) = await self._answers([self._packed(x)], timeout, wait=wait, lane=Lane.SINGLE)
        if isinstance(answer, RequestError):
            raise answer
        return answer

    async def predict_many(
        self, xs: Iterable[Any], *, timeout: float | None = None, wait: bool = True, return_exceptions: bool = False
    ) -> list[Any]:
        """Answer many items that are there already: one acceptance, one completion, nothing held back.

        Results come in the order of `xs`.  All are waited for; then the first failure in order is raised, or with
        `return_exceptions` failures stand in their places.  Cancelling it discards what is not settled.
        """
        answers = await self._answers([self._packed(x) for x in xs], timeout, wait=wait, lane=Lane.BULK)
        if not return_exceptions:
            for answer in answers:
                if isinstance(answer, RequestError):
                    raise answer
        return answers

    async def stream(
        self,
        xs: Iterable[Any] | AsyncIterable[Any],
        *,
        timeout: float | None = None,
        return_exceptions: bool = False,
    ) -> AsyncIterator[Any]:
        """Answer an iterable of any length, in order and in bounded memory.

        At most half of `max_queued` and half of `max_queued_bytes` are in hand; a slow reader of the results slows the
        reading of `xs`.  `timeout` is for each item.  A failure is raised in its place, or given there with
        `return_exceptions`; an error of `xs` itself is raised after the answers to what came before it.
        """
        window = StreamWindow[_Pending](self._in_hand())
        feeder = asyncio.get_running_loop().create_task(self._feed(xs, window, timeout))
        try:
            while (pending := await window.first()) is not None:
                answer = self._answer((await pending.future)[0])
                window.drop_first()
                if isinstance(answer, RequestError) and not return_exceptions:
                    raise answer
                yield answer
            await feeder
        finally:
            feeder.cancel()
            await asyncio.wait((feeder,))
            if not feeder.cancelled():
                feeder.exception()  # looked at: whoever left early does not want to know of it
            for pending in window:
                if pending.request is not None:
                    self._running_engine.cancel(pending.request)

    def _in_hand(self) -> InHand[Any]:
        """Nothing yet, and room for what one stream may have in hand."""
        options = self.options
        return InHand(max(1, options.max_queued // 2), options.max_queued_bytes // 2)

    async def _feed(
        self, xs: Iterable[Any] | AsyncIterable[Any], window: StreamWindow[_Pending], timeout: float | None
    ) -> None:
        """Submit `xs` as the window has room, then end it: also where reading `xs` fails, as the reader will see."""

        def put(x: Any) -> None:
            payload = self._packed(x)
            if isinstance(payload, InvalidItem):
                window.put(_settled(Failure(payload)), 0)
            else:
                window.put(self._submit([payload], timeout, wait=True, lane=Lane.BULK), len(payload))

        try:
            await window.room()
            if isinstance(xs, AsyncIterable):
                async for x in xs:
                    put(x)
                    await window.room()
            else:
                for x in xs:
                    put(x)
                    await window.room()
        finally:
            window.end()

    @staticmethod
    def _packed(x: Any) -> Packed:
        """`x` as one payload that shares no memory with it: the caller may change `x` while it waits in a queue."""
        try:
            payload = pickle_.dumps(x)
        except ValueError as error:
            invalid = InvalidItem(str(error))
            invalid.__cause__ = error.__cause__
            return invalid
        return bytes(join_payload(payload))

    async def _answers(self, packed: list[Packed], timeout: float | None, *, wait: bool, lane: Lane) -> list[Any]:
        """What became of each, in order: its result, or the RequestError in its place."""
        payloads = [payload for payload in packed if isinstance(payload, bytes)]
        pending = self._submit(payloads, timeout, wait=wait, lane=lane)
        try:
            outcomes = iter(await pending.future)
        except asyncio.CancelledError:
            if pending.request is not None:
                self._running_engine.cancel(pending.request)
            raise
        return [p if isinstance(p, InvalidItem) else self._answer(next(outcomes)) for p in packed]

    def _answer(self, outcome: Outcome) -> Any:
        match outcome:
            case Result(payload):
                try:
                    return pickle_.loads(payload)
                except ValueError as error:
                    return _unreadable(self.stages[-1].name, error)
            case Failure(error):
                return error

    def _submit(self, payloads: list[bytes], timeout: float | None, *, wait: bool, lane: Lane) -> _Pending:
        loop = asyncio.get_running_loop()
        engine = self._running_engine
        if loop is not self._loop:
            raise ConfigError(
                f"service {self.name!r} runs on another event loop: call it there, or use blocking() from threads"
            )
        if timeout is not None and math.isnan(timeout):
            raise ConfigError("timeout must be a number of seconds, got nan")
        longest = self.options.timeout
        deadline = time.monotonic() + (longest if timeout is None else min(timeout, longest))
        future: asyncio.Future[list[Outcome]] = loop.create_future()
        request = engine.submit(
            payloads, Codec.PICKLE, Codec.PICKLE, deadline, partial(_resolve, future), lane=lane, wait=wait
        )
        return _Pending(request, future)

    @property
    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise NotReady(f"service {self.name!r} was never started", state=State.STOPPED)
        return self._engine

    # -- other doors --------------------------------------------------------------------------------------------------

    def blocking(self) -> BlockingService:
        """The service for synchronous code: ``with service.blocking() as s: s.predict(3)``; safe from many threads."""
        return BlockingService(self)

    def serve(self, *, on_ready: Callable[[list[str]], None] | None = None, **options: Any) -> None:
        """Serve over HTTP until SIGTERM or SIGINT, then drain and return.

        Args:
            on_ready: told the addresses once every stage is ready; without it a line says so on standard error.
            options: the fields of `ServerOptions`.

        Raises:
            ConfigError: an option cannot be as given.
            StartFailed: the port cannot be opened, or a stage cannot be set up.
        """
        from penstock.server.serve import serve

        try:
            chosen = ServerOptions(**options)
        except TypeError as error:
            raise ConfigError(f"serve: {error}") from None
        serve([self], chosen, on_ready)


class _Pending(NamedTuple):
    request: Request | None
    """What the engine accepted; None: nothing could be sent to it."""
    future: asyncio.Future[list[Outcome]]


def _cores(name: str, cpus: Any) -> tuple[int, ...] | None:
    if cpus is None:
        return None
    cores = tuple(cpus) if isinstance(cpus, Iterable) else ()
    if not cores or not all(isinstance(c, int) and not isinstance(c, bool) and c >= 0 for c in cores):
        raise ConfigError(f"service {name!r}: cpus takes a list of core numbers that is not empty, got {cpus!r}")
    return cores


def _options(name: str, options: Any, fields: dict[str, Any]) -> ServiceOptions:
    if options is None:
        try:
            return ServiceOptions(**fields)
        except TypeError as error:
            raise ConfigError(f"service {name!r}: {error}") from None
    if fields:
        raise ConfigError("give options= or its fields one by one, not both")
    if not isinstance(options, ServiceOptions):
        raise ConfigError(f"service {name!r}: options takes a penstock.ServiceOptions, got {options!r}")
    return options


def _drain_seconds(drain: Any) -> float:
    # Not `drain < 0`: nan is neither.
    if isinstance(drain, bool) or not isinstance(drain, (int, float)) or not drain >= 0:
        raise ConfigError(f"drain must be a number of seconds, at least 0, got {drain!r}")
    try:
        return float(drain)
    except OverflowError:  # an integer larger than any float
        return math.inf


async def _stop_elsewhere(engine: Engine, home: asyncio.AbstractEventLoop, drain: float) -> None:
    """Stop `engine` on its own loop, from another one; at once where that runs no more."""
    if home.is_running():
        ending = engine.stop(drain)
        try:
            told = asyncio.run_coroutine_threadsafe(ending, home)
        except RuntimeError:  # closed in this very moment
            ending.close()
        else:
            here = asyncio.wrap_future(told)
            while not told.done() and home.is_running():
                await asyncio.wait((here,), timeout=LOOK_AGAIN)
            if told.done() and not told.cancelled():
                told.result()
    if engine.state is not State.STOPPED:
        engine.abandon()


def _say_inline(service: Service) -> None:
    ignored = [
        word
        for word, there in (
            ("cpus", service.cpus is not None or any(s.cpus for s in service.stages)),
            ("env", any(s.env for s in service.stages)),
        )
        if there
    ]
    log.warning(
        "service %r runs inline, its workers are threads: no retry after a death%s",
        service.name,
        f", and {' and '.join(ignored)} do not apply" if ignored else "",
    )


def _resolve(future: asyncio.Future[list[Outcome]], outcomes: list[Outcome]) -> None:
    """Tell whoever waits; one who has stopped waiting is no trouble."""
    if not future.done():
        future.set_result(outcomes)


def _settled(outcome: Outcome) -> _Pending:
    future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    future.set_result([outcome])
    return _Pending(None, future)


def _unreadable(stage_name: str, error: ValueError) -> StageFailed:
    """The end of an item whose result this process cannot read."""
    problem = describe_error(error.__cause__ or error, skip_frames=1)
    return StageFailed(
        f"the result cannot be unpickled here: {problem.message}",
        stage=stage_name,
        type_name=problem.type_name,
        mro=problem.mro,
        traceback=problem.traceback,
    )
