"""Give a file that replaces another one the rights that the other has, so that the same users can read it."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path
from typing import Final

_LIST: Final = "system.posix_acl_access"
_NO_LIST: Final = (errno.ENODATA, errno.ENOTSUP)
_LIST_HEAD: Final = 4
"""Bytes before the entries of a list, which are a tag, the rights and an id each, as Linux has them."""
_LIST_ENTRY: Final = "<HHI"
_GROUP: Final = 4
"""The tag of the file's own group."""


def keep_rights(old: Path, new: Path) -> None:
    """Give `new` the owner, the group, the mode and the access list of `old`; nothing is done where there is no `old`.

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
        access = _access_list(old)
        _give(descriptor, owner=was.st_uid, group=was.st_gid)
        _give_list(descriptor, access, old)
        os.fchmod(descriptor, stat.S_IMODE(was.st_mode))  # after the others, which can take bits away
        if not _same_readers(was, os.fstat(descriptor), for_group=_group_reads(was, access)):
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


def _access_list(file: Path | int) -> bytes | None:
    """The access control list of a file as the system has it; None: the mode says all, or there are no lists here."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        return os.getxattr(file, _LIST)
    except OSError as error:
        if error.errno in _NO_LIST:
            return None
        raise


def _give_list(descriptor: int, access: bytes | None, old: Path) -> None:
    """Give a file the list `access`; with None, take the one away that its folder has given it."""
    if access is None:
        if _access_list(descriptor) is not None:
            os.removexattr(descriptor, _LIST)
        return
    try:
        os.setxattr(descriptor, _LIST, access)
    except OSError as error:
        raise OSError(error.errno, f"its access control list cannot be kept ({error.strerror})", str(old)) from error


def _group_reads(was: os.stat_result, access: bytes | None) -> bool:
    """Whether the file's group may read it.  With a list, the mode says that of all who are named in it."""
    entries = () if access is None else struct.iter_unpack(_LIST_ENTRY, access[_LIST_HEAD:])
    listed = all(rights & stat.S_IROTH for tag, rights, _ in entries if tag == _GROUP)
    return listed and bool(was.st_mode & stat.S_IRGRP)


def _same_readers(was: os.stat_result, now: os.stat_result, *, for_group: bool) -> bool:
    if was.st_mode & stat.S_IROTH:
        return True
    if for_group and now.st_gid != was.st_gid:
        return False
    return for_group or now.st_uid == was.st_uid
