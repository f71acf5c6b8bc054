"""A replica that answers what a test tells it to, over TCP, a Unix socket or TLS, and remembers what it was sent.

It speaks just enough of HTTP/1.1 for a proxy, and does what no server of ours would: it breaks off, it is silent, it
says 503 of what it has run.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from waiting import until_now


@dataclass(frozen=True)
class Received:
    """A request as it came: names of fields in lower case."""

    method: str
    path: str
    fields: dict[str, str]
    body: bytes


class Last(bytes):
    """A reply, or a part of one, behind which the connection is closed."""


Reply = Callable[[Received], bytes | None]
"""What is sent for a request; None breaks the connection off."""


def reply(status: int, body: str = "", *fields: str) -> bytes:
    """An answer, whole."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


class Replica:
    """Listens until it is closed.  `reply` may be changed at any time; `/readyz` is 200 while `ready` is set."""

    def __init__(
        self, name: str, *, path: str | None = None, tls: ssl.SSLContext | None = None, v6: bool = False
    ) -> None:
        self.name = name
        self.reply: Reply = lambda _: reply(200, name)
        self.ready = True
        self.received: list[Received] = []
        self.checks = 0
        """How often it was asked whether it is ready."""
        self.lost = threading.Event()
        """Set when whoever waits for an answer has gone."""
        self._tls = tls
        self._open: set[socket.socket] = set()
        if path is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self._listener.listen(64)
            self.address = f"unix:{path}"
        else:
            family, host = (socket.AF_INET6, "::1") if v6 else (socket.AF_INET, "127.0.0.1")
            self._listener = socket.create_server((host, 0), family=family)
            self.address = f"{'[::1]' if v6 else host}:{self._listener.getsockname()[1]}"
        self._spawn(self._accept)

    def close(self) -> None:
        """Refuse connections from now on, and end those that are open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            stack.enter_context(contextlib.closing(connection))
            self._open.add(connection)
            stack.callback(self._open.discard, connection)
            stream = stack.enter_context(connection.makefile("rb"))
            while (received := _read(stream)) is not None:
                answer = self._answer(received, connection)
                if answer is None:
                    return
                connection.sendall(answer)
                if isinstance(answer, Last):
                    return

    def _answer(self, received: Received, connection: socket.socket) -> bytes | None:
        if received.path == "/readyz":
            self.checks += 1
            return reply(200 if self.ready else 503, "", "Connection: close")
        self.received.append(received)
        answer = self.reply(received)
        if answer == SILENCE:
            with contextlib.suppress(ConnectionResetError):
                connection.recv(1)  # nothing more comes but the end
            self.lost.set()
            return None
        return answer


SILENCE = b"silence"
"""The reply of a replica that never answers."""


def _read(stream: IO[bytes]) -> Received | None:
    line = stream.readline()
    if not line:
        return None
    method, path, _ = line.decode("latin-1").split(" ")
    fields = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.lower()] = value.strip()
    body = b""
    if fields.get("transfer-encoding") == "chunked":
        while size := int(stream.readline(), 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
    else:
        body = stream.read(int(fields.get("content-length", 0)))
    return Received(method, path, fields, body)


def until_checked(*replicas: Replica) -> None:
    """Wait until each replica was asked whether it is ready, by a check that began after this call."""
    before = {replica: replica.checks for replica in replicas}
    until_now(lambda: all(replica.checks > before[replica] + 1 for replica in replicas), "checks")
