"""Lock files and folders (flock) so that the kernel lets go when this process ends, however it does.

A lock belongs to every process that has the descriptor, so a fork that lives longer would keep it.  Therefore in a fork
of this process each such descriptor becomes one of `/dev/null`: what is done to it there never reaches the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

_held: set[int] = set()


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock what `descriptor` has open, for this process alone; False where somebody else has it.

    With `shared`, others may have it shared too.  Close the descriptor by `close_lock`, also where it was not locked.

    Raises:
        OSError: it cannot be locked, as a folder on some network file systems.
    """
    _held.add(descriptor)  # first: a fork that is made while this process waits would have the lock too
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def close_lock(descriptor: int) -> None:
    """Let go of the lock, if there is one, and close the descriptor."""
    try:
        _held.discard(descriptor)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:  # also where Ctrl-C comes in between, or this process would keep the lock
        os.close(descriptor)


def _replace_in_fork() -> None:
    if not _held:
        return
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for descriptor in _held:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_replace_in_fork)
