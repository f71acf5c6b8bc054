"""Bind the sockets a server listens on, and say clearly why one cannot be had.

A Unix socket never exists with more permissions than asked for, a stale one is replaced, a live one is refused, and
only our own is removed.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import ssl
import stat
from pathlib import Path
from typing import NamedTuple

from penstock.config import ServerOptions
from penstock.errors import ConfigError, StartFailed
from penstock.server.http1.connections import CROWD

_TCP_NOTSENT_LOWAT = 25  # from linux/tcp.h; the socket module does not name it everywhere

log = logging.getLogger("penstock.server")

BACKLOG = 2048
UNSENT = 256 * 1024
"""Bytes of answers the kernel takes beyond what is on its way.

Left alone it takes megabytes and asks for more only when a third of them is gone: a slow reader would look like one
that does not read at all, and what it left unread would not be counted.
"""
SPARE_FILES = 1024
"""File descriptors beyond those of connections: channels to workers, logs, libraries, the crowd that is refused."""
FEW_FILES = 64
"""Fewest that are left for channels to workers, logs and libraries, however low the limit."""


def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address `host` stands for; with port 0 all take the same free one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} is no address to listen on: {error}") from None
    sockets: list[socket.socket] = []
    for family, kind, proto, _, address in dict.fromkeys(found):
        bound = (address[0], port, *address[2:])
        try:
            sock = socket.socket(family, kind, proto)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit it.
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(bound)
            sock.listen(BACKLOG)
        except OSError as error:
            for opened in sockets:
                opened.close()
            raise _refusal(f"{host}:{port}", error) from None
        sock.setblocking(False)
        port = sock.getsockname()[1]
    return sockets


def _refusal(where: str, error: OSError) -> StartFailed:
    reasons = {
        errno.EADDRINUSE: "something else listens there already",
        errno.EACCES: "permission denied",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error))
    return StartFailed(f"cannot listen on {where}: {reason}")


def bind_unix(path: str, mode: int) -> socket.socket:
    """A listening Unix socket at `path` with permissions `mode`."""
    _clear_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file is made with the mode of the descriptor, less the umask: it is never open to more than `mode`.
        os.fchmod(sock.fileno(), mode)
        sock.bind(path)
        Path(path).chmod(mode)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _refusal(path, error) from None
    sock.setblocking(False)
    return sock


def _clear_stale(path: str) -> None:
    """Remove a socket nobody listens on; StartFailed if somebody does, or if the file is no socket."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refusal(path, error) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise StartFailed(f"cannot listen on {path}: there is a file of that name that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError as error:  # a full backlog, say: somebody is there
            raise _refusal(path, error) from None
    raise StartFailed(f"cannot listen on {path}: another server listens there")


def inode(path: str) -> tuple[int, int] | None:
    """What identifies the file at `path`, or None if there is none."""
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The TLS side of `options`, or None without a certificate; ConfigError if it cannot be used."""
    if options.tls_cert is None or options.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A password prompt would hang a server: an encrypted key is an error.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        names = f"tls_cert {options.tls_cert} and tls_key {options.tls_key}"
        raise ConfigError(f"{names} cannot be used: {error}") from None
    return context


class Seats(NamedTuple):
    """How many connections fit."""

    connections: int
    """Those that are served."""
    crowd: int
    """Those beyond that may be told so at the same time."""


def raise_file_limit(connections: int) -> Seats:
    """Raise the soft limit of open files so that `connections` fit, as far as the hard limit allows.

    Where it allows too few, the answer is how many fit beside the files that everything else needs: clients that do
    nothing must not keep a worker from being started again.  A line in the log says so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Seats(connections, CROWD)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if possible > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible == wanted:
        return Seats(connections, CROWD)
    seats = share_files(possible)
    if seats.connections >= connections:
        return Seats(connections, seats.crowd)
    log.warning(
        "the hard limit of %d open files leaves room for %d connections, not for max_connections=%d",
        hard,
        seats.connections,
        connections,
    )
    return seats


def share_files(files: int) -> Seats:
    """What of `files` is for connections: all but SPARE_FILES, or but a quarter where they are few."""
    left = max(2, files - min(SPARE_FILES - CROWD, max(FEW_FILES, files // 4)))
    crowd = min(CROWD, left // 4)
    return Seats(left - crowd, crowd)
