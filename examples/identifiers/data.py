"""Python's own standard library: the identifiers of each file, and the package that the file is of."""

import re
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

LONGEST = 1024
"""Identifiers of a file that are kept at most: the first ones."""
HELD_OUT = 5
"""One file in so many is held out."""
FEWEST_FILES = 20
"""A package of fewer files is left out."""

_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
_IDENTIFIER = re.compile(r"[^\W\d]\w*")  # words of comments and texts are taken too


def _package(file: Path) -> str:
    return file.relative_to(_LIBRARY).parts[0]


_FILES = sorted(file for file in _LIBRARY.glob("*/**/*.py") if _INSTALLED.isdisjoint(file.parts))
PACKAGES = sorted(name for name, files in Counter(map(_package, _FILES)).items() if files >= FEWEST_FILES)


def files(every: int = 1) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The files to train on, and those held out; `package` is a place in PACKAGES.

    With `every` above 1 one file in so many is taken.  A file that is no UTF-8 is left out.
    """
    rows = []
    for file in [file for file in _FILES if _package(file) in PACKAGES][::every]:
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        identifiers = list(dict.fromkeys(_IDENTIFIER.findall(text)))[:LONGEST]
        rows.append({"identifiers": identifiers, "package": PACKAGES.index(_package(file))})
    return [row for n, row in enumerate(rows) if n % HELD_OUT], rows[::HELD_OUT]
