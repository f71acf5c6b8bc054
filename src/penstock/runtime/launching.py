"""What each worker of a stage is told, and which cores and threads it gets.  Nothing is started here."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.config import IN_A_PROGRAM, LogOptions, ServiceOptions
from penstock.core.supervision import share_threads
from penstock.hosting.guarded_log import guarded_logger
from penstock.runtime.affinity import allowed_cores, check_cores
from penstock.runtime.crossings import crossings
from penstock.runtime.gpus import VARIABLE, GpusHere, doubtful_gpus, gpus_here
from penstock.runtime.spec import StageSpec
from penstock.transport.messages import Launch, StageRef
from penstock.worker.loading import adopt_main, pack_setup, reference

log = guarded_logger("penstock.runtime")


class WorkerPlace(NamedTuple):
    """Where a worker runs."""

    cores: frozenset[int]
    threads: int
    """How many threads its libraries should start."""
    variables: Mapping[str, str]
    """The variables that its environment gets besides."""


class Plan(NamedTuple):
    """How the workers of a service are started; each list has an entry for each stage."""

    allowed: frozenset[int]
    """The cores that this process may use."""
    launch: list[Callable[[int], Launch]]
    """From a worker's number to its launch order."""
    places: list[list[WorkerPlace]]
    """Where each worker runs."""


def plan(
    service: str,
    specs: Sequence[StageSpec],
    options: ServiceOptions,
    *,
    cpus: Sequence[int] | None,
    inline: bool,
    logs: LogOptions = IN_A_PROGRAM,
    served: bool = False,
) -> Plan:
    """How the workers of all stages are started, on the coordinator's cores `cpus`.

    Raises:
        ConfigError: a stage cannot be run as described: cores not allowed, no such GPU, a class no worker can import.
    """
    allowed = allowed_cores()
    if cpus is not None:
        check_cores(f"service {service!r}", cpus, allowed)
    stages = range(len(specs))
    launch = [launcher(service, specs, i, options, inline=inline, logs=logs, served=served) for i in stages]
    cores = [worker_cores(spec, allowed) for spec in specs]
    if inline:  # threads have the environment of this process, and see its GPUs
        environments: list[list[dict[str, str]]] = [[{}] * spec.workers for spec in specs]
    else:
        here = gpus_here(os.environ)
        environments = [spec.environments(here) for spec in specs]
        for spec in specs:
            for words in doubts_about_gpus(spec, here):
                log.warning("stage %r: %s", spec.name, words)
    places = [list(map(WorkerPlace, *each, extra)) for each, extra in zip(cores, environments, strict=True)]
    return Plan(allowed, launch, places)


def doubts_about_gpus(spec: StageSpec, here: GpusHere) -> list[str]:
    """Sentences about the GPUs that the workers of a stage share, or will not see.

    Raises:
        ConfigError: there is no such GPU.
    """
    values = [extra.get(VARIABLE, here.variable or "") for extra in spec.environments(here)]
    # With `max_in_flight_batches=1` one of them computes at a time, and whoever wrote so knows that they share.
    return doubtful_gpus(spec.gpus, values, here, may_share=spec.options.max_in_flight_batches == 1)


def launcher(
    service: str,
    specs: Sequence[StageSpec],
    index: int,
    options: ServiceOptions,
    *,
    inline: bool,
    logs: LogOptions = IN_A_PROGRAM,
    served: bool = False,
) -> Callable[[int], Launch]:
    """A function from a worker's number to its launch order, for stage `index`.

    Raises:
        ConfigError: the stage's class cannot be imported by a worker, or a setup argument cannot travel.
    """
    spec = specs[index]
    if spec.external is not None:
        return _launches_nobody
    crossing = crossings(specs)[index + 1]
    before = specs[index - 1] if index else None
    setup = pack_setup(spec.name, dict(spec.setup))
    if inline:
        ref = StageRef("", "")  # the thread gets the target itself and imports nothing
    else:
        ref = reference(spec.target)
        adopt_main()

    def launch(worker: int) -> Launch:
        return Launch(
            service=service,
            stage=spec.name,
            index=worker,
            count=spec.workers,
            gpus=spec.gpus_of(worker),
            ref=ref,
            setup=setup,
            sys_path=search_path(sys.path),
            batched=spec.batch is not None,
            max_size=spec.policy.max_size,
            options=spec.options,
            first=index == 0,
            last=index == len(specs) - 1,
            behind=before.name if before is not None and before.external is not None else "",
            crossing=crossing,
            validate=options.validate_inputs,
            validate_results=options.validate_results,
            allow_nan=options.nan_as_null,
            logs=logs,
            served=served,
            concurrency=spec.concurrency,
        )

    return launch


def _launches_nobody(worker: int) -> Launch:
    raise AssertionError(f"worker {worker} of a remote stage is never launched by us")


def search_path(entries: Iterable[object]) -> list[bytes]:
    """The entries of `sys.path` that Python looks at, as the system has them.

    Python ignores what is no string, and no file has a name that cannot be encoded.
    """
    found = []
    for entry in entries:
        if isinstance(entry, str):
            with contextlib.suppress(UnicodeEncodeError):
                found.append(os.fsencode(entry))
    return found


def worker_cores(spec: StageSpec, allowed: frozenset[int]) -> tuple[list[frozenset[int]], list[int]]:
    """The cores that each worker of a stage runs on, and the number of threads that its libraries should start.

    A worker that is not pinned gets `allowed`: the cores that the coordinator had before it was pinned.
    """
    pinned = spec.cpus or (None,) * spec.workers
    for cores in pinned:
        if cores is not None:
            check_cores(f"stage {spec.name!r}", cores, allowed)
    each = [cores if cores is not None else allowed for cores in pinned]
    return each, share_threads(each)
