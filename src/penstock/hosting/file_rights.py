"""Have files that are made for others be read by them, whatever the umask of their maker says.

A file that replaces another one keeps the rights that the other has.  Whatever is new can be read by whoever may list
and enter the folder that it is put into.  Nothing is ever taken from anybody.  A folder with the sticky bit, as /tmp,
gives nothing: in it each user's files are their own.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_LIST: Final = "system.posix_acl_access"
_NO_LIST: Final = (errno.ENODATA, errno.ENOTSUP)
_LIST_HEAD: Final = 4
"""Bytes before the entries of a list, which are a tag, the rights and an id each, as Linux has them."""
_LIST_ENTRY: Final = "<HHI"
_GROUP: Final = 4
"""The tag of the file's own group."""
_OWNER: Final = 1
"""The tag of the file's owner."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a writer must not block
"""To open a file or a folder for reading as it is: a link is refused."""


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


def share(path: Path, folder: Path, *, writable: bool = False) -> None:
    """Have `path` be read by whoever may list and enter `folder`; with `writable`, written by whoever may write there.

    Raises:
        PermissionError: the owner and the group of `folder` cannot be given, and some of its users could not read it.
        OSError: the rights cannot be read or given.
    """
    _share_each([path], folder, writable=writable)


def share_tree(tree: Path, folder: Path) -> None:
    """As `share` of the folder `tree` and of every file and folder below it; links are passed over."""
    _share_each(_paths(tree), folder)


def share_opened(descriptor: int, folder: int, *, writable: bool = False) -> None:
    """As `share`, of an open file or folder and an open folder."""
    above, now = os.fstat(folder), os.fstat(descriptor)
    before = now
    if above.st_mode & stat.S_ISVTX:
        return
    is_folder = stat.S_ISDIR(now.st_mode)
    access = _access_list(folder)
    mode = stat.S_IMODE(now.st_mode)
    for shift in (3, 0):
        mode |= _passed_on(above.st_mode >> shift & 0o7, is_folder=is_folder, writable=writable) << shift
    if (above.st_uid, above.st_gid) != (now.st_uid, now.st_gid):
        _give(descriptor, owner=above.st_uid, group=above.st_gid)
    if access is not None and _access_list(descriptor) is None:
        entries = struct.iter_unpack(_LIST_ENTRY, access[_LIST_HEAD:])
        passed = b"".join(
            struct.pack(
                _LIST_ENTRY,
                tag,
                mode >> 6 & 0o7 if tag == _OWNER else _passed_on(rights, is_folder=is_folder, writable=writable),
                whose,
            )
            for tag, rights, whose in entries
        )
        os.setxattr(descriptor, _LIST, access[:_LIST_HEAD] + passed)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:  # a change of the owner can take bits away
        os.fchmod(descriptor, mode)
    now = os.fstat(descriptor)
    if not _same_readers(above, now, for_group=_group_reads(above, access)):
        raise PermissionError(1, f"the owner and group of its directory ({above.st_uid}, {above.st_gid}) cannot be set")
    if now.st_ctime_ns != before.st_ctime_ns:
        os.fsync(descriptor)


def hidden_from(tree: Path, folder: Path) -> tuple[str, ...]:
    """The "user" of `folder`, its "group", or "others", who may list and enter it and cannot read all of `tree` in it.

    Paths that cannot be looked at are passed over, and so are access lists.

    Raises:
        OSError: `folder` cannot be looked at.
    """
    above = folder.stat()
    if above.st_mode & stat.S_ISVTX:
        return ()
    hidden = {"user": False, "group": False, "others": False}
    between = (path for path in tree.parents if folder in path.parents)
    below = (Path(top, name) for top, _, files in os.walk(tree) for name in (".", *files))
    for path in (*between, *below):
        try:
            now = path.lstat()
        except OSError:
            continue
        if stat.S_ISLNK(now.st_mode):
            continue
        needed = 0o5 if stat.S_ISDIR(now.st_mode) else 0o4
        others = now.st_mode & needed == needed
        group = now.st_gid == above.st_gid and now.st_mode >> 3 & needed == needed
        hidden["user"] |= now.st_uid != above.st_uid and not group and not others
        hidden["group"] |= above.st_mode >> 3 & 0o5 == 0o5 and not group and not (others and now.st_gid != above.st_gid)
        hidden["others"] |= above.st_mode & 0o5 == 0o5 and not others
    return tuple(name for name, is_hidden in hidden.items() if is_hidden)


def _share_each(paths: Iterable[Path], folder: Path, *, writable: bool = False) -> None:
    above = os.open(folder, _FOLDER)
    try:
        for path in paths:
            descriptor = os.open(path, FILE_FLAGS)
            try:
                share_opened(descriptor, above, writable=writable)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
            finally:
                os.close(descriptor)
    finally:
        os.close(above)


def _paths(tree: Path) -> Iterator[Path]:
    """The folder, and the folders and regular files below it."""
    for top, _, files in os.walk(tree, onerror=_failed):
        yield Path(top)
        yield from (path for path in (Path(top, name) for name in files) if stat.S_ISREG(path.lstat().st_mode))


def _failed(error: OSError) -> None:
    raise error


def _passed_on(rights: int, *, is_folder: bool, writable: bool) -> int:
    """The three bits that somebody has in a folder who has `rights` to the folder it lies in."""
    if rights & 0o5 != 0o5:
        return 0
    return 0o4 | (0o1 if is_folder else 0) | (rights & 0o2 if writable else 0)


def _give(descriptor: int, *, owner: int, group: int) -> None:
    for wanted in ((owner, group), (-1, group)):
        try:
            os.fchown(descriptor, *wanted)
        except OSError:  # also of a user that this name space does not know
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
