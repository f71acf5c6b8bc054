"""The facade people import: a description of a service, and the ways to call it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from penstock.blocking import BlockingService
from penstock.codec import pickle_
from penstock.codec.formats import Codec
from penstock.config import ServerOptions, ServiceOptions
from penstock.core.item import Request, payload_size
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady, RequestError
from penstock.runtime.engine import Engine
from penstock.runtime.spec import StageSpec, stage
from penstock.streaming import StreamWindow
from penstock.worker.loading import GUARD, ImportState

log = logging.getLogger("penstock")


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
        self.name = name
        self.stages: tuple[StageSpec, ...] = tuple(s if isinstance(s, StageSpec) else stage(s) for s in stages)
        self.inline = inline
        self.cpus = tuple(cpus) if cpus is not None else None
        if options is not None and fields:
            raise ConfigError("give options= or its fields one by one, not both")
        try:
            self.options = options or ServiceOptions(**fields)
        except TypeError as error:
            raise ConfigError(f"service {name!r}: {error}") from None
        names = [spec.name for spec in self.stages]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ConfigError(f"stage names must differ: {sorted(twice)} is there twice; use stage(name=...)")
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Service {self.name!r}: {' -> '.join(spec.name for spec in self.stages)}; {self.state}>"

    def configured(self, **fields: Any) -> Service:
        """The same service with some of its `ServiceOptions` changed; not started."""
        return Service(
            *self.stages,
            name=self.name,
            cpus=self.cpus,
            inline=fields.pop("inline", self.inline),
            options=dataclasses.replace(self.options, **fields),
        )

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
        self._engine = Engine(self.name, self.stages, self.options, cpus=self.cpus, inline=self.inline)
        await self._engine.start()

    async def stop(self, drain: float = 30.0) -> None:
        """Finish what was accepted for up to `drain` seconds (0: at once), then end the workers."""
        if self._engine is not None:
            await self._engine.stop(drain)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and engine.state is not State.STOPPED:
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
        outcomes = await self._outcomes([pickle_.dumps(x)], timeout, wait=wait, bulk=False)
        return _unwrap(outcomes[0])

    async def predict_many(
        self, xs: Iterable[Any], *, timeout: float | None = None, wait: bool = True, return_exceptions: bool = False
    ) -> list[Any]:
        """Answer many items that are there already: one acceptance, one completion, nothing held back.

        Results come in the order of `xs`.  All are waited for; then the first failure in order is raised, or with
        `return_exceptions` failures stand in their places.  Cancelling it discards what is not settled.
        """
        outcomes = await self._outcomes([pickle_.dumps(x) for x in xs], timeout, wait=wait, bulk=True)
        answers = [_answer(outcome) for outcome in outcomes]
        if not return_exceptions:
            for outcome in outcomes:
                if isinstance(outcome, Failure):
                    raise outcome.error
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
        options = self.options
        window = StreamWindow[_Pending](max(1, options.max_queued // 2), options.max_queued_bytes // 2)
        feeder = asyncio.get_running_loop().create_task(self._feed(xs, window, timeout))
        try:
            while (pending := await window.first()) is not None:
                answer = _answer((await pending.future)[0])
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
                self._running_engine.cancel(pending.request)

    async def _feed(
        self, xs: Iterable[Any] | AsyncIterable[Any], window: StreamWindow[_Pending], timeout: float | None
    ) -> None:
        """Submit `xs` as the window has room, then end it: also where reading `xs` fails, as the reader will see."""

        def put(x: Any) -> None:
            pending = self._submit([pickle_.dumps(x)], timeout, wait=True, bulk=True)
            window.put(pending, payload_size(pending.request.payloads[0]))

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

    async def _outcomes(self, payloads: list[Any], timeout: float | None, *, wait: bool, bulk: bool) -> list[Outcome]:
        pending = self._submit(payloads, timeout, wait=wait, bulk=bulk)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._running_engine.cancel(pending.request)
            raise

    def _submit(self, payloads: list[Any], timeout: float | None, *, wait: bool, bulk: bool) -> _Pending:
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
            payloads, Codec.PICKLE, Codec.PICKLE, deadline, partial(_resolve, future), bulk=bulk, wait=wait
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
    request: Request
    future: asyncio.Future[list[Outcome]]


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


def _answer(outcome: Outcome) -> Any:
    match outcome:
        case Result(payload):
            return pickle_.loads(payload)
        case Failure(error):
            return error


def _unwrap(outcome: Outcome) -> Any:
    if isinstance(outcome, Failure):
        raise outcome.error
    return _answer(outcome)
