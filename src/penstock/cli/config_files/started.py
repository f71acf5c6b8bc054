"""What a supervisor is told that starts `penstock serve`, and what follows for it from the options.

Contract
--------
* A `StartDescription` that exists can be started: the words are those of `penstock serve`, and the name is one that
  systemd and Kubernetes take.
* The flags are those that were given, and no others: what a module sets itself stays with the module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.option_fields import flag_name

END_MARGIN_SECONDS: Final = 5.0
"""What is left for the end of the workers and of the process when the drain is over."""
LONGEST_NAME: Final = 63
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
"""A label of DNS (RFC 1035): what the name of a Service of Kubernetes is."""


@dataclass(frozen=True, slots=True)
class StartDescription:
    """A server that somebody starts and ends."""

    name: str
    services: tuple[str, ...]
    """As `penstock serve` takes them."""
    flags: tuple[str, ...]
    """The flags of `penstock serve`."""
    server: ServerOptions
    """What these flags say of the server."""

    def __post_init__(self) -> None:
        check_name("--name", self.name)
        for service in self.services:
            if not service or service.startswith("-"):
                raise ConfigError(f"a service must be module:service or a directory, got {service!r}")

    @property
    def words(self) -> tuple[str, ...]:
        """What stands behind `penstock`."""
        return ("serve", *self.services, *self.flags)

    @property
    def end_seconds(self) -> float:
        """How long the server may take to end once it was told to; inf: as long as it wants."""
        return self.server.drain_delay + self.server.drain_timeout + END_MARGIN_SECONDS


def check_name(what: str, name: str) -> None:
    """Raise ConfigError, about `what`, for a name that Kubernetes does not take."""
    if len(name) > LONGEST_NAME or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{what} must be at most {LONGEST_NAME} lower-case letters, digits and dashes, begin with a "
            f"letter and not end with a dash, got {name!r}"
        )


def name_of(service: str) -> str:
    """A name for who serves `service`: that of its module or folder; ConfigError where it cannot be one."""
    module = service.rpartition(":")[0] or service
    last = module.rstrip("/").rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
    name = last.lower().replace("_", "-").strip("-")
    try:
        check_name("--name", name)
    except ConfigError:
        raise ConfigError(f"cannot derive a name from {service!r}: write --name NAME") from None
    return name


def flags_of(owner: type, given: Mapping[str, Any], *, leave_out: Collection[str] = ()) -> list[str]:
    """The flags that say of the options of `owner` what `given` says."""
    found = []
    for f in fields(owner):
        if f.name not in given or f.name in leave_out:
            continue
        flag, value = flag_name(f.name), given[f.name]
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, bool):
                found.append(flag if each else f"--no-{flag[2:]}")
                continue
            text = _text(f.name, each)
            # A value that begins with a dash would be read as a flag.
            found += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return found


def _text(name: str, value: Any) -> str:
    if name.endswith("_mode"):
        return f"{value:o}"
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)
