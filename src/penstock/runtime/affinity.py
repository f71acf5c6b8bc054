"""Which cores a process may use.  A system that cannot say so gives all of them, and pins nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable

from penstock.errors import ConfigError


def allowed_cores() -> frozenset[int]:
    """The cores this process may run on now."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def check_cores(whose: str, cores: Iterable[int], allowed: frozenset[int]) -> None:
    """Raise ConfigError if one of `cores` is not allowed: the kernel would leave it out without an error."""
    outside = sorted(set(cores) - allowed)
    if outside:
        raise ConfigError(f"{whose}: cpus {outside} are not among the allowed cores {sorted(allowed)}")


def pin(cores: Iterable[int]) -> None:
    """Pin the calling thread, and every thread and process it starts later, to `cores`."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
