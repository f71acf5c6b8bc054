"""Make a folder that belongs to one process, and remove those that killed processes have left.

A draft of an artifact is such a folder, and so is a stage of a model directory or of a checkpoint.

Contract
--------
* Whoever makes a folder holds a lock on it (flock) until it is renamed or removed.  The kernel lets it go with the
  process, however that ends.
* A folder is only removed by who made it, or by who got its lock.  So one that is in use stays.
* Who does not get its lock, or finds then that the folder is gone, has lost it to somebody who came between, and makes
  another.

The lock is that of the folder itself, or of a file in it.  On NFS a folder's lock is known to one host alone, so that
a saver on another host takes a draft in use for one that was left; that of a file is known to all.  Where a file system
locks neither, nothing is removed, and all else is the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.hosting.folder_lock import LOCK
from penstock.hosting.kernel_locks import close_lock, try_lock

STAGE = ".stage-"
"""How the name of a stage begins, in which something waits to be renamed to its place."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


def _none_is_kept(_folder: Path) -> bool:
    return False


@contextlib.contextmanager
def held_folder(
    parent: Path, start: str, *, with_file: bool = False, kept: Callable[[Path], bool] = _none_is_kept
) -> Iterator[Path]:
    """A new folder in `parent`, whose name is `start` and 16 hexadecimal digits; it is removed at the end.

    Those that killed processes have left, with the same `start`, are removed first.

    Args:
        parent: where it is made.
        start: how its name begins.
        with_file: whether the lock is that of a file `.lock` in it.  All who use one `start` say the same.
        kept: whether a folder that was left is to stay.

    Raises:
        OSError: it cannot be made.
    """
    remove_abandoned(parent, start, with_file=with_file, kept=kept)
    while True:
        folder = parent / f"{start}{secrets.token_hex(8)}"
        with contextlib.ExitStack() as at_end:
            folder.mkdir()
            at_end.callback(_remove, folder, os.getpid())
            try:
                lock = _opened(folder, with_file=with_file)
            except FileNotFoundError:  # somebody has taken it for one that was left
                continue
            at_end.callback(close_lock, lock)
            mine = True
            with contextlib.suppress(OSError):  # it cannot be locked
                mine = try_lock(lock)
            if mine and (folder / LOCK if with_file else folder).exists():
                yield folder
                return


def _remove(folder: Path, maker: int) -> None:
    """Remove a folder, if this process made it: a fork that unwinds its stack must leave it alone."""
    if os.getpid() == maker:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(
    parent: Path, start: str, *, with_file: bool = False, kept: Callable[[Path], bool] = _none_is_kept
) -> None:
    """Remove the folders that killed processes have left, as `held_folder` does; what cannot be removed stays."""
    name = re.compile(re.escape(start) + "[0-9a-f]{16}")
    try:
        found = [path for path in parent.iterdir() if name.fullmatch(path.name)]
    except OSError:  # whoever may write there need not be allowed to read
        return
    for folder in found:
        try:
            lock = _opened(folder, with_file=with_file)
        except OSError:  # it is gone, or no folder, or may not be used
            continue
        try:
            if try_lock(lock) and not kept(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # it cannot be locked
            continue
        finally:
            close_lock(lock)


def _opened(folder: Path, *, with_file: bool) -> int:
    """A descriptor of what is locked: the folder, or its file, which is made where it is not there.

    Who is killed before it is made has left a folder too.
    """
    descriptor = os.open(folder, _FOLDER)
    if not with_file:
        return descriptor
    try:
        return os.open(LOCK, _FILE, 0o666, dir_fd=descriptor)
    finally:
        os.close(descriptor)
