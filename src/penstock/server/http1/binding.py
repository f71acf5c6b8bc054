"""Bind the TCP sockets that a server listens on, and say how many connections fit.  Errors say what is wrong."""

from __future__ import annotations

import errno
import resource
import socket
import ssl
from typing import NamedTuple

from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.unix_sockets import BACKLOG, listen_refused
from penstock.server.http1.connections import EXCESS_CONNECTIONS

_TCP_NOTSENT_LOWAT = 25  # from linux/tcp.h; not every build of Python's socket module has the name

log = guarded_logger("penstock.server")

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
        raise listen_refused(f"{host}:{port}", error) from None
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
            raise listen_refused(f"{host}:{port}", error, hint) from None
        sock.setblocking(False)
        port = sock.getsockname()[1]
    return sockets


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


def raise_file_limit(connections: int, *, tls: bool, worker_files: int = 0) -> ConnectionLimits:
    """Raise this process's soft limit of open files so that it can serve `connections`; returns what it can serve.

    `worker_files` is how many files the workers of the services take.

    The hard limit may allow fewer files.  Then fewer connections are served, and a line in the log says so.  Files for
    everything else are set aside first, because a worker that died can only be started again with free files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + max(SPARE_FILES, EXCESS_CONNECTIONS + MIN_SPARE_FILES + worker_files)
    wanted += EXCESS_CONNECTIONS if tls else 0
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ConnectionLimits(connections, EXCESS_CONNECTIONS)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if possible > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible == wanted:
        return ConnectionLimits(connections, EXCESS_CONNECTIONS)
    limits = share_files(possible, tls=tls, worker_files=worker_files)
    if limits.connections >= connections:
        return ConnectionLimits(connections, limits.excess)
    log.warning(
        "the hard limit of %d open files leaves room for %d connections, not for max_connections=%d",
        hard,
        limits.connections,
        connections,
    )
    return limits


def share_files(files: int, *, tls: bool, worker_files: int = 0) -> ConnectionLimits:
    """The connections that fit into `files` open files beside the `worker_files` that workers take.

    The rest of the program gets a quarter of the files, and at most `SPARE_FILES` less `EXCESS_CONNECTIONS`; but never
    less than `MIN_SPARE_FILES` and those of the workers.  Of what is left, at most a quarter is for excess connections,
    and over TLS as much for handshakes.
    """
    spare = max(MIN_SPARE_FILES + worker_files, min(SPARE_FILES - EXCESS_CONNECTIONS, files // 4))
    left = max(2, files - spare)
    excess = min(EXCESS_CONNECTIONS, left // 4)
    return ConnectionLimits(left - (2 * excess if tls else excess), excess)
