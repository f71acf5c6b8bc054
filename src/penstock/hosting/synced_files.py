"""Write files and folders so that they are on the disk when the call returns.  Every trouble is an `OSError`."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from penstock.hosting.file_rights import FILE_FLAGS, share


def write_synced(path: Path, content: bytes) -> None:
    """Write a file; its name is on the disk once its folder was synced too."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk: what was made, renamed or removed there."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path, *, writable: bool = False) -> None:
    """Make a folder, and those above it, where they are not there: each can be read by whoever can read the one above,
    as far as this user may give them that.

    With `writable`, `folder` can be written by whoever may write into the one above, too.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        with contextlib.suppress(OSError):  # a folder of this user alone is better than none
            share(path, path.parent, writable=writable and path == folder)
        sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Have every file and folder below `folder`, and itself, on the disk; links are not followed."""
    for top, _, files in os.walk(folder, topdown=False, onerror=_failed):
        for name in files:
            _sync_file(Path(top, name))
        sync_folder(Path(top))


def _failed(error: OSError) -> None:
    raise error


def _sync_file(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        return
    descriptor = os.open(path, FILE_FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
