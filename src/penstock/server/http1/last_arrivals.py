"""Close a socket that listens behind those who have connected, and lose none of them.

The kernel completes connections before anybody accepts them.  Where a socket is just closed, those that still wait are
reset: their clients see a connection that was lost after they had sent a request, which may have run for all they know.

A Unix socket is first told to let nobody in, so all who came in are found.  TCP knows no such thing: who connects
between the last look and the close is reset, within microseconds, or where the network still carries the end of a
handshake.
"""

from __future__ import annotations

import contextlib
import socket

from penstock.hosting.unix_sockets import BACKLOG


def accept_last(listening: socket.socket) -> list[socket.socket]:
    """Close `listening`; the connections that waited there, which do not block."""
    if listening.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RD)  # whoever connects now is refused; who waits can be accepted
    accepted: list[socket.socket] = []
    while len(accepted) <= BACKLOG:  # over TCP others may come all the time
        try:
            sock, _address = listening.accept()
        except ConnectionAbortedError:  # this client has left
            continue
        except OSError:  # nobody waits, or no file is left for whoever does
            break
        sock.setblocking(False)
        accepted.append(sock)
    listening.close()
    return accepted
