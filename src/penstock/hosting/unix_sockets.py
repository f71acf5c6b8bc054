"""Bind and remove the Unix sockets that we listen on.  An error says why one cannot be bound.

The file of a Unix socket never has more permissions than the options ask for.  A socket file that nobody listens on
is replaced.  One that somebody listens on is an error.  Whoever bound a socket removes its file only if it is still
that socket's.

Two servers may start at the same moment, or one start while another ends.  Between a look at the socket file and its
removal it could become the other's file.  So whoever replaces or removes it holds a lock, on a file beside it that is
there only meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.codec.text import printable
from penstock.errors import StartFailed

BACKLOG = 2048
"""Connections that the kernel completes and keeps until we accept them.  It refuses any more."""


def bind_unix(path: str, mode: int) -> socket.socket:
    """A listening Unix socket at `path` with permissions `mode`.  Raises StartFailed where there cannot be one."""
    try:
        with _locked(path):
            _remove_stale(path)
            return _bind_unix(path, mode)
    except BlockingIOError:
        raise _somebody_listens(path) from None
    except OSError as error:
        raise listen_refused(path, error) from None


def _bind_unix(path: str, mode: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # `bind` makes the file with the mode of the descriptor, less the umask.  So the file never has more
        # permissions than `mode`; `chmod` then adds those that the umask took away.
        os.fchmod(sock.fileno(), mode)
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    try:
        Path(path).chmod(mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        Path(path).unlink(missing_ok=True)
        raise
    sock.setblocking(False)
    return sock


def remove_unix(path: str, file: tuple[int, int]) -> None:
    """Remove the socket file at `path` if it is still `file`; no error if it is not, or cannot be removed."""
    # Where somebody else holds the lock, they replace the file: nobody listens on it any more.
    with contextlib.suppress(OSError), _locked(path):
        if inode(path) == file:
            Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Inside, no other server replaces or removes the socket file at `path`; BlockingIOError where one does so now."""
    name = f"{path}.penstock-lock"
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(fd)
            if inode(name) != (held.st_dev, held.st_ino):
                continue  # whoever had the lock removed the file after we had opened it
            try:
                yield
            finally:
                Path(name).unlink(missing_ok=True)
            return
        finally:
            os.close(fd)


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody listens on.

    Raises StartFailed where somebody listens on it, and where the file is no socket.
    """
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StartFailed(f"cannot listen on {path}: the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError as error:  # for example a full backlog: somebody listens there
            raise listen_refused(path, error) from None
    raise _somebody_listens(path)


def _somebody_listens(path: str) -> StartFailed:
    return StartFailed(f"cannot listen on {path}: another server listens there")


def inode(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at `path`: they identify it.  None if there is no file."""
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def unix_name(sock: socket.socket) -> str:
    """Where a Unix socket listens: its path, or its abstract name behind an `@`."""
    name = sock.getsockname()
    # An abstract name may be any bytes.
    return printable(f"@{name[1:].decode(errors='replace')}" if isinstance(name, bytes) else str(name))


def listen_refused(where: str, error: OSError, hint: str = "") -> StartFailed:
    """The error that says why nobody can listen at `where`, with a `hint` behind it."""
    reasons = {
        errno.EADDRINUSE: "the address is in use",
        errno.EACCES: "permission denied",
        errno.EADDRNOTAVAIL: "this host has no such address",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error)) + hint
    return StartFailed(f"cannot listen on {where}: {reason}")
