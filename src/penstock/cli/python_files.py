"""Know which Python files below a folder hold something else than before.

Files in environments and in hidden folders do not count: nobody edits them, and an install changes thousands of them.

Contract
--------
* A file counts as changed when it is new, is gone, or holds other bytes than when it was last looked at.  One that is
  written again with the same bytes does not: a module may write its generated code at each import.
* Only what is asked about is looked at.  A folder is asked about with everything below it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

NOT_THE_USERS = frozenset({"venv", "env", "site-packages", "node_modules", "__pycache__"})
"""Folders, besides hidden ones, with files that the user does not write."""


def is_watched(path: Path, root: Path) -> bool:
    """Whether a change of `path`, a file somewhere below `root`, may change the service."""
    return _is_module_name(path.name) and _is_users(path.parent, root)


def _is_module_name(name: str) -> bool:
    return name.endswith(".py") and not name.startswith(".")


def _is_users(folder: Path, root: Path) -> bool:
    """Whether `folder`, at or below `root`, may have files that the user writes."""
    try:
        names = folder.relative_to(root).parts
    except ValueError:  # it is not below it
        return False
    if not all(map(_is_users_name, names)):
        return False
    return not any(_is_environment(root.joinpath(*names[: depth + 1])) for depth in range(len(names)))


def _is_users_name(name: str) -> bool:
    return not name.startswith(".") and name not in NOT_THE_USERS


def _is_environment(folder: str | Path) -> bool:
    """Whether `folder` is an environment: it may have any name, and has this file."""
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))  # noqa: PTH110, PTH118  # a Path costs more than the look


class Found(NamedTuple):
    """What a look has found, each file once, in order."""

    changed: list[Path]
    rewritten: list[Path]
    """Files that hold what they held."""


class PythonFiles:
    """The watched files below `root`, and what each held when it was last looked at."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._digests: dict[Path, bytes] = {}
        self._folders: set[Path] = set()
        """Folders that have, or had, such files somewhere below."""

    def look(self, paths: Iterable[Path]) -> Found:
        """Look at files, and at folders with all below, of which something may have happened to each."""
        changed: set[Path] = set()
        same: set[Path] = set()
        for path in paths:
            now = {file: _digest(file) for file in self._files(path)}
            for file in self._known(path):
                if file not in now:
                    del self._digests[file]
                    changed.add(file)
            for file, digest in now.items():
                if self._digests.get(file) == digest:
                    same.add(file)
                else:
                    self._digests[file] = digest
                    self._folders.update(file.parents)
                    changed.add(file)
        return Found(sorted(changed), sorted(same - changed))

    def _known(self, path: Path) -> list[Path]:
        """The files at `path` or below it that were there at the last look."""
        if path in self._folders:
            return [file for file in self._digests if file.is_relative_to(path)]
        return [path] if path in self._digests else []

    def _files(self, path: Path) -> Iterator[Path]:
        """The files that are there now."""
        if not os.path.isdir(path):  # noqa: PTH112  # a Path raises where it may not look
            if is_watched(path, self._root) and _is_file(path):
                yield path
            return
        if not _is_users(path, self._root):
            return
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if _is_users_name(name) and not _is_environment(f"{folder}/{name}")]
            for name in names:
                if _is_module_name(name) and _is_file(file := Path(folder, name)):
                    yield file


def _is_file(path: Path) -> bool:
    """Whether `path` is a file, or leads to one: a pipe cannot be read without waiting for who writes to it."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _digest(file: Path) -> bytes:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=16).digest()
    except OSError as error:  # it is still there, and may become readable
        return str(error.errno).encode()
