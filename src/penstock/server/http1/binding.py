"""Bind the sockets that a server listens on, and say how many connections fit.  Errors say what is wrong."""

from __future__ import annotations

import errno
import resource
import socket
import ssl
from collections.abc import Iterable
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Any, NamedTuple

from penstock.config import ServerOptions
from penstock.errors import ConfigError, StartFailed
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.unix_sockets import BACKLOG, bind_unix, inode, listen_refused
from penstock.server.http1.connections import EXCESS_CONNECTIONS
from penstock.server_names import listening_hosts

_TCP_NOTSENT_LOWAT = 25  # from linux/tcp.h; not every build of Python's socket module has the name

log = guarded_logger("penstock.server")

UNSENT_BYTES = 256 * 1024
"""Most bytes of answers that the kernel takes from us and has not yet sent.

By default the kernel takes megabytes, and takes no more until a third of them is sent.  A client that reads slowly
would then look like one that does not read, and the bytes in the kernel would not be counted as held.
"""
EVERY_IP = "::"
"""The address of every interface; its socket is made to take both versions."""
EVERY_IPV4 = "0.0.0.0"  # noqa: S104  # whether to listen on it is the operator's choice
FREE_PORTS_TRIED = 16
"""How many free ports are tried where one must be free at several addresses."""
SPARE_FILES = 1024
"""File descriptors beside those of the connections we serve.

They are for channels to workers, logs, libraries, and the connections that are open beyond those we serve.  TLS
handshakes have `EXCESS_CONNECTIONS` more.
"""
MIN_SPARE_FILES = 64
"""The fewest file descriptors that are left for logs, libraries and a worker's start, however low the limit is."""


class BoundSockets(NamedTuple):
    """Everything that a server listens on."""

    sockets: list[socket.socket]
    file: tuple[int, int] | None
    """What identifies the file of its Unix socket; None without one."""


def bind_sockets(options: ServerOptions) -> BoundSockets:
    """A listening socket for each address that `options` name: all of them, or an error and none.

    Raises:
        ConfigError: a host has no address.
        StartFailed: an address, or the path of the Unix socket, cannot be listened on.
    """
    with ExitStack() as bound:
        sockets = bind_tcp(listening_hosts(options.host, options.uds), options.port)
        for sock in sockets:
            bound.callback(sock.close)
        if options.uds is not None:  # last: only it leaves a file behind
            sockets.append(bind_unix(options.uds, options.uds_mode))
        bound.pop_all()
    return BoundSockets(sockets, None if options.uds is None else inode(options.uds))


def bind_tcp(hosts: Iterable[str], port: int) -> list[socket.socket]:
    """A listening socket for each address of `hosts`, or an error and none.

    With port 0 the kernel chooses one free port for all of them.  ``::`` takes connections of IPv4 too, any other
    address of IPv6 those of its own version alone.  What ``::`` or ``0.0.0.0`` covers gets no socket of its own: the
    kernel would refuse it the port.

    Raises:
        ConfigError: a host has no address.
        StartFailed: an address cannot be listened on.
    """
    addresses = _without_covered([address for host in hosts for address in _look_up(host, port)])
    for _ in range(FREE_PORTS_TRIED):
        sockets = _listen(addresses, port)
        if sockets is not None:
            return sockets
    where = ", ".join(dict.fromkeys(address.host for address in addresses))
    raise StartFailed(
        f"cannot listen on {where}: tried {FREE_PORTS_TRIED} ports, and none was free on every address; set port"
    )


class _Address(NamedTuple):
    """What a host was found to be."""

    host: str
    family: socket.AddressFamily
    kind: socket.SocketKind
    protocol: int
    name: tuple[Any, ...]
    """As `bind` takes it, with any port."""

    def at(self, port: int) -> str:
        """The host, as it was given, and `port`."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def _look_up(host: str, port: int) -> list[_Address]:
    flags = socket.AI_PASSIVE
    if not _is_number(host):  # of a number it would say that it is none, where only the loopback has such addresses
        flags |= socket.AI_ADDRCONFIG
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"host {host!r} is not an address to listen on: {error}") from None
    except OSError as error:  # it could not be looked up, for example for want of files
        raise listen_refused(f"{host}:{port}", error) from None
    return [_Address(host, family, kind, protocol, name) for family, kind, protocol, _, name in found]


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _without_covered(addresses: list[_Address]) -> list[_Address]:
    """Each address once, without those that another one covers."""
    once: dict[tuple[Any, ...], _Address] = {}
    for address in addresses:
        once.setdefault((address.family, address.name), address)
    ips = {address.name[0] for address in addresses}
    if EVERY_IP in ips:
        return [address for address in once.values() if address.name[0] == EVERY_IP]
    if EVERY_IPV4 in ips:
        return [a for a in once.values() if a.family != socket.AF_INET or a.name[0] == EVERY_IPV4]
    return list(once.values())


def _listen(addresses: list[_Address], port: int) -> list[socket.socket] | None:
    """A listening socket for each address; None where port 0 became one that another of them has not free."""
    with ExitStack() as bound:
        sockets: list[socket.socket] = []
        chosen = port
        for address in addresses:
            try:
                sock = _listen_at(address, chosen)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and chosen != port:
                    return None
                raise _refused(address, chosen, error) from None
            bound.callback(sock.close)
            sockets.append(sock)
            chosen = sock.getsockname()[1]
        bound.pop_all()
    return sockets


def _listen_at(address: _Address, port: int) -> socket.socket:
    sock = socket.socket(address.family, address.kind, address.protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_unsent_bytes(sock)
        ip = address.name[0]
        if address.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if ip == EVERY_IP else 1)
        sock.bind((ip, port, *address.name[2:]))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def bound_unsent_bytes(sock: socket.socket) -> None:
    """Have the connections that come in by `sock`, which listens or will, keep no more than `UNSENT_BYTES` unsent."""
    if sock.family != socket.AF_UNIX:
        # The sockets of accepted connections inherit this option.
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _refused(address: _Address, port: int, error: OSError) -> StartFailed:
    where = address.at(port)
    if error.errno == errno.EAFNOSUPPORT and address.family == socket.AF_INET6:
        return StartFailed(
            f"cannot listen on {where}: this kernel has no IPv6; use an IPv4 address, or {EVERY_IPV4} "
            "for every interface"
        )
    return listen_refused(
        where, error, "; use another port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
    )


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
        "the hard limit of %d open files allows %d connections, not max_connections=%d",
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
