"""What an artifact says of where it comes from: libraries, the commit."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from typing import Final

ALWAYS: Final = ("penstock", "numpy")
"""What every artifact was made with."""
GIT_SECONDS: Final = 10.0
"""The longest that git may take: it can hang on a file system that is away."""


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """The version of Python, and of each of the distributions `names` that is installed."""
    found = {"python": platform.python_version()}
    for name in (*ALWAYS, *names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # one of two names of a library, or one that only another format needs
    return found


def git_commit() -> str | None:
    """The commit of the repository that the process works in, with `-dirty` behind it where a file of it was changed.

    None where there is no repository, no commit, or no git.
    """
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str | None:
    command = ["git", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)  # noqa: S603  # ours
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
