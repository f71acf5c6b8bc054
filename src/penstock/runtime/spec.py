"""A stage as the author of a service describes it: frozen, and checked at birth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from penstock.codec.annotations import Signature
from penstock.codec.formats import Codec
from penstock.codec.schema import accepts, offers
from penstock.config import Batch, StageOptions, check_stage_name, checked_keywords
from penstock.errors import ConfigError
from penstock.option_fields import whole_number
from penstock.runtime.gpus import VARIABLE, Gpus, GpusHere, check_environments, read_gpus, variable_of
from penstock.runtime.stage_check import check_calls, check_described, check_target, examples_of
from penstock.runtime.stage_hooks import check_hooks
from penstock.worker.declaration import Declaration
from penstock.worker.declared import declaration_of, declared_signature
from penstock.worker.loading import check_setup
from penstock.worker.stage import waiting_methods

Cores: TypeAlias = frozenset[int] | None
"""The cores a worker is pinned to, or None."""

SINGLES = Batch(max_size=1)
AT_LEAST_ONE = whole_number(least=1)
CONCURRENCY = 64
"""Batches in progress in one worker whose `predict` is `async`, where nothing else is said."""
HOOKS_CONCURRENCY = 2
"""Likewise, where only other methods are `async`: the hooks of a batch run while `predict` computes another one."""


@dataclass(frozen=True, slots=True)
class External:
    """What is known of a stage whose workers attach from outside."""

    accepts: tuple[Codec, ...]
    """The formats of its items and of its results, the preferred one first."""
    item: Any
    result: Any


def preferred(formats: Sequence[Codec]) -> Codec:
    """Which of the formats of an external stage is spoken where no client has chosen one."""
    return Codec.MSGPACK if Codec.MSGPACK in formats else formats[0]


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a service; made by `stage()` or `external()`."""

    target: Any
    """The `Stage` class, or a function; None where the workers are external."""
    name: str
    workers: int
    """How many are started; 0 where they are external."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    cpus: tuple[Cores, ...] = ()
    """The cores of each worker; empty: none is pinned."""
    env: tuple[Mapping[str, str], ...] = ()
    """The environment added for each worker; empty: nothing is added."""
    gpus: tuple[Gpus, ...] = ()
    """The GPUs of each worker; empty: nothing is said about GPUs."""
    batch: Batch | None = None
    examples: tuple[Any, ...] = ()
    options: StageOptions = field(default_factory=StageOptions)
    declared: Declaration = field(default_factory=Declaration)
    """What the stage says of itself with this `setup`."""
    external: External | None = None
    """What is known of a stage whose workers attach from outside; None where we start them."""
    concurrency: int = 0
    """How many frames a worker of a waiting stage has in progress at once; 0: the stage is plain."""

    def signature(self) -> Signature:
        """The type of one item and of one result.

        Raises:
            ConfigError: an annotation cannot be resolved, or is no batch where the stage takes batches.
        """
        if self.external is not None:
            return Signature(self.external.item, self.external.result)
        return declared_signature(self.target, self.declared, batched=self.batch is not None)

    def accepts(self) -> frozenset[Codec]:
        """The formats that a caller may send an item of this stage in.

        Raises:
            ConfigError: its item can be sent in none.
        """
        return accepts(self.signature().item) if self.external is None else frozenset(self.external.accepts)

    def offers(self) -> tuple[Codec, ...]:
        """The formats that a caller may get a result of this stage in, the preferred one first."""
        return offers(self.signature().result) if self.external is None else self.external.accepts

    @property
    def crossing(self) -> Codec:
        """The format that stages of ours, jobs and callers in process speak with its workers."""
        if self.external is None:
            return Codec.PICKLE
        return preferred(self.external.accepts)

    @property
    def policy(self) -> Batch:
        """How this stage's queue cuts batches: a stage without a policy gets one item at a time."""
        return self.batch or SINGLES

    def gpus_of(self, worker: int) -> Gpus:
        """The GPUs that `worker` is given; empty where nothing is said about GPUs."""
        return self.gpus[worker] if self.gpus else ()

    def environments(self, here: GpusHere) -> list[dict[str, str]]:
        """The variables that are added for each worker: its `env`, and the one that gives it its GPUs of those `here`.

        Raises:
            ConfigError: there is no such GPU.
        """
        extra = [dict(each) for each in self.env or ({},) * self.workers]
        for each, gpus in zip(extra, self.gpus, strict=False):
            each[VARIABLE] = variable_of(self.name, gpus, here)
        return extra


@checked_keywords("penstock.stage")
def stage(
    target: type | Callable[[Any], Any],
    *,
    name: str | None = None,
    setup: Mapping[str, Any] | None = None,
    workers: int | None = None,
    cpus: Sequence[int | Sequence[int] | None] | None = None,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    gpus: Sequence[int | str | Sequence[int | str]] | None = None,
    batch: Batch | None = None,
    concurrency: int | None = None,
    prefetch: int | None = None,
    max_in_flight_batches: int | None = None,
    max_queued: int | None = None,
    timeout: float | None = None,
    orphan_timeout: float | Literal["auto"] = "auto",
    unhealthy_after: float = 30.0,
    bisect: bool = True,
    retry: bool = True,
) -> StageSpec:
    """Describe a stage of a service.

    Args:
        target: a `Stage` class, or a function of one item (or of a list, with `batch`), plain or `async`.
        name: unique within the service; the class's name if left out.
        setup: keyword arguments for the class's `setup`; plain values, they travel to the worker.
        workers: how many processes; as many as `gpus` or `cpus` has entries if left out, else 1.
        cpus: for worker i the core, or the list of cores, it is pinned to; None leaves that worker unpinned.
        env: environment variables for every worker, or one mapping for each.
        gpus: for worker i the GPU, or the list of GPUs, that it sees: its ``CUDA_VISIBLE_DEVICES``.  A GPU is a number
            from 0, which counts those that this process sees, or an id (``"GPU-..."``); workers may share one.  None:
            they see what this process sees.
        batch: the batch policy; overrides the class's own.
        concurrency: most batches that one worker has in progress at once, from 1 to 10000, where a method of the stage
            is `async`; a stage without a policy has one item in each.  64 if left out and `predict` is `async`, 2
            if only other methods are.
        prefetch: batches a worker holds besides those it runs; 0 never sends ahead.  Raise it for stages that take
            microseconds.  If left out 1, and 0 where a method of the stage is `async`.
        max_in_flight_batches: most batches of the stage that are with its workers, running or sent ahead; at least 1.
            None: as many as each worker may hold.
        max_queued: most items waiting for this stage; None leaves it to the service's bound.
        timeout: seconds a batch may run before its worker is killed and the items treated as after a death;
            None: for ever.
        orphan_timeout: seconds a batch may run on after its last item expired or its caller left; then its worker is
            killed and replaced.  "auto" is the longest of 30 s, ten times the longest run of the stage, and the time
            that this worker took to start; 300 s before the first answer of a worker without examples.  It is doubled
            by each such kill, until the stage answers a batch.  inf: for ever.
        unhealthy_after: seconds for which every batch must fail, at least five in a row, until a worker of a stage
            without `examples` is restarted; 0: five are enough, inf: never.  A stage with examples runs one instead.
        bisect: whether a batch that raises is run again in halves to find the culprit.
        retry: whether items whose worker died are run once more, alone.

    Raises:
        ConfigError: an argument has a value it cannot have.
    """
    given = locals()  # first, so that it has only the arguments; `stage_options` looks the options up in it by name
    check_target(target)
    label = _label(target, name)
    check_described(label, target)
    arguments = _setup_arguments(label, setup)
    check_setup(label, target, arguments)
    declared = declaration_of(target, arguments)
    policy = batch_policy(label, target, declared.batch if batch is None else batch)
    check_calls(label, target, batched=policy is not None)
    check_hooks(label, target, batched=policy is not None)
    pinned = _pinned(label, cpus)
    given_gpus = read_gpus(label, gpus)
    count = _count(label, workers, {"gpus": given_gpus or None, "cpus": pinned})
    environments = _environments(label, env, count)
    check_environments(label, given_gpus, environments)
    waits = waiting_methods(target)
    if prefetch is None:
        given["prefetch"] = 0 if waits else 1
    options = stage_options(label, given)
    return StageSpec(
        target=target,
        name=label,
        workers=count,
        setup=arguments,
        cpus=pinned or (),
        env=environments,
        gpus=given_gpus,
        batch=policy,
        examples=examples_of(label, target if declared.examples is None else declared),
        options=options,
        declared=declared,
        concurrency=_concurrency(label, waits, options.concurrency),
    )


def external_stages(specs: Iterable[StageSpec]) -> list[str]:
    """The names of the stages whose workers attach from outside."""
    return [spec.name for spec in specs if spec.external is not None]


def with_workers(spec: StageSpec, workers: int) -> StageSpec:
    """`spec` with another number of workers.

    Raises:
        ConfigError: it is less than 1, or `spec` says of each worker what cores, GPUs or environment it gets, and has
            another number of them.  Or its workers attach from outside.
    """
    if spec.external is not None:
        raise ConfigError(
            f"stage {spec.name!r}: it is external, so it cannot have a number of workers; max_remote_workers limits "
            "them"
        )
    count = _count(spec.name, workers, {"gpus": spec.gpus or None, "cpus": spec.cpus or None})
    env = spec.env
    if env and len(env) != count:
        if any(each != env[0] for each in env):
            raise ConfigError(
                f"stage {spec.name!r}: workers={count} but env has {len(env)} entries, one for each worker"
            )
        env = (env[0],) * count
    return replace(spec, workers=count, env=env)


def with_timeout(spec: StageSpec, seconds: float) -> StageSpec:
    """`spec` with a timeout of `seconds` if it has none."""
    if spec.options.timeout is not None:
        return spec
    return replace(spec, options=replace(spec.options, timeout=seconds))


def _label(target: Any, name: Any) -> str:
    """The stage's name: `name`, or that of `target`."""
    label = getattr(target, "__name__", "") if name is None else name
    if name is None and not label:
        raise ConfigError(f"stage {target!r} has no name: set one with name=")
    check_stage_name(label, ": set one with name=" if name is None else "")
    return str(label)


def _count(label: str, workers: int | None, lists: Mapping[str, Sequence[Any] | None]) -> int:
    """How many workers the stage has; `lists` are the arguments with an entry for each, None where not given."""
    given = {name: entries for name, entries in lists.items() if entries is not None}
    default = next((len(entries) for entries in given.values()), 1)
    count: int = AT_LEAST_ONE.take(f"stage {label!r}: workers", default if workers is None else workers)
    for name, entries in given.items():
        if len(entries) != count:
            said = f"workers={count}" if workers is not None else f"{count} workers"
            raise ConfigError(f"stage {label!r}: {said} but {name} has {len(entries)} entries, one for each worker")
    return count


def _concurrency(label: str, waits: Collection[str], given: int | None) -> int:
    """How many frames a worker has in progress whose methods `waits` are `async`; 0 where none is."""
    if waits:
        return given or (CONCURRENCY if "predict" in waits else HOOKS_CONCURRENCY)
    if given is not None:
        raise ConfigError(
            f"stage {label!r}: concurrency={given} needs a stage with an `async` method, and a worker of this one "
            f"runs one batch at a time: write `async def predict`, or workers={given}"
        )
    return 0


def _setup_arguments(label: str, setup: Any) -> dict[str, Any]:
    if setup is None:
        return {}
    if not isinstance(setup, Mapping) or not all(isinstance(name, str) for name in setup):
        raise ConfigError(
            f"stage {label!r}: setup must be a dict with the arguments of setup, as in setup={{'path': ...}}, got "
            f"{setup!r}"
        )
    return dict(setup)


def batch_policy(label: str, target: Any, batch: Any) -> Batch | None:
    """The policy `batch`, or that of `target`; ConfigError if it is none."""
    policy = batch if batch is not None else getattr(target, "batch", None)
    if policy is not None and not isinstance(policy, Batch):
        size = policy if AT_LEAST_ONE.admits(policy) else 32
        raise ConfigError(
            f"stage {label!r}: batch must be a penstock.Batch, got {policy!r}: write penstock.Batch(max_size={size})"
        )
    return policy


def stage_options(label: str, given: Mapping[str, Any]) -> StageOptions:
    """The options among the arguments that were `given`; ConfigError where one has a value it cannot have."""
    try:
        return StageOptions(**{f.name: given[f.name] for f in fields(StageOptions) if f.name in given})
    except ConfigError as error:
        raise ConfigError(f"stage {label!r}: {error}") from None


def _pinned(label: str, cpus: Any) -> tuple[Cores, ...] | None:
    """The cores of each worker; None where nothing is said about them."""
    if cpus is None:
        return None
    if not isinstance(cpus, Iterable) or isinstance(cpus, (str, bytes, Mapping)):
        raise ConfigError(f"stage {label!r}: cpus must be a list with an entry for each worker, got {cpus!r}")
    return tuple(_cores(label, entry) for entry in cpus)


def _cores(label: str, entry: Any) -> Cores:
    if entry is None:
        return None
    cores = tuple(entry) if isinstance(entry, Iterable) else (entry,)
    if not cores or not all(isinstance(core, int) and not isinstance(core, bool) and core >= 0 for core in cores):
        raise ConfigError(f"stage {label!r}: cpus must have core numbers, lists of them, or None, got {entry!r}")
    return frozenset(cores)


def _environments(label: str, env: Any, count: int) -> tuple[Mapping[str, str], ...]:
    if env is None:
        return ()
    each = (env,) * count if isinstance(env, Mapping) else tuple(env) if isinstance(env, Iterable) else (env,)
    if not all(isinstance(mapping, Mapping) for mapping in each):
        raise ConfigError(
            f"stage {label!r}: env must be a dict for all workers, such as env={{'OMP_NUM_THREADS': '1'}}, or a list "
            f"with a dict for each, got {env!r}"
        )
    if len(each) != count:
        raise ConfigError(f"stage {label!r}: {count} workers but env has {len(each)} entries, one for each worker")
    for mapping in each:
        for key, value in mapping.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise ConfigError(f"stage {label!r}: env must have strings, got {key!r}: {value!r}")
            if not key or "=" in key or "\0" in key + value:  # no process can be started with it
                raise ConfigError(f"stage {label!r}: env has an invalid variable: {key!r}: {value!r}")
    return tuple(dict(mapping) for mapping in each)
