"""Which build of Penstock runs, and on which libraries: what a report of a fault should begin with."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from penstock.core import item

LIBRARIES = ("uvloop", "httptools", "msgspec")
"""What a request passes through that is not ours."""

NOT_COMPILED = "not_compiled.txt"
"""The file beside the package in which `setup.py` says why it could not compile.

There is none where nobody wanted it to: in an editable install, or with ``PENSTOCK_COMPILE=0``.
"""


@functools.cache  # it is read from files
def version_of(package: str) -> str:
    """The installed version of `package`, or "unknown" where it runs without having been installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def is_compiled() -> bool:
    """Whether the path of a request is compiled; setup.py compiles all of its modules or none."""
    return str(item.__file__).endswith(tuple(EXTENSION_SUFFIXES))


def build_words() -> str:
    """The build and what it runs on, in a line: ``compiled; Python 3.11.2, uvloop 0.22.1, ...``."""
    libraries = [f"{name} {version_of(name)}" for name in LIBRARIES]
    return f"{'compiled' if is_compiled() else 'plain Python'}; {', '.join([_python(), *libraries])}"


def why_not_compiled(package: Path | None = None) -> str:
    """The sentence that says why an install could not compile, and what to do; "" where it did, or was not to."""
    path = (package or Path(__file__).parents[1]) / NOT_COMPILED
    if is_compiled() or not path.is_file():
        return ""
    reason = path.read_text(errors="replace").strip().rstrip(".")
    return (
        "this install of Penstock is not compiled, and a request costs about twice as much: "
        f"compiling failed: {reason}. Install a C compiler and the headers of Python, then install "
        "Penstock again; PENSTOCK_COMPILE=1 with `pip install -v` shows the error"
    )


def _python() -> str:
    name = platform.python_implementation()
    return f"{'Python' if name == 'CPython' else name} {platform.python_version()}"
