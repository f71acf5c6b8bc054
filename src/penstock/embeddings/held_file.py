"""Hold a file of a store of rows: a lock among all threads and processes of this host, which the kernel lets go.

Contract
--------
* Each holder opens the file for itself, so the lock holds between two threads as between two processes.
* A process that dies lets go, once the last of its threads has stopped.  A fork has no part in what its parent holds.
* The first 8 bytes of the file are the id of the process that came last, for those who wait in vain.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from typing import Final

from penstock.errors import RowsUnavailable
from penstock.hosting.kernel_locks import close_lock, try_lock

LONGEST_WAIT = 30.0
SHORTEST_PAUSE: Final = 0.0001
LONGEST_PAUSE: Final = 0.01
"""Seconds between two looks.  A queue that the kernel keeps could not be left after a time."""
BEHIND_PID: Final = 8
"""Where the content of such a file begins."""
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_PID: Final = "<q"


@contextlib.contextmanager
def held_file(path: str, *, shared: bool = False, make: bool = False, wait: float | None = None) -> Iterator[int]:
    """Hold the file at `path`, and give its descriptor.

    Args:
        path: a file, with the rights of which it is made.
        shared: whether others may hold it at the same time, shared as well.
        make: whether it is made where it is not there.
        wait: seconds to wait for it; None: `LONGEST_WAIT`.

    Raises:
        RowsUnavailable: it was held by another for that long.
        OSError: it cannot be opened, locked or written to.
    """
    descriptor = os.open(path, _FLAGS | (os.O_CREAT if make else 0), 0o600)
    try:
        if not try_lock(descriptor, shared=shared):
            _wait_for(descriptor, path, shared, LONGEST_WAIT if wait is None else wait)
        os.pwrite(descriptor, struct.pack(_PID, os.getpid()), 0)
        yield descriptor
    finally:
        close_lock(descriptor)


def _wait_for(descriptor: int, path: str, shared: bool, wait: float) -> None:
    until, pause = time.monotonic() + wait, SHORTEST_PAUSE
    while not try_lock(descriptor, shared=shared):
        if time.monotonic() >= until:
            said = os.pread(descriptor, BEHIND_PID, 0)
            holder = f"process {struct.unpack(_PID, said)[0]}" if len(said) == BEHIND_PID else "another process"
            raise RowsUnavailable(
                f"{path} has been locked for {wait:g} s by {holder}; if that process hangs, resume it or kill it"
            )
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
