"""Make the folder of a draft, and remove those that killed savers have left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.hosting.held_folder import held_folder

NAME_BYTES = 100
"""How much of the target's name is in the folder's: a name has 255 bytes at most."""


@contextlib.contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, which is removed at the end unless it has been renamed.

    Those that killed savers of the same target have left are removed first.
    """
    start = f".{os.fsdecode(os.fsencode(target.name)[:NAME_BYTES])}.draft-"
    with held_folder(target.parent, start) as folder:  # nothing that is no part of the artifact may be in it
        yield folder
