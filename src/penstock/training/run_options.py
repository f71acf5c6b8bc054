"""What a training run is told; checked at birth, before any file is looked at."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.option_fields import SECONDS_FROM_0, Limit, option, whole_number

LONGEST_LEASE: Final = 24 * 60 * 60.0
"""A worker that was lost is noticed no later; longer ones are slips, as of milliseconds for seconds."""


def _is_lease(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.5 <= value <= LONGEST_LEASE


def _is_limit(value: Any) -> bool:
    return SECONDS_FROM_0.admits(value) and not isinstance(value, bool) and value > 0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the tasks of a run are leased, and how often each is tried."""

    lease: float = option(
        30.0,
        "seconds without a lease renewal after which a task is released to other workers",
        limit=Limit("a number of seconds from 0.5 to 86400", _is_lease, float),
    )
    max_attempts: int = option(3, "maximum attempts of a task; then the run fails", limit=whole_number(least=1))
    save_timeout: float = option(
        600.0,
        "seconds after which the lease of the save task is no longer renewed; inf: no limit",
        limit=Limit("more than 0 seconds; inf: no limit", _is_limit, float),
    )

    def __post_init__(self) -> None:
        for f in fields(self):  # the class is frozen: `object` sets the plain value instead of the given one
            object.__setattr__(self, f.name, f.metadata["limit"].take(f.name, getattr(self, f.name)))


def folder_path(what: str, given: object) -> Path:
    """The absolute path of a folder that an argument names, without links; it need not be there.

    Raises:
        ConfigError: it is no path, or not one in UTF-8, which the run's file and JSON could not carry.
    """
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        if isinstance(path, str) and path and "\0" not in path:
            try:
                found = os.path.realpath(path)  # two names of one folder are one; it raises for no loop of links
                found.encode()
            except UnicodeEncodeError:
                raise ConfigError(f"{what} must be the path of a directory in UTF-8, got {path!r}") from None
            return Path(found)
    raise ConfigError(f"{what} must be the path of a directory, got {given!r}")
