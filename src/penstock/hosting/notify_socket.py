"""Send notifications to systemd: one datagram each, which is never waited for.

Where it cannot be sent the log says why, once, and the server goes on: whoever listens there may come back.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Final

from penstock.codec.text import printable
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.systemd import GivenBySystemd

log = guarded_logger("penstock.server")

LARGEST_BYTES: Final = 4096
"""systemd takes no larger message."""


class NotifySocket:
    """Sends to `address`, a path or a name behind an `@`; or `through` a socket that leads to who passes it on."""

    def __init__(self, address: str, through: socket.socket | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._shown = printable(address)
        self._through = through
        self._own: socket.socket | None = None
        """Opened once: there may be no file for another one later, and then no sign of life would arrive."""
        self._told = False
        """Whether the log was told that nothing arrives."""

    @classmethod
    def of(cls, given: GivenBySystemd) -> NotifySocket:
        """The one that systemd named."""
        return cls(given.notify_address, given.relay)

    def send(self, assignments: Sequence[str]) -> bool:
        """Send them as one message, without a wait; whether they were taken."""
        return self.send_message("\n".join(assignments).encode("utf-8", "replace"), socket.MSG_DONTWAIT)

    def send_message(self, message: bytes, flags: int = 0) -> bool:
        """Send a message as it is, with these `flags` of the system's call; whether it was taken."""
        try:
            self._send(message, flags)
        except BlockingIOError:  # the reader is behind
            return False
        except OSError as error:
            if not self._told:
                self._told = True
                why = error.strerror or error
                log.warning(
                    "cannot notify systemd at NOTIFY_SOCKET=%s: %s; systemd gets no status of this service",
                    self._shown,
                    why,
                )
            return False
        return True

    def _send(self, message: bytes, flags: int) -> None:
        if self._through is not None:
            self._through.send(message, flags)
            return
        if not self._address.startswith(("/", "\0")):
            raise OSError("it is neither an absolute path nor an abstract name that begins with @")
        if self._own is None:
            self._own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            # A default timeout of the user's module would have it wait in spite of MSG_DONTWAIT.
            self._own.setblocking(True)
        self._own.sendto(message, flags, self._address)

    def close(self) -> None:
        """Send nothing more."""
        if self._own is not None:
            self._own.close()
            self._own = None


def pass_on(messages: socket.socket, to: NotifySocket) -> None:
    """From now on send `to` what comes by `messages`, in a thread of this process.

    systemd takes notifications from the process that it has started, and knows that by the sender.
    """
    threading.Thread(target=_pass_on, args=(messages, to), name="penstock-notifications", daemon=True).start()


def _pass_on(messages: socket.socket, to: NotifySocket) -> None:
    with contextlib.suppress(OSError):
        while message := messages.recv(LARGEST_BYTES):
            to.send_message(message)
