"""A server of HTTP, or of what looks like it, in a thread: each connection is one call of a function of the test."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator


class Asked:
    """One request on one connection, and the connection, to be answered in whatever way."""

    def __init__(self, sock: socket.socket, server: WebServer) -> None:
        self.sock = sock
        self.server = server
        self.head = b""
        while b"\r\n\r\n" not in self.head:
            piece = sock.recv(65536)
            if not piece:
                raise ConnectionError("no request came")
            self.head += piece
        self.head, _, self.begun = self.head.partition(b"\r\n\r\n")
        line, *fields = self.head.decode("ascii").split("\r\n")
        self.method, self.target, _ = line.split(" ")
        self.fields = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}

    def body(self) -> bytes:
        """The whole body of the request."""
        found = self.begun
        while len(found) < int(self.fields.get("content-length", 0)):
            found += self.sock.recv(65536)
        return found

    def send(self, text: str | bytes) -> None:
        self.sock.sendall(text.encode() if isinstance(text, str) else text)

    def answer(self, status: int = 200, body: bytes = b"", **fields: str) -> None:
        """A whole answer, with its length; `fields` have ``_`` for ``-``."""
        shown = {"Content_Length": str(len(body)), **fields}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in shown.items())
        self.send(f"HTTP/1.1 {status} Reason\r\n{lines}\r\n".encode() + body)

    def wait_for_the_end(self) -> None:
        """Until the client has closed the connection."""
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass


class WebServer:
    """Listens on a free port of 127.0.0.1."""

    def __init__(self, answer: Callable[[Asked], None], context: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self.asked: list[Asked] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
                self._open.append(sock)
            closing.callback(sock.close)
            asked = Asked(sock, self)
            self.asked.append(asked)
            self._answer(asked)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def web_server(answer: Callable[[Asked], None], context: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """A server that lives as long as the block."""
    server = WebServer(answer, context)
    try:
        yield server
    finally:
        server.close()
