"""Find out whether a Redis server was asked with TLS where it speaks none, or the other way round.

A server without TLS waits for the end of a line in what it takes for a command, and never answers; one with TLS cuts
the connection.  Neither says why.
"""

from __future__ import annotations

import contextlib
import socket
import ssl


def asked_wrongly(host: str, port: int, *, tls: bool, timeout: float) -> str:
    """How to ask the server instead, or "".  `tls` is how it was asked; nothing secret is sent."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout) as sock:
        if not tls:
            with _unchecked_context().wrap_socket(sock):
                return "requires TLS: write rediss://"
        sock.sendall(b"PING\r\n")
        if sock.recv(1) in (b"+", b"-"):  # it is there, or wants a password first
            return "does not use TLS: write redis://"
    return ""


def _unchecked_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
