"""A stage as the author of a service describes it: frozen, and checked at birth."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.config import Batch
from penstock.errors import ConfigError
from penstock.worker.loading import check_setup
from penstock.worker.stage import Stage

Cores: TypeAlias = frozenset[int] | None
"""The cores a worker is pinned to, or None."""

SINGLES = Batch(max_size=1)


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a service; made by `stage()`."""

    target: Any
    """The `Stage` class, or a plain function."""
    name: str
    workers: int
    setup: Mapping[str, Any] = field(default_factory=dict)
    cpus: tuple[Cores, ...] = ()
    """The cores of each worker; empty: none is pinned."""
    env: tuple[Mapping[str, str], ...] = ()
    """The environment added for each worker; empty: nothing is added."""
    batch: Batch | None = None
    examples: tuple[Any, ...] = ()
    prefetch: int = 1
    max_queued: int | None = None
    timeout: float | None = None
    bisect: bool = True
    retry: bool = True

    @property
    def policy(self) -> Batch:
        """How this stage's queue cuts: a stage without a policy gets one item at a time."""
        return self.batch or SINGLES


def stage(
    target: type | Callable[[Any], Any],
    *,
    name: str | None = None,
    setup: Mapping[str, Any] | None = None,
    workers: int | None = None,
    cpus: Sequence[int | Sequence[int] | None] | None = None,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    batch: Batch | None = None,
    prefetch: int = 1,
    max_queued: int | None = None,
    timeout: float | None = None,
    bisect: bool = True,
    retry: bool = True,
) -> StageSpec:
    """Describe a stage of a service.

    Args:
        target: a `Stage` class, or a plain function of one item (or of a list, with `batch`).
        name: unique within the service; the class's name if left out.
        setup: keyword arguments for the class's `setup`; plain values, they travel to the worker.
        workers: how many processes; as many as `cpus` has entries if left out, else 1.
        cpus: for worker i the core, or the list of cores, it is pinned to; None leaves that worker unpinned.
        env: environment variables for every worker, or one mapping for each.
        batch: the batch policy; overrides the class's own.
        prefetch: batches a worker holds besides the one it runs; 0 never sends ahead.  Raise it for stages that take
            microseconds.
        max_queued: most items waiting for this stage; None leaves it to the service's bound.
        timeout: seconds a batch may run before its worker is killed and the items treated as after a death;
            None: for ever.
        bisect: whether a batch that raises is run again in halves to find the culprit.
        retry: whether items whose worker died are run once more, alone.

    Raises:
        ConfigError: an argument has a value it cannot have.
    """
    if not callable(target):
        raise ConfigError(f"a stage is a class or a function, got {target!r}")
    if inspect.isclass(target) and not issubclass(target, Stage):
        raise ConfigError(
            f"{target.__qualname__} is not a stage: a stage is a subclass of penstock.Stage or a function"
        )
    if inspect.isclass(target) and getattr(target, "predict", None) is Stage.predict:
        raise ConfigError(f"{target.__qualname__} has no predict method")
    label = getattr(target, "__name__", "") if name is None else name
    if not isinstance(label, str):
        raise ConfigError(f"a stage's name is a string, got {label!r}")
    if not label:
        raise ConfigError(f"stage {target!r} has no name of its own: give it one with name=")
    pinned = tuple(_cores(label, entry) for entry in cpus) if cpus is not None else ()
    count = workers if workers is not None else (1 if cpus is None else len(pinned))
    _check_numbers(label, count, prefetch, max_queued, timeout)
    if cpus is not None and len(pinned) != count:
        raise ConfigError(f"stage {label!r}: workers={count} but cpus has {len(pinned)} entries, one for each worker")
    policy = batch if batch is not None else getattr(target, "batch", None)
    if policy is not None and not isinstance(policy, Batch):
        raise ConfigError(f"stage {label!r}: batch takes a penstock.Batch, got {policy!r}")
    for what, switch in (("bisect", bisect), ("retry", retry)):
        if not isinstance(switch, bool):
            raise ConfigError(f"stage {label!r}: {what} must be True or False, got {switch!r}")
    arguments = dict(setup or {})
    check_setup(label, target, arguments)
    return StageSpec(
        target=target,
        name=label,
        workers=count,
        setup=arguments,
        cpus=pinned,
        env=_environments(label, env, count),
        batch=policy,
        examples=tuple(getattr(target, "examples", ())),
        prefetch=prefetch,
        max_queued=max_queued,
        timeout=timeout,
        bisect=bisect,
        retry=retry,
    )


def _check_numbers(label: str, workers: int, prefetch: int, max_queued: int | None, timeout: float | None) -> None:
    for what, value, least in (("workers", workers, 1), ("prefetch", prefetch, 0), ("max_queued", max_queued, 1)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= least):
            raise ConfigError(f"stage {label!r}: {what} must be a whole number of at least {least}, got {value!r}")
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise ConfigError(f"stage {label!r}: timeout must be more than 0 seconds, got {timeout!r}")


def _cores(label: str, entry: int | Sequence[int] | None) -> Cores:
    if entry is None:
        return None
    cores = frozenset([entry] if isinstance(entry, int) else entry)
    if not cores or not all(isinstance(core, int) and core >= 0 for core in cores):
        raise ConfigError(f"stage {label!r}: cpus takes core numbers, lists of them, or None, got {entry!r}")
    return cores


def _environments(
    label: str, env: Mapping[str, str] | Sequence[Mapping[str, str]] | None, count: int
) -> tuple[Mapping[str, str], ...]:
    if env is None:
        return ()
    each = (env,) * count if isinstance(env, Mapping) else tuple(env)
    if len(each) != count:
        raise ConfigError(f"stage {label!r}: {count} workers but env has {len(each)} entries, one for each worker")
    for mapping in each:
        for key, value in mapping.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise ConfigError(f"stage {label!r}: env takes strings, got {key!r}: {value!r}")
    return tuple(dict(mapping) for mapping in each)
