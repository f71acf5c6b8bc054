"""Watch what one client leaves unread of its answers: report it as held, and say when it is gone rather than slow."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from penstock.core.payload import Buffer, payload_size
from penstock.server.application import Application, HttpRequest

PROGRESS_BYTES: Final = 64 * 1024
"""A client that takes this much of its answers within `unread_timeout`, or all of them, is slow but not gone."""


class UnreadAnswers:
    """The bytes written for one client and not yet taken by it.  Constructed at `now`.

    `written` counts every byte given to the transport; `last` is the request answered last; `charged` is what is
    reported as held at the moment.
    """

    __slots__ = ("_app", "_charges", "_taken", "_taken_since", "charged", "last", "written")

    def __init__(self, app: Application, now: float) -> None:
        self._app = app
        self._charges: deque[tuple[HttpRequest | None, int]] = deque()
        """What `charged` is made of, in the order in which the client will take it."""
        self._taken = 0
        self._taken_since = now
        self.charged = 0
        self.last: HttpRequest | None = None
        self.written = 0

    def write(self, transport: asyncio.Transport, answer: bytes | list[Buffer], request: HttpRequest) -> None:
        """Write the `answer` to `request`; what stays unread of it is charged to this request."""
        self.last = request  # before it is written: the transport may say at once that it has enough
        if isinstance(answer, bytes):
            self.written += len(answer)
            transport.write(answer)
        else:
            self.written += payload_size(answer)
            transport.writelines(answer)

    def measure(self, transport: asyncio.Transport | None) -> None:
        """Report what lies unread in the buffer of `transport`; nothing where the socket is gone."""
        if transport is not None:
            self.charge(transport.get_write_buffer_size())

    def charge(self, unread: int) -> None:
        """Report that `unread` bytes are held now: what is more than before belongs to the request answered last."""
        more = unread - self.charged
        self.charged = unread
        if more > 0:
            self._charges.append((self.last, more))
            self._app.hold(self.last, more)
        elif more < 0:
            self._give_back(-more)
        if not unread:
            self.last = None

    def _give_back(self, nbytes: int) -> None:
        while nbytes:
            request, charged = self._charges.popleft()
            part = min(charged, nbytes)
            if part < charged:
                self._charges.appendleft((request, charged - part))
            self._app.hold(request, -part)
            nbytes -= part

    def stalled(self, unread: int, now: float, timeout: float) -> bool:
        """Whether, with `unread` bytes left at `now`, hardly anything was taken for `timeout` seconds."""
        self.charge(unread)
        taken = self.written - unread
        if unread == 0 or taken - self._taken >= PROGRESS_BYTES:
            self._taken, self._taken_since = taken, now
            return False
        return now - self._taken_since >= timeout
