"""The sockets that systemd listens on for this process: each is checked, and served by a duplicate of ours.

systemd keeps them open.  So what comes while no server runs waits in the kernel, and the next server answers it.  Here
a socket is never shut down, and no socket file is removed: only a duplicate is closed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from penstock.errors import ConfigError
from penstock.hosting.systemd import GivenBySystemd, GivenDescriptor, given_by_systemd

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
SEE_OUT_SECONDS = 1.0
"""How long before the drain those who are connected are still answered, each with its last answer.

A client whose connection was accepted, and whose request is on its way, would else find it closed.  Those whose
connections were not accepted wait for the next server.  It ends sooner where nobody is connected any more.
"""


def sockets_given(given: GivenBySystemd | None = None) -> list[socket.socket]:
    """A duplicate of each socket that systemd gave this process; none where it gave none.

    Raises:
        ConfigError: a variable cannot be read, or one of the descriptors is no stream socket that listens.
    """
    given = given_by_systemd() if given is None else given
    sockets: list[socket.socket] = []
    try:
        for descriptor in given.descriptors():
            sockets.append(_duplicate(descriptor))
            _check(descriptor, sockets[-1])
            sockets[-1].setblocking(False)
    except ConfigError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def hosts_of(sockets: Iterable[socket.socket]) -> list[str]:
    """The addresses at which a network may reach `sockets`: those of TCP."""
    return [sock.getsockname()[0] for sock in sockets if sock.family != socket.AF_UNIX]


def refuse_addresses(named: Iterable[str]) -> None:
    """ConfigError where somebody `named` an address beside the sockets that systemd gave; each is said as it is."""
    if named := list(named):
        raise ConfigError(
            f"systemd socket activation (LISTEN_FDS) conflicts with {' and '.join(named)}: remove that, or the "
            "socket unit (ListenStream=)"
        )


def _duplicate(descriptor: GivenDescriptor) -> socket.socket:
    try:
        number = os.dup(descriptor.number)
    except OSError as error:
        raise ConfigError(f"cannot use {descriptor}: {error.strerror}") from None
    try:
        return socket.socket(fileno=number)
    except OSError:
        os.close(number)
        raise _unfit(descriptor, "not a socket") from None


def _check(descriptor: GivenDescriptor, sock: socket.socket) -> None:
    if sock.family not in FAMILIES:
        raise _unfit(descriptor, f"a socket of family {socket.AddressFamily(sock.family).name}")
    if sock.type != socket.SOCK_STREAM:
        raise _unfit(descriptor, f"a socket of type {socket.SocketKind(sock.type).name}")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise _unfit(descriptor, "a socket that does not listen")


def _unfit(descriptor: GivenDescriptor, what: str) -> ConfigError:
    return ConfigError(
        f"{descriptor} is {what}; supported are listening stream sockets of TCP or Unix, which are "
        "those of ListenStream= with Accept=no"
    )
