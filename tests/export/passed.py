"""Whether the tests of the frameworks have passed over what is here: the files they touch, as a digest in passed.txt.

    python tests/export/passed.py            # ends with 0 if they have
    python tests/export/passed.py --write    # by `make check`, when they passed

The digest is committed with the change, so a fresh clone knows as well.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PASSED = Path(__file__).with_name("passed.txt")
ROOMS = ("artifact", "embeddings", "export", "features", "graphs", "training")
"""Folders of the sources, and of their unit tests."""
FOLDERS = (
    "tests/export",
    "examples/affairs",
    "examples/gpu_embeddings",
    "examples/identifiers",
    *(f"{place}/{room}" for place in ("src/penstock", "tests/unit") for room in ROOMS),
)
FILES = (
    "pyproject.toml",
    "bench/embeddings.py",
    "bench/test_embeddings.py",
    "examples/sentence_embeddings/model.py",
    "tests/acceptance/data/minilm_reference.json",
    "tests/conformance/test_graphs.py",
)
LEFT_OUT = ("__pycache__", PASSED.name)


def touched() -> Iterator[Path]:
    """The files that the tests of the frameworks touch, sorted; not what programs have left beside them."""
    found = [ROOT / file for file in FILES]
    for folder in FOLDERS:
        found += [
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".toml", ".txt", ".json", ".md")
        ]
    # Pages whose programs train models.
    found += [
        page
        for page in (ROOT / "docs").rglob("*.md")
        if re.search("^<!-- frameworks: ", page.read_text(), re.MULTILINE)
    ]
    return (path for path in sorted(set(found)) if not {*path.parts} & {*LEFT_OUT})


def digest() -> str:
    """A digest of the names and the contents of these files."""
    made = hashlib.sha256()
    for path in touched():
        made.update(f"{path.relative_to(ROOT).as_posix()}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return made.hexdigest()


def main() -> int:
    """Compare, or write; a status."""
    if sys.argv[1:] == ["--write"]:
        PASSED.write_text(f"{digest()}\n")
        print("the tests of the frameworks have passed: commit tests/export/passed.txt")
        return 0
    same = PASSED.exists() and PASSED.read_text().strip() == digest()
    print(f"the tests of the frameworks {'passed' if same else 'have not been run'} over what is here")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
