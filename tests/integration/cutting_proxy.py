"""A proxy between consumers and a server on a Unix socket, which a test cuts, closes, or turns into a black hole."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """Listens on `port` of 127.0.0.1, and passes bytes to the socket at `path` and back."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._refuses = False
        self._swallows = False
        self._cut_at = b""
        self._swallow_at = b""
        self.cuts = 0
        """How many answers were cut off."""
        self._spawn(self._accept)

    # -- what a test does ---------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Reset every connection, and each that is made from now on."""
        self._refuses = True
        self._hang_up()

    def swallow(self) -> None:
        """Take what is sent, and pass nothing on in either direction: no reset tells anybody."""
        self._swallows = True

    def swallow_once(self, word: bytes) -> None:
        """Take the next request with `word` in it, and pass nothing more on over its connection."""
        self._swallow_at = word

    def cut_answers(self, word: bytes) -> None:
        """Pass on requests with `word` in them, and reset their connections once the server has answered."""
        self._cut_at = word

    def go_on(self) -> None:
        """Pass everything on again; what was swallowed is gone, with its connections."""
        if self._swallows:
            self._hang_up()
        self._refuses = self._swallows = False
        self._cut_at = b""

    def close(self) -> None:
        """End everything."""
        self._refuses = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up()

    # -- how ----------------------------------------------------------------------------------------------------------

    def _spawn(self, run, *given) -> None:
        threading.Thread(target=run, args=given, daemon=True).start()

    def _hang_up(self) -> None:
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._path)
            except OSError:
                client.close()
                server.close()
                continue
            with self._lock:
                self._open |= {client, server}
            asked = threading.Event()  # the answer to a request that is to be cut off is on its way
            self._spawn(self._pass_on, client, server, asked, True)
            self._spawn(self._pass_on, server, client, asked, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, asked: threading.Event, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if self._swallows:
                    continue
                if to_server and self._swallow_at and self._swallow_at in piece:
                    self._swallow_at = b""
                    while source.recv(1 << 16):
                        pass
                    break
                if to_server and self._cut_at and self._cut_at in piece:
                    asked.set()
                elif not to_server and asked.is_set():
                    self.cuts += 1
                    break
                target.sendall(piece)
        with self._lock:
            self._open -= {source, target}
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
