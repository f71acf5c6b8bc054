"""Let one process at a time change a folder, on one host or on several.

Contract
--------
* Who is in `folder_lock` is alone there, among all who ask for the lock of that folder.
* The kernel lets the lock go with its holder, however that ends; nothing has to be tidied up.
* Nothing is written but to a regular file that has no other name: with another one it would be somebody's else.
* Who waits looks every `EVERY` seconds, for `wait` seconds, and then gets a `FolderLocked` that names the holder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.hosting.file_rights import share
from penstock.hosting.kernel_locks import close_lock, try_lock

LOCK = ".lock"
LONGEST_WAIT = 30.0
EVERY = 0.02
"""A holder is done within milliseconds; a queue that the kernel keeps could not be left after a time."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe or a device must not block


class FolderLocked(OSError):
    """Another process works on the folder."""


@contextlib.contextmanager
def folder_lock(
    folder: Path,
    *,
    wait: float = LONGEST_WAIT,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the lock of `folder`, whose file `.lock` is made if it is not there.

    Raises:
        FolderLocked: it was not free for `wait` seconds.
        OSError: the file cannot be made, opened or locked, or is no file of its own.
    """
    descriptor = os.open(folder / LOCK, _FLAGS, 0o666)
    try:
        _check_own_file(folder / LOCK, os.fstat(descriptor))
        if os.fstat(descriptor).st_uid == os.geteuid():  # others who may change the folder need it too
            with contextlib.suppress(OSError):
                share(folder / LOCK, folder, writable=True)
        until = now() + wait
        while not try_lock(descriptor):
            if now() >= until:
                raise FolderLocked(f"the lock was not released within {wait:g} s; it is held by {_holder(descriptor)}")
            sleep(EVERY)
        _tell(descriptor, f"process {os.getpid()} on {platform.node()}\n")
        try:
            yield
        finally:
            _tell(descriptor, "")  # whoever locks the file without writing into it must not go by our name
    finally:
        close_lock(descriptor)


def _check_own_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not a regular file, so it cannot be used as a lock")
    if found.st_nlink > 1:  # what is written into it would be written into that other file
        raise OSError(f"{path} has a second hard link: copy it to a file of its own")


def _tell(descriptor: int, holder: str) -> None:
    """Write who holds the lock, for those who wait.  On a full disk they are told less."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)


def _holder(descriptor: int) -> str:
    said = os.pread(descriptor, 300, 0).decode(errors="replace").strip()
    return said if said.isprintable() and said else "another process"
