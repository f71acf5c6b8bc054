"""Keep a little of a disk for what gives room back: a reserve that newcomers must leave, and a file that is given up.

Contract
--------
* `reserve` bytes of the file system stay free of what comes in; others may fill them.
* While the disk has room, a spare file of `SPARE_BYTES` lies beside the file that it is for.  It is given up where the
  disk is full, and made again when half of the reserve stays beside it.  All that have the file open share it.
* A reserve of 0 keeps nothing, and no spare file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.config import MIB

RESERVE_BYTES: Final = 8 * MIB
SPARE_BYTES: Final = 2 * MIB


def free_bytes(path: str) -> int:
    """How many bytes the file system of `path` has for this user."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class DiskRoom:
    """The room for one file; it may not be there yet, but its folder is."""

    def __init__(self, path: str, reserve: int = RESERVE_BYTES, *, free: Callable[[str], int] = free_bytes) -> None:
        found = Path(path).resolve()
        self.reserve = reserve
        self.spare = found.with_name(f"{found.name}-spare")
        self._folder = str(found.parent)
        self._free = free

    def free(self) -> int:
        """The bytes that are free now; none where nobody can tell."""
        try:
            return self._free(self._folder)
        except OSError:
            return 0

    def has_spare(self) -> bool:
        """Whether the spare file is there."""
        return self.spare.exists()

    def leaves_reserve(self, taken: int, inside: int) -> bool:
        """Whether the reserve stays where so many bytes are taken, for which the file has `inside` in itself.

        At least half of it must be free beside the file all the same.
        """
        free = self.free()
        return free >= self.reserve // 2 and free + inside - taken >= self.reserve

    def left_for_results(self, taken: int) -> int:
        """How many bytes of results there is room for; half of the spare file stays for what removes jobs.

        `taken` are the bytes that what is written already will still take.
        """
        spare = SPARE_BYTES if self.has_spare() else 0
        return self.free() + spare - taken - (SPARE_BYTES // 2 if self.reserve else 0)

    def make_spare(self) -> None:
        """Make the spare file where there is none and it leaves half of the reserve; harmless where that fails."""
        if not self.reserve or self.has_spare() or self.free() < SPARE_BYTES + self.reserve // 2:
            return
        with contextlib.suppress(OSError):
            file = os.open(self.spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, SPARE_BYTES)
            except OSError:
                self.spare.unlink()
            finally:
                os.close(file)

    def give_up_spare(self) -> bool:
        """Remove the spare file if the disk is full; returns whether there is more room now."""
        if self.free() >= SPARE_BYTES:
            return False
        try:
            self.spare.unlink()
        except OSError:
            return False
        return True
