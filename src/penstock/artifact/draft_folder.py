"""Make the folder of a draft, and remove those that killed savers have left.

Contract
--------
* Whoever makes a folder holds a lock on it (flock) until it is renamed or removed.  The kernel lets it go with the
  process, however that ends.
* A folder is only removed by who made it, or by who got its lock.  So one that is in use stays.
* Who has its lock and finds that the folder is gone has lost it to somebody who came between, and makes another.

Where a file system locks no folders, nothing is removed, and all else is the same.  Where its locks are known to one
host alone, a saver on another host takes a draft in use for one that was left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

NAME_BYTES = 100
"""How much of the target's name is in the folder's: a name has 255 bytes at most."""


@contextlib.contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, which is removed at the end unless it has been renamed.

    Those that killed savers of the same target have left are removed first.
    """
    start = f".{os.fsdecode(os.fsencode(target.name)[:NAME_BYTES])}.draft-"
    _remove_abandoned(target.parent, start)
    while True:
        folder = target.parent / f"{start}{secrets.token_hex(8)}"
        with contextlib.ExitStack() as at_end:
            folder.mkdir()
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            lock = _opened(folder)
            if lock is not None:
                at_end.callback(os.close, lock)
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                yield folder
                return


def _remove_abandoned(parent: Path, start: str) -> None:
    name = re.compile(re.escape(start) + "[0-9a-f]{16}")
    try:
        found = [path for path in parent.iterdir() if name.fullmatch(path.name)]
    except OSError:  # whoever may write there need not be allowed to read
        return
    for folder in found:
        lock = _opened(folder)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # it is in use, or cannot be locked
            continue
        finally:
            os.close(lock)


def _opened(folder: Path) -> int | None:
    """A descriptor of the folder; None where it is gone, or no folder, or may not be read."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
