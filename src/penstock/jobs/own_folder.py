"""A folder of files that belong to this process and go with it.

Each process has a folder of its own below a common one, and holds a lock on a file in it.  A process that was killed
leaves its folder; the next one that comes finds the lock free and removes it.  Process ids would not do: two containers
that share a disk have the same ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

_LOCK: Final = "lock"
_PREFIX: Final = "penstock-"


class OwnFolder:
    """A folder below `common`, which is made where it is not there; both have mode 0700.

    Raises ConfigError where that cannot be, `what` is its name in the message.
    """

    def __init__(self, common: Path, what: str) -> None:
        try:
            with suppress(FileExistsError):
                common.mkdir(mode=0o700, parents=True)
            found = common.lstat()  # no link is followed: in a folder that all may write to, anybody can put one there
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise ConfigError(f"{what}: {common} is not a directory that this user owns")
            common.chmod(0o700)
            _remove_left(common)
            self.path, self._lock = _make(common)
        except OSError as error:
            raise ConfigError(f"{what}: {common}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make(common: Path) -> tuple[Path, int]:
    """A new folder, and the lock of it.

    Another process that starts can find the lock before it is taken here, and remove the folder: then another is made.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=common))
        path.chmod(0o700)  # whatever the umask has left of it
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(lock, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return path, lock
        os.close(lock)


def _remove_left(common: Path) -> None:
    """Remove the folders of processes that have ended."""
    for folder in common.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it has none yet, or is not ours
        try:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
