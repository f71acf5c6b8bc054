"""Frozen options, checked at birth: an object of this module that exists is valid.

Times are seconds as floats, sizes are bytes.  Each option's `help` says what it means at its limits; the command
line, the environment variables and the reference page are made from these same fields (`option_fields.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args

from penstock.chaos_text import read_chaos
from penstock.errors import ConfigError
from penstock.log_level_text import read_log_levels
from penstock.option_fields import (
    AUTO,
    AUTO_OR_SECONDS,
    SECONDS,
    SECONDS_FROM_0,
    SWITCH,
    as_texts,
    check_options,
    option,
    whole_number,
)
from penstock.server_names import UNIX_PEER, check_origin, check_path, check_tenant_header, read_network
from penstock.spelling import explain_keyword

T = TypeVar("T")
P = ParamSpec("P")

MIB = 1024 * 1024
SMALLEST_PIECE = 4096
"""In bytes: shared memory is given out in whole pages, so a smaller body would take as much."""
LONGEST_SOCKET_PATH = 107
"""In bytes: the kernel has 108 for the path of a Unix socket, with the null byte at its end."""

SERVICE_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""The name of a service: a part of a path, the same in a request, a log line and a process list.  A stage's stands in
the same lines, in metrics and in flags.
"""

STAGE_ARGUMENTS = (
    "name",
    "setup",
    "workers",
    "cpus",
    "env",
    "gpus",
    "batch",
    "concurrency",
    "prefetch",
    "max_in_flight_batches",
    "orphan_timeout",
    "unhealthy_after",
    "bisect",
    "retry",
    "max_queued",
    "timeout",
)
"""The arguments of `penstock.stage`."""
SERVICE_ARGUMENTS = ("name", "cpus", "inline", "version", "path", "options")
"""The arguments of `penstock.Service` besides its `ServiceOptions`."""


FORMATS = ("onnx", "pt2", "saved_model")
"""The formats of an exported model."""


def check_service_name(name: object) -> None:
    """Raise ConfigError for a name that no service can have."""
    _check_name("service", name)


def check_stage_name(name: object, hint: str = "") -> None:
    """Raise ConfigError for a name that no stage can have; `hint` says what to do."""
    _check_name("stage", name, hint)


def _check_name(owner: str, name: object, hint: str = "") -> None:
    if not isinstance(name, str) or not SERVICE_NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(
            f"a {owner}'s name must consist of letters, digits and `._-`, and must not be `.` or `..`, got "
            f"{name!r}{hint}"
        )


def check_keywords(owner: str, given: Iterable[str], own: Collection[str]) -> None:
    """Raise ConfigError for the first of the arguments `given` that `owner` does not have; `own` are those it has."""
    for name in given:
        if name not in own:
            service_options = [f.name for f in fields(ServiceOptions)]
            elsewhere = {
                "penstock.Service(..., {})": [*SERVICE_ARGUMENTS, *service_options],
                "penstock.stage(..., batch=penstock.Batch({}))": [f.name for f in fields(Batch)],
                "penstock.stage(..., {})": STAGE_ARGUMENTS,
                "service.serve({})": [f.name for f in fields(ServerOptions)],
            }
            raise ConfigError(f"{owner}: {explain_keyword(name, own, elsewhere)}")


def checked_keywords(owner: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have a function raise ConfigError, as `check_keywords` does, where Python would raise TypeError."""

    def check(function: Callable[P, T]) -> Callable[P, T]:
        named = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
        own = [name for name in named if name != "self"]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            check_keywords(owner, kwargs, own)
            return function(*args, **kwargs)

        return checked

    return check


def checked_fields(kind: type[T]) -> type[T]:
    """Have the class of options `kind` refuse what is no field of it, as `check_keywords` does."""
    made = kind.__init__

    @wraps(made)
    def init(self: T, *args: Any, **given: Any) -> None:
        check_keywords(f"penstock.{kind.__name__}", given, [f.name for f in fields(kind)])  # type: ignore[arg-type]
        made(self, *args, **given)

    kind.__init__ = init  # type: ignore[assignment, method-assign]
    return kind


MOST_IN_A_BATCH = 1_000_000
"""A worker whose stage has examples runs a full batch of them before it is ready, so a batch has to fit in memory."""
MOST_IN_PROGRESS = 10_000
"""The most batches that a worker may have in progress: each is a task with its items in memory."""
LONGEST_HOLD = 24 * 60 * 60
"""The longest finite wait for company, a day: longer ones are slips, as of milliseconds for seconds."""


@checked_fields
@dataclass(frozen=True, slots=True)
class Batch:
    """How items of a stage are gathered: `predict` then takes a list and returns as many results.

    A batch is due when it is full, when its oldest item has waited `max_wait`, or when nothing arrived for
    `max_idle_gap`.  With `max_wait="auto"` (the default) it is learned from arrivals and runs how long a wait for company
    pays, and with 0 a free worker takes whatever is there at once.  While every worker is busy the open batch grows.
    """

    max_size: int = option(
        32,
        "maximum items in a batch, up to 1000000; with 1, predict still receives a list",
        minimum=1,
        maximum=MOST_IN_A_BATCH,
    )
    max_wait: float | Literal["auto"] = option(
        AUTO,
        "longest time in seconds a free worker waits for more items, counted from the arrival of the oldest; 0 "
        'dispatches immediately; inf waits until max_idle_gap or a full batch; "auto" learns the delay from arrivals and '
        "run times",
        minimum=0,
        maximum=LONGEST_HOLD,
        kind=float,
        words=(AUTO,),
    )
    max_idle_gap: float | None = option(
        None,
        "dispatch the batch when no item has arrived for this many seconds; needs max_wait > 0; without it, gaps are "
        "ignored",
        minimum=0,
        maximum=LONGEST_HOLD,
    )
    delay_when_idle: bool = option(
        True,
        "whether to wait also when a worker has been free longer than max_wait; False needs a fixed max_wait",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_wait == AUTO:
            if self.max_idle_gap is not None:
                raise ConfigError(
                    f'max_idle_gap={self.max_idle_gap!r} needs a fixed max_wait, got max_wait="auto", which learns the gaps '
                    "itself"
                )
            if not self.delay_when_idle:
                raise ConfigError(
                    'delay_when_idle=False needs a fixed max_wait, got max_wait="auto", which learns the delay itself'
                )
        if self.max_idle_gap is not None and self.max_wait == 0:
            raise ConfigError(
                f"max_idle_gap={self.max_idle_gap!r} needs max_wait > 0, got max_wait=0, which dispatches without waiting"
            )
        if self.max_wait == math.inf and self.max_idle_gap in (None, math.inf):
            raise ConfigError(
                f"max_wait=inf needs a finite max_idle_gap, got {self.max_idle_gap!r}: otherwise a batch that never fills waits "
                "for ever"
            )


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How a stage's items are sent, run, and run again.

    Each field is an argument of `penstock.stage`, and the whole object is sent to each worker.  The batch policy is no
    option: a stage's class may bring its own.
    """

    concurrency: int | None = option(
        None,
        "maximum batches that one worker of an `async` stage runs concurrently, up to 10000; default 64 where predict "
        "is `async`, 2 where only other methods are",
        limit=whole_number(least=1, most=MOST_IN_PROGRESS),
    )
    prefetch: int = option(
        1, "batches sent to a worker ahead of those it runs; 0 sends nothing ahead", limit=whole_number(least=0)
    )
    max_in_flight_batches: int | None = option(
        None,
        "maximum batches of the stage that its workers hold, running or sent ahead; default: limited only by each "
        "worker's prefetch and concurrency",
        limit=whole_number(least=1),
    )
    max_queued: int | None = option(
        None,
        "maximum items queued for the stage; default: limited only by the service's max_queued",
        limit=whole_number(least=1),
    )
    timeout: float | None = option(
        None,
        "seconds a batch may run before its worker is killed and its items are handled as after a worker loss; "
        "default: no limit",
        limit=SECONDS,
    )
    orphan_timeout: float | Literal["auto"] = option(
        AUTO,
        "seconds a batch may keep running after all its items expired or were cancelled, before its worker is killed; "
        'inf: no limit; "auto": from the stage\'s run times, at least 30',
        limit=AUTO_OR_SECONDS,
    )
    unhealthy_after: float = option(
        30.0,
        "restart a worker of a stage without examples when every batch has failed for this many seconds, and at least "
        "five batches; 0: after five batches; inf: never",
        limit=SECONDS_FROM_0,
    )
    bisect: bool = option(
        True, "whether a batch that raises is split in halves and run again, to isolate the failing item", limit=SWITCH
    )
    retry: bool = option(
        True, "whether items of a lost worker are retried once, each in a batch of its own", limit=SWITCH
    )

    def __post_init__(self) -> None:
        for f in fields(self):  # the class is frozen: `object` sets the plain value instead of the given one
            value = getattr(self, f.name)
            if value is not None or f.default is not None:
                object.__setattr__(self, f.name, f.metadata["limit"].take(f.name, value))


@checked_fields
@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The bounds and habits of one service, wherever it runs."""

    max_in_flight: int = option(
        1024,
        "maximum items in the service, queued or running; more are rejected; 1 handles one item at a time",
        minimum=1,
    )
    max_queued_bytes: int = option(
        256 * MIB,
        "maximum bytes buffered for requests (queued payloads and partly received bodies; a single item is always "
        "admitted), and again for unsent responses",
        minimum=1,
    )
    shm_bytes: int | None = option(
        None,
        "bytes of shared memory for large request bodies, and again for the results of each stage; default 256 MiB, "
        "less on a small machine; 0 disables shared memory",
        minimum=0,
        kind=int,
    )
    shm_threshold: int = option(
        64 * 1024, "minimum size in bytes of a body or result that is passed in shared memory", minimum=SMALLEST_PIECE
    )
    timeout: float = option(
        60.0, "default timeout of a request in seconds, including time in the queue; inf: no limit", minimum=0
    )
    admission: Literal["room", "deadline"] = option(
        "room",
        "when to reject at arrival; room: when a limit on items or bytes is reached; deadline: also when the "
        "predicted completion is after the request's deadline",
        choices=("room", "deadline"),
    )
    queue_order: Literal["arrival", "deadline"] = option(
        "arrival",
        "queue order within one tenant and urgency; arrival: first in, first out; deadline: earliest deadline first",
        choices=("arrival", "deadline"),
    )
    tenants_file: str | None = option(
        None, "TOML file with the API keys, weights, rate limits and quotas of each tenant", path=True
    )
    min_free_memory: int = option(
        0, "reject new requests while less memory than this, in bytes, is available; 0 disables the check", minimum=0
    )
    progress_deadline: float = option(
        60.0,
        "fail /readyz after a stage with work has completed nothing for this many seconds; inf: never",
        minimum=0.1,
    )
    liveness_deadline: float = option(
        math.inf,
        "fail /livez after a stage with work has completed nothing for this many seconds; inf: never",
        minimum=0.1,
    )
    background_share: float = option(
        0.05,
        "minimum share of each stage's items reserved for jobs while requests could fill every batch, from 0 to 1; 0 "
        "reserves nothing",
        minimum=0,
        unit="FRACTION",
    )
    predict_path: str | None = option(
        None, "second path for /predict, for clients that cannot be changed, such as /inference"
    )
    remote_worker_socket: str | None = option(
        None, "path of the Unix socket for workers of `penstock.external` stages", path=True
    )
    remote_worker_socket_mode: int = option(
        0o600, "permissions of the socket remote_worker_socket, in octal", minimum=0
    )
    max_remote_workers: int = option(64, "maximum workers attached to one external stage", minimum=1)
    reattach_timeout: float = option(
        5.0,
        "seconds an external stage without workers waits for one to attach again before it fails; inf: no limit, only "
        "the timeout of each request",
        minimum=0,
    )
    validate_inputs: bool = option(
        False, "check items of in-process callers against the declared type; HTTP requests are always checked"
    )
    validate_results: bool = option(
        False, "check every result against its declared type; an item with a mismatch fails"
    )
    nan_as_null: bool = option(False, "write NaN and infinity as null in JSON results; otherwise such an item fails")

    def __post_init__(self) -> None:
        check_options(self)
        nbytes = len((self.remote_worker_socket or "").encode(errors="replace"))
        if nbytes > LONGEST_SOCKET_PATH:
            raise ConfigError(
                f"remote_worker_socket: the path has {nbytes} bytes, and the path of a Unix socket has at most "
                f"{LONGEST_SOCKET_PATH}: {self.remote_worker_socket!r}"
            )
        if self.remote_worker_socket_mode > 0o777:
            raise ConfigError(
                f"remote_worker_socket_mode must be at most 0o777, got {self.remote_worker_socket_mode:#o}"
            )
        if self.predict_path is not None:
            check_path("predict_path", self.predict_path, "/inference")
        if self.liveness_deadline < self.progress_deadline:
            raise ConfigError(
                f"liveness_deadline must be at least progress_deadline, which is {self.progress_deadline!r}, got {self.liveness_deadline!r}"
            )
        if self.background_share > 1:
            raise ConfigError(f"background_share must be at most 1, got {self.background_share!r}")


LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How the workers of a service write their log lines; the defaults are for a service in a program of a user's."""

    format: LogFormat = "text"
    level: str = "warning"
    """As `log_level` of `ServerOptions`."""


IN_A_PROGRAM = LogOptions()


@checked_fields
@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The HTTP server's door: where it listens and what it refuses."""

    host: str | Sequence[str] | None = option(
        None,
        "one or several addresses to listen on; 0.0.0.0 is every IPv4 interface, :: is every IPv4 and IPv6 interface; "
        "default 127.0.0.1, or no address if uds is set",
        repeated=True,
    )
    port: int = option(8000, "port to listen on; 0 selects a free port and prints it", minimum=0, maximum=65535)
    uds: str | None = option(None, "path of a Unix socket to listen on, alone or in addition to host", path=True)
    uds_mode: int = option(0o600, "permissions of the Unix socket uds, in octal", minimum=0)
    tls_cert: str | None = option(None, "PEM file with the certificate chain; needs tls_key", path=True)
    tls_key: str | None = option(None, "PEM file with the private key; needs tls_cert", path=True)
    api_key_file: str | None = option(
        None,
        "file of accepted API keys, one per line; clients send `Authorization: Bearer KEY` or `X-API-Key: KEY`",
        path=True,
    )
    cors_allow_origin: str | Sequence[str] = option(
        (),
        "one or several origins (https://app.example) allowed to call this server from a browser; * allows every "
        "origin",
        repeated=True,
    )
    trusted_proxies: str | Sequence[str] = option(
        (),
        "one or several networks of proxies that are trusted to name the client in X-Forwarded-For, for the access "
        "log; unix: proxies that connect to uds",
        repeated=True,
    )
    max_body_bytes: int = option(16 * MIB, "maximum bytes of a request body; 0 rejects every body", minimum=0)
    max_batch_items: int = option(100_000, "maximum items in a client batch; larger batches are rejected", minimum=1)
    max_header_bytes: int = option(64 * 1024, "maximum bytes of the request line and headers together", minimum=64)
    max_header_fields: int = option(100, "maximum headers in a request", minimum=1)
    max_target_bytes: int = option(8 * 1024, "maximum bytes of a request target", minimum=1)
    header_timeout: float = option(10.0, "seconds to receive a complete request head", minimum=0.1)
    body_timeout: float = option(
        30.0, "seconds without any request body data before the request is rejected", minimum=0.1
    )
    keepalive_timeout: float = option(
        75.0, "seconds an idle connection is kept open; 0 closes it after each response", minimum=0
    )
    write_timeout: float = option(
        30.0,
        "close a connection if its client reads nothing for this many seconds; a slow client gets this long in total "
        "while unsent responses exceed max_queued_bytes",
        minimum=0.1,
    )
    max_connections: int = option(10_000, "maximum connections; above it only health endpoints are answered", minimum=1)
    max_pipelined: int = option(32, "maximum requests of one connection in flight; 1 disables pipelining", minimum=1)
    max_connection_age: float = option(
        math.inf,
        "close a connection after its first response past this age in seconds (10 % jitter); inf: never",
        minimum=1,
    )
    drain_delay: float = option(
        0.0,
        "on SIGTERM, keep serving but fail /readyz for this many seconds before the drain, so that load balancers "
        "notice",
        minimum=0,
    )
    drain_timeout: float = option(
        30.0, "on SIGTERM, seconds to complete requests in flight before shutdown; 0 aborts them immediately", minimum=0
    )
    overload_status: int = option(
        503, "HTTP status of a request rejected because the service is full", choices=(503, 429, 400)
    )
    queue_timeout_status: int = option(
        503, "HTTP status of a request that expired in the queue", choices=(503, 408, 500)
    )
    run_timeout_status: int = option(504, "HTTP status of a request that expired while it ran", choices=(504, 408, 500))
    tenant_header: str | None = option(None, "request header that names the tenant when no API key identifies it")
    health_path: str | None = option(None, "additional path for health checks, such as /health_check; needs no API key")
    unready_when_full: bool = option(False, "answer 503 at /readyz and health_path while the service is full")
    chaos: str | None = option(
        None, "faults to inject, as fractions of calls: seed=7,error=0.05,delay=0.1:0.5,kill=0.001,drop=0.01"
    )
    access_log: bool = option(False, "log a line for each request")
    log_format: LogFormat = option("text", "format of log lines", choices=get_args(LogFormat))
    log_level: str = option("info", "minimum log level, for all loggers or per logger: info,my.model=debug")

    def __post_init__(self) -> None:
        check_options(self)
        self._check_names()
        if not isinstance(self.log_level, str):
            raise ConfigError(
                f"log_level must be a string such as 'info' or 'info,my.model=debug', got {self.log_level!r}"
            )
        read_log_levels(self.log_level)
        if self.chaos is not None:
            read_chaos(str(self.chaos))
        if self.health_path is not None:
            check_path("health_path", self.health_path, "/health_check")
        if self.tenant_header is not None:
            check_tenant_header(self.tenant_header)
        if self.uds_mode > 0o777:
            raise ConfigError(f"uds_mode must be at most 0o777, got {self.uds_mode:#o}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key must be set together: one of them is missing")

    def _check_names(self) -> None:
        for name in ("host", "cors_allow_origin", "trusted_proxies"):
            given = getattr(self, name)
            if isinstance(given, list):  # the class is frozen, and the list may change
                object.__setattr__(self, name, tuple(given))
        if self.host == ():
            raise ConfigError("host must name at least one address; leave it out for the default")
        for origin in as_texts("cors_allow_origin", self.cors_allow_origin):
            check_origin(origin)
        for proxy in as_texts("trusted_proxies", self.trusted_proxies):
            if proxy != UNIX_PEER:
                read_network(proxy)
        for host in as_texts("host", self.host or ()):
            if "\0" in host:
                raise ConfigError(f"host must not contain a null character, got {host!r}")


DIGEST_DIGITS = 64


@checked_fields
@dataclass(frozen=True, slots=True)
class ArtifactOptions:
    """How the artifact of a trained model is opened, where a service is named by a folder."""

    model_format: str | None = option(
        None, f"format of the graph to run: {', '.join(FORMATS)}; default: the first in the artifact"
    )
    trust_model_code: bool = option(
        False, "load formats that can execute code (pt2, saved_model); set it only for artifacts from a trusted source"
    )
    model_digest: str | None = option(
        None, "required digest of the artifact, 64 hex digits; a match also allows formats that can execute code"
    )
    verify_rows: bool = option(False, "verify every byte of external table rows at startup")
    explain: bool = option(False, "add the number of ids missing from external tables to each response, as _missing")

    def __post_init__(self) -> None:
        check_options(self)
        if self.model_format is not None and self.model_format not in FORMATS:
            raise ConfigError(f"model_format must be one of {', '.join(FORMATS)}, got {self.model_format!r}")
        digest = self.model_digest
        if digest is not None and not (
            isinstance(digest, str) and len(digest) == DIGEST_DIGITS and set(digest) <= set("0123456789abcdef")
        ):
            raise ConfigError(f"model_digest must be {DIGEST_DIGITS} lowercase hex digits, got {digest!r}")
