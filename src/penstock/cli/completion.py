"""Shell completion: sub-commands, flags, their choices, and the services of the modules in the current folder.

A module is read and never imported: a key that is pressed must not run anybody's code, and an import may take long.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import argcomplete

from penstock.cli.model_folders import holds_model
from penstock.codec.formats import MEDIA_TYPES
from penstock.config import FORMATS, ServerOptions, ServiceOptions
from penstock.jobs.rules.job_states import JobState
from penstock.log_level_text import LOG_LEVELS

DEEPEST_FOLDER = 3
"""How many folders below the current one are looked into: ``a.b.c.module:service``."""
MOST_MODULES = 500
"""How many modules are looked at: who presses a key does not want to wait."""
MOST_BYTES = 1 << 20
"""A module that is larger is not read for its services."""
_NOT_COMPLETED = (
    "model_digest",
    "keep",
    "ids",
    "table",
    "id",
    "input",
    "limit",
    "after",
    "older_than",
    "wait",
    "priority",
    "delay",
    "deadline",
    "key",
    "queue_url",
    "stage",
    "setup",
    "host",
    "cors_allow_origin",
    "cpus",
    "url",
    "listen",
    "server",
    "server_name",
    "name",
    "user",
    "image",
    "replicas",
    "min_replicas",
    "max_replicas",
    "service_name",
    "target_seconds",
    "prometheus",
)
"""What is neither a file nor one of a few words: a digest, a number, a name, an address, most of `penstock jobs`."""
NUMBERS_OF_WORKERS = ("1", "2", "4", "8")


def complete(parser: argparse.ArgumentParser, commands: Iterable[argparse.ArgumentParser]) -> None:
    """Answer the shell and end the process, where the shell asks for completions; otherwise return."""
    for command in commands:
        for action in command._actions:  # argparse has no public way to ask
            if (completer := _completer(action)) is not None:
                action.completer = completer  # type: ignore[attr-defined]  # where argcomplete looks for it
    # Flags only behind a dash: with them every service would stand among sixty others.
    argcomplete.autocomplete(parser, always_complete_options=False)


def _completer(action: argparse.Action) -> Any:
    """What completes the value of `action`; None leaves it to the shell's own, which knows files."""
    if action.dest in ("services", "service"):
        return _complete_services
    if action.dest == "log_level":
        return _complete_levels
    if action.dest == "model_format":
        return partial(_complete_choice, FORMATS)
    if action.dest == "to":
        return _complete_versions
    if action.dest == "state":
        return partial(_complete_choice, [state.value for state in JobState])
    if action.dest == "content_type":
        return partial(_complete_choice, MEDIA_TYPES.values())
    if action.dest in _NOT_COMPLETED:
        return argcomplete.completers.SuppressCompleter()
    if action.dest == "workers":
        return partial(_complete_choice, NUMBERS_OF_WORKERS)
    for f in (*fields(ServerOptions), *fields(ServiceOptions)):
        if f.name == action.dest:
            if choices := f.metadata["choices"]:
                return partial(_complete_choice, choices)
            return argcomplete.completers.SuppressCompleter() if f.metadata["kind"] in (int, float) else None
    return argcomplete.completers.SuppressCompleter() if action.dest == "timeout" else None


def _complete_choice(choices: Iterable[object], **_: object) -> list[str]:
    return [str(choice) for choice in choices]


def _complete_levels(prefix: str, **_: object) -> list[str]:
    """The levels, behind what stands before: ``info,my.model=`` names a logger."""
    end = max(prefix.rfind(","), prefix.rfind("=")) + 1
    return [prefix[:end] + level for level in LOG_LEVELS]


def _complete_versions(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """The versions that the model directory has to which a rollback is asked for, the newest first."""
    named = getattr(parsed_args, "model_dir", None)  # the flag may be typed first
    try:
        names = [path.name for path in Path(named, "versions").iterdir()] if named else []
    except OSError:
        return []
    return sorted(filter(str.isdecimal, names), key=int, reverse=True)


def _complete_services(prefix: str, **_: object) -> list[str]:
    try:
        return [*service_names(Path.cwd(), prefix), *artifact_folders(Path.cwd(), prefix)]
    except OSError:
        return []


def service_names(folder: Path, prefix: str = "") -> list[str]:
    """Each `module:service` below `folder` that begins with `prefix`; ``module:`` where no service is seen.

    Where `prefix` names a file, each `file.py:service` in it.
    """
    found = []
    typed, _, _ = prefix.partition(":")
    if typed.endswith(".py"):
        path = folder / typed
        names = services_in(_read(path)) if path.stem.isidentifier() and path.is_file() else []
        return [target for name in names if (target := f"{typed}:{name}").startswith(prefix)]
    for module, path in _modules(folder, "", DEEPEST_FOLDER, [MOST_MODULES]):
        if module.startswith(typed):
            found += [f"{module}:{name}" for name in services_in(_read(path)) or [""]]
    return [name for name in found if name.startswith(prefix)]


def artifact_folders(folder: Path, prefix: str) -> list[str]:
    """The artifacts and model directories below `folder` whose path begins with `prefix`, and the folders that lead on.

    These have a slash, and only where `prefix` has begun to name one: of a module nobody wants to know the folders.
    """
    above, slash, begun = prefix.rpartition("/")
    found = []
    with contextlib.suppress(OSError), os.scandir(folder / f"{above}{slash}") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun) or not entry.is_dir():
                continue
            path = f"{above}{slash}{entry.name}"
            if holds_model(entry.path):
                found.append(path)
            elif prefix:
                found.append(f"{path}/")
    return found


def _modules(folder: Path, package: str, depth: int, left: list[int]) -> Iterator[tuple[str, Path]]:
    """The modules in `folder` and below, by name and file; `left` counts how many more there may be."""
    folders = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        stem = entry.name.removesuffix(".py")
        if not stem.isidentifier():
            continue  # hidden, or nothing that can be imported
        if stem != entry.name and entry.is_file():
            left[0] -= 1
            if left[0] < 0:
                return
            if stem != "__init__":
                yield f"{package}{stem}", Path(entry.path)
        elif entry.is_dir() and stem != "__pycache__" and not Path(entry.path, "pyvenv.cfg").exists():
            folders.append(entry)
    for entry in folders if depth else ():
        yield from _modules(Path(entry.path), f"{package}{entry.name}.", depth - 1, left)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= MOST_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return ""


def services_in(source: str) -> Sequence[str]:
    """The names that a module gives to what it makes of `Service`, as far as its text tells."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for statement in body:
        if isinstance(statement, ast.Assign) and _makes_service(statement.value):
            found += [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and statement.value and _makes_service(statement.value):
            found += [statement.target.id] if isinstance(statement.target, ast.Name) else []
    return found


def _makes_service(value: ast.expr) -> bool:
    """Whether `value` calls something named Service: ``Service(…)``, ``ps.Service(…)``, ``Service(…).other(…)``."""
    while isinstance(value, ast.Call):
        called = value.func
        if isinstance(called, ast.Name):
            return called.id == "Service"
        if not isinstance(called, ast.Attribute):
            return False
        if called.attr == "Service":
            return True
        value = called.value
    return False
