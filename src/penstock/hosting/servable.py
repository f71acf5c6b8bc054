"""What a host needs to know of a service and of its running engine: attributes to read, and a few calls to make.

A host is whatever feeds a service: HTTP, ASGI, calls in process.  `penstock.Service` satisfies `Servable`, and the
engine that it starts satisfies `HostedEngine`.  Hosts use only these Protocols, so a test replaces an engine with a
dozen lines and no process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.codec.annotations import Signature
from penstock.codec.formats import Codec
from penstock.config import Batch, LogOptions, ServiceOptions, StageOptions
from penstock.core.arriving import ArrivingBody
from penstock.core.counters import ServiceCounters, StageCounters
from penstock.core.lanes import Lane
from penstock.core.load_progress import Loading
from penstock.core.outcome import Outcome
from penstock.core.slab_sizes import slab_count
from penstock.core.state import State, WorkerState
from penstock.core.tenant_rules import TenantRules
from penstock.core.tenants import USUAL_URGENCY, TenantNumbers
from penstock.core.token_bucket import Allowance
from penstock.errors import ConfigError, RequestError


class WorkerView(Protocol):
    """One worker as `/health` and `/metrics` show it."""

    @property
    def index(self) -> int:
        """Its number in the pool, from 0."""

    @property
    def state(self) -> WorkerState:
        """What it is doing now."""

    @property
    def pid(self) -> int | None:
        """Its process, or None while it has none."""

    @property
    def restarts(self) -> int:
        """How often it was restarted."""

    @property
    def busy_seconds(self) -> float | None:
        """How long it has been at work on its batch, or None while it has none."""

    @property
    def language(self) -> str:
        """What a worker from outside is written in, by its own words; "" for one of ours."""

    @property
    def reason(self) -> str:
        """Why it is not well by its stage's own `health`, or was not when it was last asked; else ""."""

    @property
    def device_memory(self) -> int | None:
        """The bytes that torch has reserved on its devices, as it has told last; None where it uses none by torch."""


class StageView(Protocol):
    """One running stage as `/health` and `/metrics` show it."""

    @property
    def name(self) -> str:
        """Its name, unique in the service."""

    @property
    def counters(self) -> StageCounters:
        """What it has done since the start."""

    @property
    def queued(self) -> int:
        """Items waiting for a worker."""

    @property
    def max_size(self) -> int:
        """The most items of a batch now: fewer than its policy says while memory is short."""

    @property
    def in_flight(self) -> int:
        """Items handed to workers and not answered."""

    @property
    def progress_age(self) -> float:
        """For how many seconds nothing has come back while work waits or runs here; 0 without work."""

    @property
    def hold_seconds(self) -> float:
        """For how long it last decided to hold a free worker for company; 0 where it did not."""

    @property
    def held_seconds(self) -> float:
        """The time in which a worker was free and items were held for company, since the start."""

    @property
    def retry_in_seconds(self) -> float | None:
        """In how many seconds a stage that rests is tried again, 0 while it is being tried; None without a rest."""

    @property
    def workers(self) -> Sequence[WorkerView]:
        """Its pool."""


class SlabView(Protocol):
    """One shared memory of a service as `/metrics` shows it."""

    @property
    def name(self) -> str:
        """What lies there: `arrivals`, or the results of the stage of this name."""

    @property
    def nbytes(self) -> int:
        """How many bytes it has, in whole pages."""

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that somebody holds."""

    @property
    def kept_bytes(self) -> int:
        """Those of them that a stage keeps although their items are settled."""


class HostedEngine(Protocol):
    """The running half of a service.  Every call is made on the event loop's thread."""

    @property
    def state(self) -> State:
        """What the service is doing."""

    @property
    def reason(self) -> str:
        """Why the service is FAILED or STALLED, or what it still loads while it is STARTING; else ""."""

    @property
    def loading(self) -> Sequence[Loading]:
        """What the start still waits for, stage by stage; empty before it and after it."""

    @property
    def counters(self) -> ServiceCounters:
        """What became of the items."""

    @property
    def options(self) -> ServiceOptions:
        """Its bounds."""

    @property
    def accepting(self) -> bool:
        """Whether what comes is taken, as far as there is room: for a while also where the state says DRAINING."""

    @property
    def queued(self) -> int:
        """Accepted, unsettled items, wherever they are, but for those of `Lane.BACK`."""

    @property
    def backlog_seconds(self) -> float:
        """How long what is `queued` will take, as far as can be told; 0 while nothing is."""

    @property
    def held_bytes(self) -> int:
        """Bytes of queued payloads, half-received bodies and unread answers."""

    @property
    def answer_bytes(self) -> int:
        """Those of `held_bytes` that are finished answers, which no client has taken yet."""

    @property
    def answers_overfull(self) -> bool:
        """Whether finished answers take more than `max_queued_bytes`: no more are made meanwhile."""

    @property
    def memory_short(self) -> bool:
        """Whether less memory is available than `min_free_memory`: newcomers are refused meanwhile."""

    @property
    def memory_available(self) -> int | None:
        """The bytes of memory that were available a second ago at most; None without `min_free_memory`."""

    @property
    def stages(self) -> Sequence[StageView]:
        """The running stages, in order."""

    @property
    def slabs(self) -> Sequence[SlabView]:
        """The shared memories: that of arrivals, then those of the stages; none where there is no shared memory."""

    @property
    def inline_reasons(self) -> Mapping[str, int]:
        """How many payloads of `shm_threshold` or more travelled inline, by `INLINE_REASONS`; empty without `slabs`."""

    def refusal(
        self,
        nbytes: int = 0,
        deadline: float = math.inf,
        lane: Lane = Lane.SINGLE,
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
    ) -> RequestError | None:
        """Why a new request of `nbytes` would be refused now, or None if it would be accepted."""

    def allowance(self, tenant: str) -> Allowance | None:
        """What the rate of a tenant leaves it now; None where it has no rate."""

    def note_refused(self, tenant: str) -> None:
        """Count a request of a tenant that was refused by its head."""

    def tenant_rows(self) -> Sequence[tuple[str, TenantNumbers]]:
        """What was counted of each tenant that metrics show, and of the rest; none where no tenant has a name."""

    def submit(
        self,
        payloads: Sequence[Any],
        codec_in: Codec,
        codec_out: Codec,
        deadline: float,
        done: Callable[[list[Outcome]], None],
        request_id: bytes = b"",
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
        *,
        lane: Lane = Lane.SINGLE,
        wait: bool = False,
        nbytes: int | None = None,
        hold_results: bool = False,
        alone: bool = False,
    ) -> Any:
        """Accept items and call `done` exactly once with their outcomes in order; returns a ticket for `cancel`.

        `deadline` is a monotonic time, or inf.  `lane` is where the items wait.  With `wait` they wait for room until
        the deadline.  `nbytes` is the size of all items, where it is known.  With `hold_results` the results are held
        here until the last one is there, and bounded.  `request_id` is what the stages are told.  With `alone` each
        item is a batch of its own in every stage.  Items of `Lane.BACK` need no room, and count in no bound but their
        submitter's.  `urgency` goes from 0, first, to 7, last; `tenant` is the name of one, or "".  Raises NotReady or
        Overloaded without accepting anything.
        """

    def submit_probe(
        self, example: Any, deadline: float, done: Callable[[list[Outcome]], None], codec_out: Codec | None = None
    ) -> None:
        """Accept one item that tries the service, of no tenant and with the best urgency; else as `submit`.

        It is written as an item of a caller in process, and so is its result, or in `codec_out`.  Its place counts in
        the bound, and it waits before whoever is not as urgent.  It has no quota and no share, is let in on room alone,
        displaces nobody and is not displaced.
        Raises NotReady or Overloaded, and InvalidItem where `example` cannot be written.
        """

    def cancel(self, ticket: Any) -> None:
        """Settle as Cancelled what is not settled yet; harmless when everything is."""

    def recall(self, ticket: Any) -> None:
        """Have what no worker has begun settled as Cancelled, now or when its worker has left it out."""

    def begun(self, ticket: Any) -> bool:
        """Whether any item of the request was at work: it is settled, past the first stage, a suspect, or runs now."""

    def watch_batches(self, sent: Callable[[Callable[[], None] | None, Sequence[bytes]], None]) -> None:
        """Have `sent` called with each batch that is given to a worker.

        It gets a function that kills the worker, None for a thread, and the ids of its requests, without those of
        `Lane.BACK`.
        """

    def leave_soon(self) -> None:
        """Be DRAINING for those who ask from now on, and go on as before: the service is stopped soon."""

    def abandon(self) -> None:
        """End every worker at once, without an answer to anybody."""

    def piece(self, nbytes: int) -> memoryview | None:
        """A place in shared memory for a body or an input of `nbytes`, to be written to and then submitted.

        None where it is to be submitted as any other bytes.  Any thread may ask.  The place is free again when nobody
        has a view of it.
        """

    def hold(self, nbytes: int) -> None:
        """Count bytes that are held besides those of payloads; a negative number gives them back."""

    def hold_answer(self, nbytes: int) -> None:
        """Count bytes of a finished answer; a negative number gives them back."""

    def piece_for(self, body: ArrivingBody) -> memoryview | None:
        """A piece for a body in arrival, whose first bytes came: a writable view of `body.announced` bytes.

        None where it goes on inline.  Once it is whole, or will not come, `arrived` is told.
        """

    def arrived(self, body: ArrivingBody) -> None:
        """A body that was given a piece is in arrival no more; harmless where that is known."""

    async def worker_stacks(self) -> Mapping[str, str]:
        """The stacks of each worker process, by what the worker is called; those that cannot be had are left out."""


class StageDescription(Protocol):
    """A stage as its author described it."""

    @property
    def name(self) -> str:
        """Its name, unique in the service."""

    @property
    def target(self) -> Any:
        """The class or function; None where its workers attach from outside."""

    @property
    def workers(self) -> int:
        """How many workers are started for it; 0 where they attach from outside."""

    @property
    def external(self) -> object:
        """What is known of workers that attach from outside; None where the service starts its own."""

    def gpus_of(self, worker: int) -> Sequence[int | str]:
        """The GPUs that a worker is given, as they were named; empty where nothing is said about GPUs."""

    @property
    def batch(self) -> Batch | None:
        """Its batch policy; None takes items one by one."""

    @property
    def concurrency(self) -> int:
        """The most batches that one of its workers has in progress, where it is a waiting stage; else 0."""

    @property
    def options(self) -> StageOptions:
        """How its items are sent, run, and run again."""

    @property
    def examples(self) -> Sequence[Any]:
        """Inputs of this stage."""

    def signature(self) -> Signature:
        """The type of one item and of one result; raises ConfigError where an annotation says neither."""

    @property
    def crossing(self) -> Codec:
        """The format that jobs and callers in process speak with its workers: PICKLE where they are ours."""

    def accepts(self) -> frozenset[Codec]:
        """The formats that an item may be sent in; raises ConfigError where it can be sent in none."""

    def offers(self) -> tuple[Codec, ...]:
        """The formats that a result may be had in, the preferred one first."""


FILES_PER_WORKER = 4
"""What a worker process takes: its channel, its lifeline, the descriptor that tells of its end, that of its stacks."""

FILES_PER_SLAB = 3
"""What a slab takes: its descriptor, the one that is open for reading only, and that of its map."""


class Servable(Protocol):
    """A service that a host can feed."""

    logs: LogOptions
    """How its workers write their log lines; a host that has a say sets it before `start`."""
    served: bool
    """Whether every caller comes over HTTP; a host that is the only way in sets it before `start`."""
    tenant_rules: TenantRules | None
    """What its file of tenants says; a host that has read it sets this before `start`, and it is not read again."""

    @property
    def name(self) -> str:
        """The service's name: in its metrics, and in its routes where there are several services."""

    @property
    def version(self) -> str:
        """Which version of the service this is, in its author's words; "" where they say nothing."""

    @property
    def model_version(self) -> int | None:
        """Its number in the model directory that it was loaded from; None where it is from none."""

    @property
    def options(self) -> ServiceOptions:
        """Its bounds."""

    @property
    def engine(self) -> HostedEngine | None:
        """The engine, once `start` has made it."""

    @property
    def stages(self) -> Sequence[StageDescription]:
        """Its stages, in order."""

    def check_process(self) -> None:
        """Do nothing, or raise ConfigError in a fork of the process that started it: there is only a copy."""

    async def start(self) -> Any:
        """Return once every stage is ready; raises StartFailed."""

    async def stop(self, *, drain_timeout: float) -> Any:
        """Finish what was accepted for at most `drain_timeout` seconds, then settle the rest and end the workers."""


def files_of_workers(services: Sequence[Servable]) -> int:
    """The most open files that the workers of `services`, and the slabs, take: one that attaches takes one alone."""
    return sum(_files_of_workers(service) for service in services)


def _files_of_workers(service: Servable) -> int:
    files = sum(
        FILES_PER_WORKER * stage.workers if stage.external is None else service.options.max_remote_workers
        for stage in service.stages
    )
    if service.options.shm_bytes != 0:
        files += FILES_PER_SLAB * slab_count(
            [stage.external is None and not stage.concurrency for stage in service.stages]
        )
    return files


def check_sockets(services: Sequence[Servable], uds: str | None = None) -> None:
    """ConfigError where two of `services`, or one and the server at `uds`, are to listen on one path, by any names."""
    taken: dict[str, str] = {} if uds is None else {os.path.realpath(uds): "uds"}
    for service in services:
        path = service.options.remote_worker_socket
        if path is None:
            continue
        owner = f"remote_worker_socket of service {service.name!r}"
        other = taken.setdefault(os.path.realpath(path), owner)
        if other != owner:
            raise ConfigError(f"{owner} and {other} have the same path {path!r}: each socket needs its own path")
