"""Command-line flags and environment variables, made from the fields of the option classes.

A flag wins over its `PENSTOCK_*` variable, which wins over what the service's author wrote.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, TypeVar

from penstock.cli.pools import Pools, parse_pools
from penstock.config import ArtifactOptions, ServerOptions, ServiceOptions
from penstock.errors import ConfigError
from penstock.jobs.work_options import QueueOptions, WorkOptions
from penstock.option_fields import (
    check_options,
    environment_name,
    flag_name,
    from_environment,
    name_in_command,
    option,
    parse_option,
    renamed,
    service_link,
)
from penstock.spelling import RENAMED, is_slip, nearest

T = TypeVar("T")


class WronglyCalled(Exception):
    """A flag or a variable has a value that it cannot have, whatever the machine and the services; `error` says why."""

    def __init__(self, error: ConfigError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """What only the command `penstock serve` takes: a program writes it in Python instead."""

    workers: str | None = option(None, "workers per stage: `2`, or `embed=4,rank=1`")

    reload: bool = option(False, "restart when a .py file under the current directory changes (development)")

    def __post_init__(self) -> None:
        check_options(self)
        self.pools()

    def pools(self) -> Pools:
        """What `workers` says."""
        return parse_pools(self.workers)


OWNERS = (CommandOptions, ArtifactOptions, ServerOptions, ServiceOptions, QueueOptions, WorkOptions)
"""The classes whose fields are flags of some command, and variables."""


VARIABLES = frozenset(
    [
        *(environment_name(f.name) for owner in OWNERS for f in fields(owner)),
        "PENSTOCK_QUEUE_URL",
        "PENSTOCK_FAILPOINTS",
    ]
)
"""Every variable that is read."""


def add_flags(
    parser: argparse.ArgumentParser,
    owner: type,
    title: str,
    *,
    leave_out: Collection[str] = (),
    helps: Mapping[str, str] | None = None,
) -> None:
    """A flag for each field of `owner` but those to leave out.

    `helps` has the text of an option that means something of its own in this command.
    """
    own = helps or {}
    group = parser.add_argument_group(title)
    for f in fields(owner):
        if f.name in leave_out:
            continue
        flag = flag_name(f.name)
        words = own.get(f.name, f.metadata["help"])
        text = f"{words} (default {_shown(f)}; {environment_name(f.name)})".replace("%", "%%")
        if isinstance(f.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif f.metadata["repeated"]:
            group.add_argument(flag, action="append", metavar=_metavar(f), default=None, help=text)
        else:
            group.add_argument(flag, metavar=_metavar(f), default=None, help=text)


def chosen(
    arguments: argparse.Namespace, owner: type, environ: Mapping[str, str], *, unread: Container[str] = ()
) -> dict[str, Any]:
    """The options of `owner` that the environment or the command line sets.

    A variable is read where the command has its flag, and it is not one of `unread`: others may set variables that
    mean something else to them.
    """
    names = [f.name for f in fields(owner) if hasattr(arguments, f.name) and f.name not in unread]
    found = from_environment(owner, environ, names)
    for f in fields(owner):
        value = getattr(arguments, f.name, None)  # a command may lack the flag
        if isinstance(value, list):  # a flag that may be repeated
            found[f.name] = tuple(part for text in value for part in parse_option(f, text))
        elif value is not None:
            found[f.name] = parse_option(f, value) if isinstance(value, str) else value
    return found


def checked(
    arguments: argparse.Namespace, owner: type[T], environ: Mapping[str, str], *, unread: Container[str] = ()
) -> T:
    """The options of `owner` as they are chosen; raises WronglyCalled, which names flags and variables."""
    try:
        return owner(**chosen(arguments, owner, environ, unread=unread))
    except ConfigError as error:
        raise WronglyCalled(renamed(error, owner, name_in_command)) from None


def server_options(
    arguments: argparse.Namespace, environ: Mapping[str, str], *, unread: Container[str] = ()
) -> ServerOptions:
    """The server's options, checked, without the variables of those `unread`; raises WronglyCalled."""
    return checked(arguments, ServerOptions, environ, unread=unread)


def command_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> CommandOptions:
    """The command's own options, checked; raises WronglyCalled."""
    return checked(arguments, CommandOptions, environ)


def queue_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> QueueOptions:
    """What jobs may name, checked; raises WronglyCalled."""
    return checked(arguments, QueueOptions, environ)


def work_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> WorkOptions:
    """The options of a consumer, checked; raises WronglyCalled."""
    return checked(arguments, WorkOptions, environ)


def service_fields(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """What to change in every service's options, checked; raises WronglyCalled."""
    checked(arguments, ServiceOptions, environ)
    return chosen(arguments, ServiceOptions, environ)


def renamed_flags(words: Iterable[str], flags: Collection[str]) -> list[tuple[str, str]]:
    """The old flags among `words`, each with the one of `flags` that it is now."""
    found = []
    for word in words:
        flag = word.partition("=")[0]
        no = "--no-" if flag.startswith("--no-") else "--"
        now = RENAMED.get(flag.removeprefix(no).replace("-", "_")) if flag.startswith("--") else None
        if now is not None and (new := no + flag_name(now)[2:]) in flags:
            found.append((flag, new))
    return found


def near_flags(words: Iterable[str], flags: Iterable[str]) -> list[str]:
    """The `flags` of a command that those of `words`, which it does not know, may have meant."""
    known = [flag[2:].replace("-", "_") for flag in flags]
    names = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    near = [_near(name, known) for name in names]
    return [flag_name(option) for option in near if option is not None]


def _near(name: str, known: Sequence[str]) -> str | None:
    """The one of `known` that `name` may mean: the only one that begins so, one with a slip in it, or the nearest."""
    begun = [n for n in known if n.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    return next((n for n in known if is_slip(name, n)), nearest(name, known))


def unused_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable of `environ` that sets nothing: a link, and what is near to one that would set.

    Others that begin alike are left alone: Penstock has some besides its options, and so may the user.
    """
    names = [environment_name(f.name) for owner in OWNERS for f in fields(owner)]
    prefix = environment_name("")
    options = {name.removeprefix(prefix): name for name in names}
    found = [
        f"the variable {environment_name(name)} is ignored: {environ[environment_name(name)]!r} is "
        "the address of a Kubernetes Service named penstock"
        for name in sorted(f.name for owner in OWNERS for f in fields(owner))
        if service_link(name, environ)
    ]
    for name, value in sorted(environ.items()):
        option_name = name.removeprefix(prefix)
        if name.startswith(prefix) and option_name not in options and value:
            now = environment_name(RENAMED.get(option_name.lower(), ""))
            if now in VARIABLES:
                found.append(f"unknown variable {name}: it is {now} now")
                continue
            near = next((known for known in options if is_slip(option_name, known)), nearest(option_name, options))
            if near is not None:
                found.append(f"unknown variable {name}: did you mean {options[near]}?")
    return found


def _metavar(f: Field[Any]) -> str:
    choices = f.metadata["choices"]
    if choices:
        return "{" + ",".join(map(str, choices)) + "}"
    return f.metadata["unit"] or {int: "N", float: "SECONDS"}.get(f.metadata["kind"], "TEXT")


def _shown(f: Field[Any]) -> str:
    if f.default in (None, ()):
        return "none"
    return f"{f.default:o}" if f.name.endswith("_mode") else str(f.default)
