"""Bind the sockets that a server listens on.  An error says why one cannot be bound.

The file of a Unix socket never has more permissions than the options ask for.  A socket file that nobody listens on
is replaced.  One that somebody listens on is an error.  The listener removes the file only if it made it.

Two servers may start at the same moment, or one start while another ends.  Between a look at the socket file and its
removal it could become the other's file.  So whoever replaces or removes it holds a lock, on a file beside it that is
there only meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.config import ServerOptions
from penstock.errors import ConfigError, StartFailed
from penstock.hosting.guarded_log import guarded_logger
from penstock.server.http1.connections import EXCESS_CONNECTIONS

_TCP_NOTSENT_LOWAT = 25  # from linux/tcp.h; not every build of Python's socket module has the name

log = guarded_logger("penstock.server")

BACKLOG = 2048
"""Connections that the kernel completes and keeps until we accept them.  It refuses any more."""
UNSENT_BYTES = 256 * 1024
"""Most bytes of answers that the kernel takes from us and has not yet sent.

By default the kernel takes megabytes, and takes no more until a third of them is sent.  A client that reads slowly
would then look like one that does not read, and the bytes in the kernel would not be counted as held.
"""
SPARE_FILES = 1024
"""File descriptors beside those of the connections we serve.

They are for channels to workers, logs, libraries, and the connections that are open beyond those we serve.  TLS
handshakes have `EXCESS_CONNECTIONS` more.
"""
MIN_SPARE_FILES = 64
"""The fewest file descriptors that are left for logs, libraries and a worker's start, however low the limit is."""
FILES_PER_WORKER = 4
"""What a worker process takes: its channel, its lifeline, the descriptor that tells of its end, that of its stacks."""


def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of `host`.  With port 0 the kernel chooses one free port for all of them.

    Raises:
        ConfigError: `host` has no address.
        StartFailed: an address cannot be listened on.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"host {host!r} is no address to listen on: {error}") from None
    except OSError as error:  # it could not be looked up, for example for want of files
        raise _refusal(f"{host}:{port}", error) from None
    sockets: list[socket.socket] = []
    for family, kind, proto, _, address in dict.fromkeys(found):
        bound = (address[0], port, *address[2:])
        try:
            sock = socket.socket(family, kind, proto)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The sockets of accepted connections inherit this option.
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(bound)
            sock.listen(BACKLOG)
        except OSError as error:
            for opened in sockets:
                opened.close()
            hint = "; name another port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
            raise _refusal(f"{host}:{port}", error, hint) from None
        sock.setblocking(False)
        port = sock.getsockname()[1]
    return sockets


def _refusal(where: str, error: OSError, hint: str = "") -> StartFailed:
    reasons = {
        errno.EADDRINUSE: "something else listens there already",
        errno.EACCES: "permission denied",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error)) + hint
    return StartFailed(f"cannot listen on {where}: {reason}")


def bind_unix(path: str, mode: int) -> socket.socket:
    """A listening Unix socket at `path` with permissions `mode`.  Raises StartFailed where there cannot be one."""
    try:
        with _locked(path):
            _remove_stale(path)
            return _bind_unix(path, mode)
    except BlockingIOError:
        raise _somebody_listens(path) from None
    except OSError as error:
        raise _refusal(path, error) from None


def _bind_unix(path: str, mode: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # `bind` makes the file with the mode of the descriptor, less the umask.  So the file never has more
        # permissions than `mode`; `chmod` then adds those that the umask took away.
        os.fchmod(sock.fileno(), mode)
        sock.bind(path)
        Path(path).chmod(mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
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
        raise StartFailed(f"cannot listen on {path}: there is a file of that name that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError as error:  # for example a full backlog: somebody listens there
            raise _refusal(path, error) from None
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


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The TLS context that `options` describe, or None where they lack the certificate or the key.

    Raises ConfigError where the two cannot be used.
    """
    if options.tls_cert is None or options.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # With an empty password, an encrypted key is an error.  Without one, OpenSSL would ask for it and wait.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        names = f"tls_cert {options.tls_cert} and tls_key {options.tls_key}"
        raise ConfigError(f"{names} cannot be used: {error}") from None
    return context


class ConnectionLimits(NamedTuple):
    """How many connections may be open at a time."""

    connections: int
    """How many are served."""
    excess: int
    """How many more may be open: to ask for probes, or because they are being closed.  Over TLS, so many again may be
    in their handshakes."""


def raise_file_limit(connections: int, *, tls: bool, workers: int = 0) -> ConnectionLimits:
    """Raise this process's soft limit of open files so that it can serve `connections`; returns what it can serve.

    `workers` is how many worker processes the services have.

    The hard limit may allow fewer files.  Then fewer connections are served, and a line in the log says so.  Files for
    everything else are set aside first, because a worker that died can only be started again with free files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + max(SPARE_FILES, EXCESS_CONNECTIONS + _needed_files(workers))
    wanted += EXCESS_CONNECTIONS if tls else 0
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ConnectionLimits(connections, EXCESS_CONNECTIONS)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if possible > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible == wanted:
        return ConnectionLimits(connections, EXCESS_CONNECTIONS)
    limits = share_files(possible, tls=tls, workers=workers)
    if limits.connections >= connections:
        return ConnectionLimits(connections, limits.excess)
    log.warning(
        "the hard limit of %d open files leaves room for %d connections, not for max_connections=%d",
        hard,
        limits.connections,
        connections,
    )
    return limits


def share_files(files: int, *, tls: bool, workers: int = 0) -> ConnectionLimits:
    """The connections that fit into `files` open files beside `workers` worker processes.

    The rest of the program gets a quarter of the files, and at most `SPARE_FILES` less `EXCESS_CONNECTIONS`; but never
    less than `MIN_SPARE_FILES` and those of the workers.  Of what is left, at most a quarter is for excess connections,
    and over TLS as much for handshakes.
    """
    spare = max(_needed_files(workers), min(SPARE_FILES - EXCESS_CONNECTIONS, files // 4))
    left = max(2, files - spare)
    excess = min(EXCESS_CONNECTIONS, left // 4)
    return ConnectionLimits(left - (2 * excess if tls else excess), excess)


def _needed_files(workers: int) -> int:
    return MIN_SPARE_FILES + FILES_PER_WORKER * workers
