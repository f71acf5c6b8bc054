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
    "max_batches",
    "abandon_after",
    "recycle_after",
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
        raise ConfigError(f"a {owner}'s name is of letters, digits and `._-`, and not `.` or `..`, got {name!r}{hint}")


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
    `max_gap`.  With `max_wait="auto"` (the default) it is learned from arrivals and runs how long a wait for company
    pays, and with 0 a free worker takes whatever is there at once.  While every worker is busy the open batch grows.
    """

    max_size: int = option(
        32, "most items in a batch, at most 1000000; 1 still passes a list", minimum=1, maximum=MOST_IN_A_BATCH
    )
    max_wait: float | Literal["auto"] = option(
        AUTO,
        "longest a free worker is held back for company, from the oldest item's arrival; 0 never holds, inf leaves the "
        'wait to max_gap; "auto": as long as it pays, by what was seen of arrivals and runs',
        minimum=0,
        maximum=LONGEST_HOLD,
        kind=float,
        words=(AUTO,),
    )
    max_gap: float | None = option(
        None,
        "the batch is due when nothing arrived for this long; None: not considered; needs max_wait > 0",
        minimum=0,
        maximum=LONGEST_HOLD,
    )
    hold_after_idle: bool = option(
        True,
        "whether an item is held that arrives when a worker has been free longer than max_wait; False needs a fixed "
        "max_wait",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_wait == AUTO:
            if self.max_gap is not None:
                raise ConfigError(
                    f'max_gap={self.max_gap!r} needs a fixed max_wait, got max_wait="auto": it learns the gaps itself'
                )
            if not self.hold_after_idle:
                raise ConfigError(
                    'hold_after_idle=False needs a fixed max_wait, got max_wait="auto": it learns itself whom to hold'
                )
        if self.max_gap is not None and self.max_wait == 0:
            raise ConfigError(
                f"max_gap={self.max_gap!r} needs max_wait > 0, got max_wait=0: a batch that is never held has no gaps"
            )
        if self.max_wait == math.inf and self.max_gap in (None, math.inf):
            raise ConfigError(
                f"max_wait=inf needs a finite max_gap, got {self.max_gap!r}: otherwise a batch that never fills would "
                "wait for ever"
            )


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How a stage's items are sent, run, and run again.

    Each field is an argument of `penstock.stage`, and the whole object is sent to each worker.  The batch policy is no
    option: a stage's class may bring its own.
    """

    concurrency: int | None = option(
        None,
        "most batches that one worker of a stage with something `async` has in progress, at most 10000; None: 64 where "
        "predict is `async`, 2 where only other methods are",
        limit=whole_number(least=1, most=MOST_IN_PROGRESS),
    )
    prefetch: int = option(
        1, "batches a worker holds besides those it runs; 0 never sends ahead", limit=whole_number(least=0)
    )
    max_batches: int | None = option(
        None,
        "most batches of the stage that are with its workers, running or sent ahead; None: as many as each may hold",
        limit=whole_number(least=1),
    )
    max_queued: int | None = option(
        None, "most items waiting for the stage; None leaves it to the service's bound", limit=whole_number(least=1)
    )
    timeout: float | None = option(
        None,
        "seconds a batch may run before its worker is killed and its items treated as after a death; None: for ever",
        limit=SECONDS,
    )
    abandon_after: float | Literal["auto"] = option(
        AUTO,
        "seconds a batch may run on after its last item expired or left; then its worker is killed; inf: for ever; "
        '"auto": by how long the stage takes, at least 30',
        limit=AUTO_OR_SECONDS,
    )
    recycle_after: float = option(
        30.0,
        "seconds for which every batch must fail, five at least, until a worker of a stage without examples is "
        "restarted; 0: five are enough; inf: never",
        limit=SECONDS_FROM_0,
    )
    bisect: bool = option(True, "whether a batch that raises is run again in halves to find the culprit", limit=SWITCH)
    retry: bool = option(True, "whether items whose worker died are run once more, alone", limit=SWITCH)

    def __post_init__(self) -> None:
        for f in fields(self):  # the class is frozen: `object` sets the plain value instead of the given one
            value = getattr(self, f.name)
            if value is not None or f.default is not None:
                object.__setattr__(self, f.name, f.metadata["limit"].take(f.name, value))


@checked_fields
@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The bounds and habits of one service, wherever it runs."""

    max_queued: int = option(
        1024, "most accepted, unsettled items, wherever they are; 1 takes one item at a time", minimum=1
    )
    max_queued_bytes: int = option(
        256 * MIB,
        "most bytes held of what comes in (queued payloads, half-received bodies; one item always passes), and most of "
        "finished answers that clients have not read",
        minimum=1,
    )
    slab_bytes: int | None = option(
        None,
        "bytes of shared memory for large bodies, and as many for the results of each stage; without it 256 MiB, or "
        "less on a small machine; 0: none",
        minimum=0,
        kind=int,
    )
    slab_from: int = option(
        64 * 1024, "bodies and results of so many bytes or more lie in shared memory", minimum=SMALLEST_PIECE
    )
    timeout: float = option(60.0, "longest a request may take, waiting for room included; inf: no limit", minimum=0)
    admission: Literal["room", "deadline"] = option(
        "room",
        "whom a newcomer is refused by: room, in items and bytes; deadline: also who would not end before its own",
        choices=("room", "deadline"),
    )
    order: Literal["arrival", "deadline"] = option(
        "arrival",
        "who goes first of one tenant and urgency: who came first, or whose deadline is the earliest",
        choices=("arrival", "deadline"),
    )
    tenants: str | None = option(None, "TOML file of tenants: keys, weights, rates and bounds of each", path=True)
    min_free_memory: int = option(
        0, "newcomers are refused while fewer bytes of memory are available; 0: never looked at", minimum=0
    )
    stall_unready: float = option(
        60.0,
        "seconds in which a stage with work gives nothing back until the service is unready; inf: never",
        minimum=0.1,
    )
    stall_dead: float = option(
        math.inf, "seconds of the same until /livez says that the process is to be replaced; inf: never", minimum=0.1
    )
    jobs_min_share: float = option(
        0.05,
        "share of the items of a stage that jobs get while requests could fill every batch, at most 1; 0: none then",
        minimum=0,
        unit="FRACTION",
    )
    predict_path: str | None = option(
        None, "one more path beside /predict, for clients that cannot be changed: /inference"
    )
    external_workers: str | None = option(
        None, "path of a Unix socket at which workers of `penstock.external` stages attach", path=True
    )
    external_workers_mode: int = option(0o600, "permissions of that socket", minimum=0)
    max_external_workers: int = option(64, "most workers attached to one external stage", minimum=1)
    attach_grace: float = option(
        5.0,
        "longest that items wait for an external stage whose last worker has gone; then the stage has failed; inf: "
        "as long as they may",
        minimum=0,
    )
    validate: bool = option(False, "check in-process items against the declared type, as HTTP always does")
    validate_results: bool = option(False, "check every result against its declared type; a mismatch fails that item")
    allow_nan: bool = option(False, "write NaN and infinity as null in JSON results instead of failing the item")

    def __post_init__(self) -> None:
        check_options(self)
        nbytes = len((self.external_workers or "").encode(errors="replace"))
        if nbytes > LONGEST_SOCKET_PATH:
            raise ConfigError(
                f"external_workers is a path of {nbytes} bytes, and the kernel takes at most {LONGEST_SOCKET_PATH} for "
                f"a Unix socket: {self.external_workers!r}"
            )
        if self.external_workers_mode > 0o777:
            raise ConfigError(f"external_workers_mode must be at most 0o777, got {self.external_workers_mode:#o}")
        if self.predict_path is not None:
            check_path("predict_path", self.predict_path, "/inference")
        if self.stall_dead < self.stall_unready:
            raise ConfigError(
                f"stall_dead must be at least stall_unready, which is {self.stall_unready!r}, got {self.stall_dead!r}"
            )
        if self.jobs_min_share > 1:
            raise ConfigError(f"jobs_min_share must be at most 1, got {self.jobs_min_share!r}")


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
        "address to listen on, or several; 0.0.0.0: every IPv4 interface, ::: every one of IPv4 and IPv6; without it "
        "127.0.0.1, or with uds no address",
        repeated=True,
    )
    port: int = option(8000, "port to listen on; 0 takes a free one and prints it", minimum=0, maximum=65535)
    uds: str | None = option(None, "path of a Unix socket to listen on, alone or besides host", path=True)
    uds_mode: int = option(0o600, "permissions of the Unix socket", minimum=0)
    tls_cert: str | None = option(None, "PEM file with the certificate chain; needs tls_key", path=True)
    tls_key: str | None = option(None, "PEM file with the private key; needs tls_cert", path=True)
    api_key_file: str | None = option(
        None,
        "file of accepted API keys, one a line; sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`",
        path=True,
    )
    cors_origin: str | Sequence[str] = option(
        (),
        "origin, or several, whose pages may call this server from a browser: https://app.example; *: every page",
        repeated=True,
    )
    trusted_proxies: str | Sequence[str] = option(
        (),
        "network of proxies, or several, whose X-Forwarded-For names the client in the access log; unix: by a socket",
        repeated=True,
    )
    max_body: int = option(16 * MIB, "largest request body; 0 refuses every body", minimum=0)
    max_batch_items: int = option(
        100_000, "most items in a client batch; one more is refused, for each item may cost an answer", minimum=1
    )
    max_header: int = option(64 * 1024, "largest request head, request line included", minimum=64)
    max_header_fields: int = option(100, "most header fields in a request", minimum=1)
    max_target: int = option(8 * 1024, "longest request target", minimum=1)
    header_timeout: float = option(10.0, "longest a client may take over a request head", minimum=0.1)
    body_timeout: float = option(30.0, "longest a body may stall between two pieces", minimum=0.1)
    keep_alive: float = option(75.0, "longest an idle connection is kept; 0 closes after each answer", minimum=0)
    unread_timeout: float = option(
        30.0,
        "longest an answer may lie unread before its connection is cut; in all, while more than max_queued_bytes do",
        minimum=0.1,
    )
    max_connections: int = option(10_000, "most connections; one more may only ask for probes", minimum=1)
    max_pipelined: int = option(32, "most requests of one connection in hand; 1 is no pipelining", minimum=1)
    connection_age: float = option(
        math.inf, "age from which a connection ends with its next answer, 10 % more or less; inf: never", minimum=1
    )
    drain_delay: float = option(
        0.0, "on SIGTERM, unready but serving for so long before the drain, so that balancers notice", minimum=0
    )
    drain: float = option(30.0, "longest to finish accepted requests on SIGTERM; 0 drops them at once", minimum=0)
    overload_status: int = option(503, "status when the service is full", choices=(503, 429, 400))
    expired_status: int = option(503, "status when a deadline passed before the item ran", choices=(503, 408, 500))
    late_status: int = option(504, "status when a deadline passed while the item ran", choices=(504, 408, 500))
    tenant_header: str | None = option(None, "request header that names the tenant, where no key says who it is")
    health_path: str | None = option(None, "one more path for health checks, which needs no key: /health_check")
    busy_is_unready: bool = option(False, "answer 503 at /readyz and at health_path while the service is full")
    chaos: str | None = option(
        None, "faults to cause, as fractions of calls: seed=7,error=0.05,delay=0.1:0.5,kill=0.001,drop=0.01"
    )
    access_log: bool = option(False, "write a line for each request")
    log_format: LogFormat = option("text", "how log lines are written", choices=get_args(LogFormat))
    log_level: str = option(
        "info", "least level that is written, of all loggers and of those named: info,my.model=debug"
    )

    def __post_init__(self) -> None:
        check_options(self)
        self._check_names()
        if not isinstance(self.log_level, str):
            raise ConfigError(
                f"log_level must be a text such as 'info' or 'info,my.model=debug', got {self.log_level!r}"
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
            raise ConfigError("tls_cert and tls_key go together: one of them is missing")

    def _check_names(self) -> None:
        for name in ("host", "cors_origin", "trusted_proxies"):
            given = getattr(self, name)
            if isinstance(given, list):  # the class is frozen, and the list may change
                object.__setattr__(self, name, tuple(given))
        if self.host == ():
            raise ConfigError("host must name one address at least; leave it out for the default")
        for origin in as_texts("cors_origin", self.cors_origin):
            check_origin(origin)
        for proxy in as_texts("trusted_proxies", self.trusted_proxies):
            if proxy != UNIX_PEER:
                read_network(proxy)
        for host in as_texts("host", self.host or ()):
            if "\0" in host:
                raise ConfigError(f"host must not hold a null character, got {host!r}")


DIGEST_DIGITS = 64


@checked_fields
@dataclass(frozen=True, slots=True)
class ArtifactOptions:
    """How the artifact of a trained model is opened, where a service is named by a folder."""

    format: str | None = option(None, f"graph to run: {', '.join(FORMATS)}; none: the artifact's first")
    trust: bool = option(False, "open what can run code, pt2 and saved_model; only from somebody you trust")
    digest: str | None = option(
        None, "digest that the artifact must have, 64 hex digits; one that matches is trust as well"
    )
    verify_rows: bool = option(False, "check every byte of the rows of tables outside at the start")
    explain: bool = option(False, "tell in each answer, as _missing, how many of its ids tables outside do not have")

    def __post_init__(self) -> None:
        check_options(self)
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")
        digest = self.digest
        if digest is not None and not (
            isinstance(digest, str) and len(digest) == DIGEST_DIGITS and set(digest) <= set("0123456789abcdef")
        ):
            raise ConfigError(f"digest must be {DIGEST_DIGITS} hex digits in small letters, got {digest!r}")
