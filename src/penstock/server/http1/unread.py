"""Watch what one client leaves unread of its answers: report it as held, and decide when the client counts as gone.

Contract
--------
* A client counts as gone when it takes hardly anything for `write_timeout`.
* While more bytes of answers are held than may be, each answer has that long in all, from when it was ready.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.core.payload import Buffer, payload_size
from penstock.server.application import Application, HttpRequest

PROGRESS_BYTES: Final = 64 * 1024
"""A client that takes this much of its answers within `write_timeout`, or all of them, is slow but not gone.

What it takes is seen when the kernel takes more from the transport, which it does in steps: once a third of the send
buffer is free.  The steps are 128 to 200 KiB on loopback, and grow with the buffer.  So a smaller number here would
keep no client that is slower.
"""

TLS_WRITE_BYTES: Final = 64 * 1024
"""Most of an answer in one write over TLS.

A write is encrypted at once and handed to the socket's own buffer, which the transport does not count.  Once that has
64 KiB, uvloop hands over no more, and the transport counts what comes then: an answer in one piece would escape.
"""


class UnreadAnswers:
    """The bytes written for one client and not yet taken by it.  `now` is the time of construction.

    `written` counts every byte given to the transport; `last` is the request answered last; `charged` is what is
    reported as held at the moment.
    """

    __slots__ = ("_app", "_charges", "_last_ready", "_taken", "_taken_since", "charged", "last", "written")

    def __init__(self, app: Application, now: float) -> None:
        self._app = app
        self._charges: list[tuple[HttpRequest | None, int, float]] = []
        """What `charged` is made of, in the order in which the client will take it: whose, how much, ready since when.

        It is short, and empty on an idle connection.  It is a list, because an empty list takes 56 bytes and an empty
        deque 760.
        """
        self._taken = 0
        self._taken_since = now
        self._last_ready = now
        """When the answer to `last` was ready."""
        self.charged = 0
        self.last: HttpRequest | None = None
        self.written = 0

    def write(
        self, transport: asyncio.Transport, answer: bytes | list[Buffer], request: HttpRequest, ready: float
    ) -> None:
        """Write the `answer` to `request`, which was ready at `ready`; what stays unread is charged to this request."""
        self.last = request  # before the write, which may call `pause_writing` and so `measure` at once
        self._last_ready = ready
        if isinstance(answer, bytes):
            self.written += len(answer)
            transport.write(answer)
        else:
            nbytes = payload_size(answer)
            self.written += nbytes
            if nbytes <= TLS_WRITE_BYTES or transport.can_write_eof():
                transport.writelines(answer)
            else:
                _write_in_pieces(transport, answer)

    def measure(self, transport: asyncio.Transport | None) -> None:
        """Report the unread bytes in the buffer of `transport`; does nothing where the socket is gone."""
        if transport is not None:
            self.charge(transport.get_write_buffer_size())

    def charge(self, unread: int) -> None:
        """Report that `unread` bytes are held now.  Bytes that are new belong to the request answered last."""
        more = unread - self.charged
        self.charged = unread
        if more > 0:
            if self.last is not None:
                self.last.forget_fields()
            self._charges.append((self.last, more, self._last_ready))
            self._app.hold_answer(self.last, more)
        elif more < 0:
            self._give_back(-more)
        if not unread:
            self.last = None

    def _give_back(self, nbytes: int) -> None:
        while nbytes:
            request, charged, ready = self._charges[0]
            part = min(charged, nbytes)
            if part < charged:
                self._charges[0] = (request, charged - part, ready)
            else:
                del self._charges[0]
            self._app.hold_answer(request, -part)
            nbytes -= part

    def overdue_bytes(self, ready_by: float) -> int:
        """The unread bytes of answers that were ready by then, where too many are held."""
        overdue = 0
        for request, charged, ready in self._charges:
            if ready <= ready_by and self._app.answers_overfull(request):
                overdue += charged
        return overdue

    def stalled(self, unread: int, now: float, timeout: float) -> bool:
        """Whether, with `unread` bytes left at `now`, hardly anything was taken for `timeout` seconds."""
        self.charge(unread)
        taken = self.written - unread
        if unread == 0 or taken - self._taken >= PROGRESS_BYTES:
            self._taken, self._taken_since = taken, now
            return False
        return now - self._taken_since >= timeout


def _write_in_pieces(transport: asyncio.Transport, answer: list[Buffer]) -> None:
    for buffer in answer:
        view = memoryview(buffer)
        for at in range(0, len(view), TLS_WRITE_BYTES):
            if transport.is_closing():
                return
            transport.write(view[at : at + TLS_WRITE_BYTES])
