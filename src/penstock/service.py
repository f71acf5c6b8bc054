"""The class that people import: it describes a service, starts and stops it, and has the ways to call it.

A worker process imports this module too, where the module of its stage describes the service: so do most.  It never
starts or calls one.  What only these need, asyncio among it, would cost each worker 8 MB, and some 30 ms of CPU at its
start.  So it is imported where a service is made, but not while a worker imports user code.  An import at the first
call would come too late: a fork meanwhile has a copy of its lock for ever, and a signal handler meets half a module.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.config import (
    IN_A_PROGRAM,
    SERVICE_ARGUMENTS,
    LogOptions,
    ServerOptions,
    ServiceOptions,
    check_keywords,
    check_service_name,
    checked_keywords,
)
from penstock.core.state import State
from penstock.core.tenant_rules import TenantRules
from penstock.core.tenants import USUAL_URGENCY
from penstock.errors import ConfigError
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.crossings import crossings
from penstock.runtime.spec import StageSpec, external_stages, stage, with_workers
from penstock.worker.loading import GUARD, ImportState

if TYPE_CHECKING:
    import asyncio

    from penstock.blocking import BlockingService
    from penstock.calls import Calls
    from penstock.runtime.engine import Engine

log = guarded_logger("penstock")

T = TypeVar("T")

LONGEST_VERSION = 128
"""In characters: a sha256 in hex, and room for more."""

LOOP_CHECK_SECONDS = 0.5
"""How often a `stop` on another event loop checks that the service's own loop still runs.

A loop gives no notice of its end, and a stop that was asked of it would then never be done.
"""


class Service:
    """A sequence of stages, and the bounds they run within.

    Use it as ``async with service: await service.predict(x)``, as ``with service.blocking() as s: s.predict(x)``, or
    serve it over HTTP with `serve`, ``penstock serve`` or `penstock.asgi`.

    Args:
        stages: what `penstock.stage` made, or stage classes and functions as they are.
        name: the service's name in routes, metrics, logs and process lists: letters, digits and `._-`.
        cpus: cores the coordinator is pinned to while the service runs.
        inline: run every worker as a thread of this process, for a debugger; env, cpus, gpus and the retry after a
            death do not apply.
        version: which version this is, in your words, as a commit: `/health`, OpenAPI and a metric say it.
        path: one more path beside ``/predict``, for clients that cannot be changed, as ``"/inference"``; the option
            `predict_path`.
        options: a `ServiceOptions`, or its fields one by one, as ``max_in_flight=100``.

    Raises:
        ConfigError: an argument has a value it cannot have.
    """

    # No property: servers ask for it several times for each request, and this class is not compiled.
    engine: Engine | None = None
    """What runs the service; None before the first `start`, and where a fork has dropped its copy."""

    def __init__(
        self,
        *stages: StageSpec | type | Callable[[Any], Any],
        name: str = "service",
        cpus: Sequence[int] | None = None,
        inline: bool = False,
        version: str = "",
        path: str | None = None,
        options: ServiceOptions | None = None,
        **fields: Any,
    ) -> None:
        if not ImportState.importing:
            _import_calls()
        if not stages:
            raise ConfigError("a service needs at least one stage")
        check_service_name(name)
        if not isinstance(inline, bool):
            raise ConfigError(f"service {name!r}: inline must be True or False, got {inline!r}")
        check_keywords(f"service {name!r}", fields, [*SERVICE_ARGUMENTS, *_option_names(ServiceOptions)])
        self.name = name
        self.stages: tuple[StageSpec, ...] = tuple(s if isinstance(s, StageSpec) else stage(s) for s in stages)
        self.inline = inline
        self.version = _checked_version(name, version)
        self.cpus = _cores(name, cpus)
        self.options = _options(name, options, fields)
        if path is not None:
            self.options = dataclasses.replace(self.options, predict_path=path)
        names = [spec.name for spec in self.stages]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ConfigError(f"stage names must differ, but {sorted(twice)} is used twice; use stage(name=...)")
        _check_external(name, self.stages, inline=inline)
        self.logs: LogOptions = IN_A_PROGRAM
        """How workers write their log lines; a server says so before it starts the service."""
        self.served = False
        """Whether every caller comes over HTTP; a server says so before it starts the service."""
        self.tenant_rules: TenantRules | None = None
        """What its file of tenants says, where a server has read it; else `start` reads it."""
        self.model_version: int | None = None
        """Which version of a model directory this is; None for whatever else.  `penstock.export.load` says it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that runs the engine."""

    def __repr__(self) -> str:
        path = " -> ".join(spec.name for spec in self.stages)
        return f"<Service {self.name!r}: {path}; {self.state}>"

    def configured(self, **fields: Any) -> Service:
        """The same service with some of its `ServiceOptions`, `inline` or `workers` changed; not started.

        `workers` is a number for every stage whose workers the service starts, or maps names of stages to numbers;
        None: as they are.

        Raises:
            ConfigError: there is no such option or stage, or it cannot have that value.
        """
        check_keywords(f"service {self.name!r}", fields, [*_option_names(ServiceOptions), "inline", "workers"])
        inline = fields.pop("inline", self.inline)
        workers = _workers(self, fields.pop("workers", None))
        options = _options(self.name, None, {**dataclasses.asdict(self.options), **fields})
        stages = [with_workers(spec, workers[spec.name]) if spec.name in workers else spec for spec in self.stages]
        made = Service(*stages, name=self.name, cpus=self.cpus, inline=inline, version=self.version, options=options)
        made.model_version = self.model_version
        return made

    @property
    def _calls(self) -> Calls:
        # No `cached_property`: before Python 3.12 it takes a lock, whose copy in a fork may be held for ever.
        made: Calls | None = self.__dict__.get("_calls")
        if made is not None:
            return made
        from penstock.calls import Calls
        from penstock.hosting.loop_clock import LoopClock
        from penstock.runtime.caller_formats import CallerFormats

        formats = CallerFormats.of(self.stages, allow_nan=self.options.nan_as_null)
        calls = Calls(self.name, self.options, formats, LoopClock())
        # Two threads may both be the first: the one that starts the service and one that calls it have to get the same.
        first: Calls = self.__dict__.setdefault("_calls", calls)
        return first

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the service is doing."""
        engine = self.engine
        return engine.state if engine is not None else State.STOPPED

    def check_process(self) -> None:
        """Do nothing, or raise ConfigError in a fork of the process that started the service and has not stopped it.

        Every call of the service does this; what calls its engine by itself has to.
        """
        self._calls.check_process()

    def _check_external_workers(self) -> None:
        # Not where the service is made: a flag of the command line may still name the socket.
        names, path = external_stages(self.stages), self.options.remote_worker_socket
        if names and path is None:
            raise ConfigError(
                f"service {self.name!r}: stage {names[0]!r} is remote and needs the path of a Unix socket: set "
                "Service(..., remote_worker_socket=PATH), or --remote-worker-socket PATH"
            )
        if not names and path is not None:
            raise ConfigError(
                f"service {self.name!r}: remote_worker_socket is {path!r}, but the service has no remote stage; add "
                "one with penstock.remote(...), or remove the option"
            )

    def _check_import(self) -> None:
        if ImportState.importing:
            raise ConfigError(
                f"service {self.name!r} was started while a worker process imports this script; move the code that "
                f"starts it under `{GUARD}`"
            )

    async def start(self) -> None:
        """Start the workers on the running event loop; returns when they are ready.

        No worker of somebody else is waited for: where some attach from outside, their socket listens.

        The logger `penstock.loading` tells every 10 s which stages still load.

        Raises:
            ConfigError: it runs already, was left running on a loop that is closed, or a stage cannot be run as
                described.  Or workers from outside have no socket to attach at.
            StartFailed: a stage could not be set up; carries the remote traceback.
        """
        import asyncio

        from penstock.hosting.load_lines import loading_logged
        from penstock.runtime.engine import Engine
        from penstock.runtime.incarnation import ProcessIncarnation, ThreadIncarnation
        from penstock.runtime.slabs import open_slabs

        self._check_import()
        self._calls.check_process()
        self._check_external_workers()
        if self.state is not State.STOPPED:
            self._calls.check_loop()
            raise ConfigError(f"service {self.name!r} is already {self.state}")
        if self.inline:
            _warn_inline(self)
        self._loop = asyncio.get_running_loop()
        clock = self._calls.clock
        start_process = partial(ProcessIncarnation.start, clock)
        self.engine = Engine(
            self.name,
            self.stages,
            self.options,
            clock=clock,
            start_incarnation=ThreadIncarnation.start if self.inline else start_process,
            cpus=self.cpus,
            inline=self.inline,
            logs=self.logs,
            served=self.served,
            rules=self.tenant_rules,
            open_slabs=None if self.inline else open_slabs,
        )
        self._calls.connect(self.engine, self._loop)
        with loading_logged(self, clock):
            await self.engine.start()

    @checked_keywords("Service.stop")
    async def stop(self, drain_timeout: float = 30.0) -> None:
        """Complete accepted items for up to `drain_timeout` seconds (0: none, inf: no limit), then end the workers.

        It may be called at any time, any number of times, on any event loop.  The workers end at once if the loop that
        started the service no longer runs.  A fork of the process that started it drops its copy, and may then start
        it; the workers are its parent's, and stay.

        Raises:
            ConfigError: `drain_timeout` is not a number of at least 0; nothing was stopped.
        """
        import asyncio

        seconds = _drain_seconds(drain_timeout)
        engine, loop = self.engine, self._loop
        if engine is None or loop is None or engine.state is State.STOPPED:
            return
        if self._calls.is_copy:
            self._forget_engine()
        elif loop is asyncio.get_running_loop():
            await engine.stop(seconds)
        else:
            await _stop_on_its_loop(engine, loop, seconds)

    def _forget_engine(self) -> None:
        self.engine = None
        self._calls.disconnect()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def __del__(self) -> None:
        if not hasattr(self, "_loop"):
            return  # it was never made
        engine = self.engine
        if engine is not None and engine.state is not State.STOPPED and not self._calls.is_copy:
            engine.abandon()  # first: the warning may be an error
            warnings.warn(f"{self.name!r} was started but never stopped", ResourceWarning, source=self, stacklevel=2)

    # -- calls ------------------------------------------------------------------------------------------------------

    async def predict(
        self,
        x: Any,
        *,
        timeout: float | None = None,
        wait: bool = True,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> Any:
        """Answer one item.

        Args:
            x: the first stage's input.
            timeout: seconds until the answer is worthless, waiting for room included; None, or more than the service's
                own `timeout`, stands for the service's own.
            wait: whether to wait for room when the service is full.
            urgency: from 0, which goes first, to 7, which goes last, as in RFC 9218; 3 is the usual one.
            tenant: whom the call is for, by name; "" is nobody by name.  See the option `tenants`.

        Raises:
            RequestError: there is no result, and its class says why; see `penstock.errors`.
            ConfigError: `timeout` is no number of seconds, `urgency` no number from 0 to 7, or `tenant` no name.
        """
        return await self._calls.answer(x, self._calls.terms(timeout, urgency, tenant), wait=wait)

    async def predict_many(
        self,
        xs: Iterable[Any],
        *,
        timeout: float | None = None,
        wait: bool = True,
        return_exceptions: bool = False,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> list[Any]:
        """Answer many items that are all at hand: they are accepted together and answered together.

        No batch waits for further items.  Results come in the order of `xs`, after the last item is settled.  The first
        failure in that order is then raised; with `return_exceptions`, each failure stands in its item's place instead.
        Cancelling the call discards what is not settled.
        """
        terms = self._calls.terms(timeout, urgency, tenant)
        return await self._calls.answer_many(xs, terms, wait=wait, return_exceptions=return_exceptions)

    def stream(
        self,
        xs: Iterable[Any] | AsyncIterable[Any],
        *,
        timeout: float | None = None,
        return_exceptions: bool = False,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> AsyncIterator[Any]:
        """Answer an iterable of any length, in order and in bounded memory.

        At most half of `max_in_flight` and half of `max_queued_bytes` are in flight.  A slow reader of the results
        slows the reading of `xs`.  `timeout` is for each item.  A failure is raised in its item's place; with
        `return_exceptions` it is given there instead.  An error of `xs` itself is raised after the answers to the items
        before it.  The stream keeps its service alive.
        """
        terms = self._calls.terms(timeout, urgency, tenant)
        return self._calls.stream(xs, terms, return_exceptions=return_exceptions, owner=self)

    # -- other ways in ------------------------------------------------------------------------------------------------

    def blocking(self) -> BlockingService:
        """The service for synchronous code: ``with service.blocking() as s: s.predict(3)``; safe from many threads."""
        from penstock.blocking import BlockingService

        return BlockingService(self, self._calls, self._forget_engine)

    def serve(self, *, on_ready: Callable[[list[str]], None] | None = None, **options: Any) -> None:
        """Serve over HTTP until SIGTERM, SIGINT or SIGQUIT, then drain and return.

        Args:
            on_ready: called with the addresses once every stage is ready; without it they go to standard error.
            options: the fields of `ServerOptions`.

        Raises:
            ConfigError: an option cannot be as given, an event loop runs here, or this is not the main thread.
            StartFailed: the port cannot be opened, or a stage cannot be set up.
        """
        from penstock.server.serve import serve

        self._check_import()  # before the port is opened: the process that started the worker has it
        _check_serving_place(self.name)
        serve([self], _make_options(ServerOptions, "serve", options), on_ready)


def _import_calls() -> None:
    """Import what starts and calls a service."""
    import penstock.blocking
    import penstock.hosting.load_lines
    import penstock.hosting.loop_clock
    import penstock.runtime.engine
    import penstock.runtime.incarnation  # noqa: F401


def _checked_version(name: str, version: Any) -> str:
    if not isinstance(version, str) or not version.isprintable() or len(version) > LONGEST_VERSION:
        raise ConfigError(
            f"service {name!r}: version must be a string of at most {LONGEST_VERSION} printable characters, got "
            f"{version!r}"
        )
    return version


def _check_serving_place(name: str) -> None:
    """ConfigError where an event loop runs, or no signal can be taken."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigError(
            f"service {name!r}: serve() starts its own event loop, but one is already running: call it outside of "
            "async code; or mount penstock.asgi(service) in the running server; or use the service without HTTP, "
            "`async with service:`"
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            f"service {name!r}: serve() handles signals and works only in the main thread: call it there; or run "
            "penstock.asgi(service) under another ASGI server; or use the service without HTTP, `with "
            "service.blocking() as s:`"
        )


def _workers(service: Service, workers: Any) -> Mapping[str, int]:
    """The number of workers of each stage named."""
    names = [spec.name for spec in service.stages]
    if workers is None:
        return {}
    if not isinstance(workers, Mapping):
        own = [spec.name for spec in service.stages if spec.external is None]
        if not own:
            raise ConfigError(
                f"service {service.name!r}: workers={workers!r} applies to no stage, because all its stages are remote"
            )
        return dict.fromkeys(own, workers)
    for name in workers:
        if name not in names:
            raise ConfigError(f"service {service.name!r} has no stage {name!r}; it has {', '.join(names)}")
    return workers


def _check_external(name: str, stages: Sequence[StageSpec], *, inline: bool) -> None:
    """ConfigError where stages with workers from outside cannot run in this service."""
    crossings(stages)
    external = external_stages(stages)
    if inline and external:
        raise ConfigError(
            f"service {name!r}: stage {external[0]!r} is remote, so its workers cannot be threads of this process: "
            "remove inline"
        )


def _cores(name: str, cpus: Any) -> tuple[int, ...] | None:
    if cpus is None:
        return None
    cores = tuple(cpus) if isinstance(cpus, Iterable) else ()
    if not cores or not all(isinstance(c, int) and not isinstance(c, bool) and c >= 0 for c in cores):
        raise ConfigError(f"service {name!r}: cpus must be a non-empty list of core numbers, got {cpus!r}")
    return cores


def _options(name: str, options: Any, fields: Mapping[str, Any]) -> ServiceOptions:
    if options is None:
        return _make_options(ServiceOptions, f"service {name!r}", fields)
    if fields:
        raise ConfigError("pass either options= or its fields as arguments, not both")
    if not isinstance(options, ServiceOptions):
        raise ConfigError(f"service {name!r}: options must be a penstock.ServiceOptions, got {options!r}")
    return options


def _make_options(kind: type[T], owner: str, fields: Mapping[str, Any]) -> T:
    """Make options of `kind`.  The error about a field that does not exist names `owner`."""
    check_keywords(owner, fields, _option_names(kind))
    return kind(**fields)


def _option_names(kind: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def _drain_seconds(drain: Any) -> float:
    # `drain < 0` would be false for nan, and let it pass.
    if isinstance(drain, bool) or not isinstance(drain, (int, float)) or not drain >= 0:
        raise ConfigError(f"drain_timeout must be a number of seconds, at least 0, got {drain!r}")
    try:
        return float(drain)
    except OverflowError:  # an integer larger than any float
        return math.inf


async def _stop_on_its_loop(engine: Engine, loop: asyncio.AbstractEventLoop, drain: float) -> None:
    """Stop an engine that runs on `loop`, another loop than the running one; at once if `loop` no longer runs."""
    import asyncio

    if loop.is_running():
        stopping = engine.stop(drain)
        try:
            stopped = asyncio.run_coroutine_threadsafe(stopping, loop)
        except RuntimeError:  # the loop was closed after the check above
            stopping.close()
        else:
            stopped_here = asyncio.wrap_future(stopped)
            while not stopped.done() and loop.is_running():
                await asyncio.wait((stopped_here,), timeout=LOOP_CHECK_SECONDS)
            if stopped.done() and not stopped.cancelled():
                stopped.result()
    if engine.state is not State.STOPPED:
        engine.abandon()


def _warn_inline(service: Service) -> None:
    """Log what an inline service does without."""
    options = {
        "cpus": service.cpus is not None or any(spec.cpus for spec in service.stages),
        "env": any(spec.env for spec in service.stages),
        "gpus": any(spec.gpus for spec in service.stages),
    }
    ignored = [name for name, given in options.items() if given]
    log.warning(
        "service %r runs inline: workers are threads, so lost items are not retried%s",
        service.name,
        f", and these options are ignored: {' and '.join(ignored)}" if ignored else "",
    )
