"""A worker's end of the connection that it has made to a server.

The worker's own thread reads and sends.  Two other threads may have a part in it.  One says that the worker leaves,
between two frames.  The other waits for a server that has gone while `predict` runs, and reads what its last words are:
a worker that is cut off must not go on with a call that nobody waits for.  Its last words may be missing, where a frame
that the worker has not read stood before them.  So a call that goes on for too long ends the worker too.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from penstock.errors import ProtocolError
from penstock.transport.external_messages import HANDSHAKE_BYTES, read_external_failure
from penstock.transport.forks import keep_from_forks
from penstock.transport.framing import MAX_BODY_BYTES, Frame, Kind, encode_control
from penstock.transport.worker_socket import SocketWorkerEnd

LAST_WORDS_SECONDS = 1.0
"""How long to read on from a server that takes nothing more."""


class CutOff(Exception):
    """The server sends this worker away; the message says why."""


class AttachedEnd:
    """The connection `sock`.

    Both functions are called in a thread of its own, while the worker's own may be in `predict`.  `cut_off` is told the
    message of a FAILED that came before the server has gone.  `patience` says how many seconds the worker may go on
    without a server until it closes this; `stuck` is called if it does not.
    """

    def __init__(
        self,
        sock: socket.socket,
        cut_off: Callable[[str], None],
        *,
        patience: Callable[[], float],
        stuck: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._cut_off = cut_off
        self._patience = patience
        self._stuck = stuck
        self._end = SocketWorkerEnd(sock, max_body=HANDSHAKE_BYTES)
        self._reading = threading.Lock()
        self._sending = threading.Lock()
        self._closing = threading.Event()
        keep_from_forks(self)
        self._watch = threading.Thread(target=self._wait_for_hang_up, name="penstock-server-watch", daemon=True)
        self._watch.start()

    def receive(self) -> Frame | None:
        """The next frame; None at end-of-stream, be it inside a frame: the server has gone then, as any that ends.

        Raises:
            CutOff: a FAILED has come.
            OSError: the server has gone.
            ProtocolError: what came is no frame.
        """
        with self._reading:
            try:
                return _heard(self._end.receive())
            except ProtocolError:
                if self._end.ended:
                    return None
                raise

    def send(self, buffers: list[Any]) -> None:
        """As `WorkerEnd.send`.

        Raises:
            CutOff: the server takes nothing more, and said why before.
            OSError: the server has gone.
        """
        try:
            with self._sending:
                self._end.send(buffers)
        except OSError:
            with self._reading:
                self._sock.settimeout(LAST_WORDS_SECONDS)
                self._read_last_words()
            raise

    def launched(self) -> None:
        """Frames may be longer from now on than those of a handshake."""
        self._end.bound(MAX_BODY_BYTES)

    def send_aside(self, buffers: list[Any]) -> bool:
        """Send a frame from any thread; False if the server has gone.  Its last words are left to the worker's own."""
        try:
            with self._sending:
                self._end.send(buffers)
        except OSError:
            return False
        return True

    def detach(self) -> None:
        """Say that the worker leaves; does nothing if the server has gone."""
        self.send_aside(encode_control(Kind.DETACH, b""))

    def shut(self) -> None:
        """End the connection in both directions."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def own_descriptors(self) -> list[int]:  # as `DescriptorOwner` says
        return [] if self._sock.fileno() < 0 else [self._sock.fileno()]

    def close(self) -> None:
        """Close the connection, and wait for the thread that watches it."""
        self._closing.set()
        self.shut()
        self._watch.join(LAST_WORDS_SECONDS)  # it waits for ever on a descriptor that the stage has closed
        self._end.close()

    def _wait_for_hang_up(self) -> None:
        poll = select.poll()
        poll.register(self._sock, 0)  # poll tells of a hang-up whether asked to or not; one direction alone is none
        poll.poll()
        with self._reading:
            if self._closing.is_set():
                return
            try:
                self._read_last_words()
            except CutOff as cut:
                self._cut_off(str(cut))
        if not self._closing.wait(min(self._patience(), threading.TIMEOUT_MAX)):
            self._stuck()

    def _read_last_words(self) -> None:
        """Drop what has come, up to the end; CutOff if a FAILED is in it."""
        with contextlib.suppress(OSError, ProtocolError):
            while _heard(self._end.receive()) is not None:
                pass


def _heard(frame: Frame | None) -> Frame | None:
    if frame is not None and frame.kind is Kind.FAILED:
        raise CutOff(read_external_failure(frame.payloads[0]).message)
    return frame
