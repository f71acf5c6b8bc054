"""Give a file that replaces another one the rights that the other has, so that the same users can read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def keep_rights(old: Path, new: Path) -> None:
    """Give `new` the owner, the group and the mode of `old`; nothing is done where there is no `old`.

    Who may not give a file away stays its owner, and the group is that of its maker where it may not be given.

    Raises:
        PermissionError: somebody who can read `old` could not read `new` then.
        OSError: the rights cannot be read or given.
    """
    try:
        was = old.lstat()
    except FileNotFoundError:
        return
    descriptor = os.open(new, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give(descriptor, owner=was.st_uid, group=was.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(was.st_mode))  # after the others, which can take bits away
        if not _same_readers(was, os.fstat(descriptor)):
            raise PermissionError(1, f"its owner and group ({was.st_uid}, {was.st_gid}) cannot be kept", str(old))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _give(descriptor: int, *, owner: int, group: int) -> None:
    for wanted in ((owner, group), (-1, group)):
        try:
            os.fchown(descriptor, *wanted)
        except PermissionError:
            continue
        return


def _same_readers(was: os.stat_result, now: os.stat_result) -> bool:
    if was.st_mode & stat.S_IROTH:
        return True
    for_group = bool(was.st_mode & stat.S_IRGRP)
    if for_group and now.st_gid != was.st_gid:
        return False
    return for_group or now.st_uid == was.st_uid
