"""Every public name: what people import, write on a command line, or read in answers, tables and metrics.

    python tests/public_names.py        # prints one a line, of the package that is imported

A name of Python is as ``penstock.jobs.JobQueue.submit(key)`` for an argument, or ``Job.state`` for a field of an
object that people get and do not import.  ``value: queued`` is a state, a reason, a cause or a choice.  All others are
read from the reference: flags, variables, commands, metrics, and the keys and labels in the first column of its tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import penstock

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
RENAMED = REFERENCE / "renamed.md"
PACKAGES = ("", ".client", ".embeddings", ".export", ".features", ".jobs", ".stages", ".training")
"""All that they export is public."""
MODULES = (
    "penstock.artifact.manifest",
    "penstock.client.client_options",
    "penstock.config",
    "penstock.errors",
    "penstock.features.kinds",
    "penstock.jobs.job",
    "penstock.jobs.job_options",
    "penstock.jobs.work_options",
    "penstock.training.run_options",
    "penstock.training.run_status",
)
"""Their options, errors, and objects that people get."""
VALUES = (
    "penstock.core.cuts",
    "penstock.core.state",
    "penstock.jobs.rules.attempts",
    "penstock.jobs.rules.job_states",
    "penstock.training.rules.task_states",
)
"""Besides `MODULES`: enumerations whose values people read."""
WITH_KEYS = ("artifact.md", "commands.md", "http.md", "jobs.md", "metrics.md", "tenants.md")
"""Pages whose tables name keys, labels and values in their first column."""


def public_names() -> set[str]:
    """All of them."""
    return {*python_names(), *values(), *documented()}


def python_names() -> Iterator[str]:
    """Names of Python."""
    for package in PACKAGES:
        module = importlib.import_module(f"penstock{package}")
        for name in module.__all__:
            yield f"{module.__name__}.{name}"
            with contextlib.suppress(ImportError, penstock.ConfigError):  # a layer of a framework that is not installed
                found = getattr(module, name)
                if not isinstance(found, ModuleType):
                    yield from _parts_of(f"{module.__name__}.{name}", found)
    for path in MODULES:
        for name, found in _classes(path):
            yield name
            yield from _parts_of(name, found)


def values() -> Iterator[str]:
    """States, reasons and causes, and what options may be."""
    errors = importlib.import_module("penstock.errors")
    yield from (f"value: {reason}" for reason in getattr(errors, "REJECTION_REASONS", None) or errors.REFUSAL_REASONS)
    for path in (*VALUES, *MODULES):
        for _, found in _classes(path):
            if issubclass(found, enum.StrEnum):
                yield from (f"value: {each.value}" for each in found)
            if dataclasses.is_dataclass(found):
                choices = [field.metadata.get("choices") or () for field in dataclasses.fields(found)]
                yield from (f"value: {choice}" for some in choices for choice in some)


def _classes(path: str) -> Iterator[tuple[str, type]]:
    """The public classes that a module defines."""
    module = importlib.import_module(path)
    for name, found in vars(module).items():
        if inspect.isclass(found) and found.__module__ == module.__name__ and not name.startswith("_"):
            yield name, found


def _parts_of(path: str, found: Any) -> Iterator[str]:
    """Arguments of a callable, and members of a class with theirs."""
    if not (inspect.isclass(found) and issubclass(found, enum.Enum)):
        yield from (f"{path}({argument})" for argument in _arguments(found))
    if not inspect.isclass(found):
        return
    fields = [field.name for field in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
    fields += getattr(found, "__struct_fields__", ())
    yield from (f"{path}.{field}" for field in fields)
    for owner in found.__mro__:
        is_public_base = owner is not found and owner.__module__ == "penstock.errors"
        if is_public_base or not owner.__module__.startswith("penstock"):
            continue
        for name, member in vars(owner).items():
            if not name.startswith("_"):
                yield f"{path}.{name}"
                inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                yield from (f"{path}.{name}({argument})" for argument in _arguments(inner))


def _arguments(found: Any) -> list[str]:
    if not callable(found):
        return []
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return []
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def documented() -> Iterator[str]:
    """Names of the reference, but for its page about old ones."""
    for page in sorted(REFERENCE.glob("*.md")):
        if page != RENAMED:
            yield from names_in(page.read_text(encoding="utf-8"), keys=page.name in WITH_KEYS)


def names_in(text: str, *, keys: bool) -> Iterator[str]:
    """Flags, variables, metrics and commands of a page, and with `keys` the names in the first column of tables."""
    yield from re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)
    yield from re.findall(r"\bPENSTOCK_[A-Z0-9_]+\b", text)
    yield from re.findall(r"\bpenstock_[a-z0-9_]+\b", text)
    for cell in re.findall(r"^\| (`[^|]*?) \|", text, re.MULTILINE):
        for word in re.findall(r"`([^`]+)`", cell):
            if command := re.match(r"penstock(?: [a-z][a-z0-9-]*)+", word):
                yield command[0]
            elif keys and re.fullmatch(r"[a-z][a-z0-9_]*", word):
                yield word


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}\n" for name in sorted(public_names())))
