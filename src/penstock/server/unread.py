"""Watch what one client leaves unread of its answers: report it as held, and say when it is gone rather than slow."""

from __future__ import annotations

from typing import Final

from penstock.server.application import Application
from penstock.server.messages import HttpRequest

PROGRESS: Final = 64 * 1024
"""A client that takes this much of its answers within `unread_timeout`, or all of them, is slow but not gone."""


class UnreadAnswers:
    """The bytes written for one client and not yet taken by it.  Constructed at `now`.

    `written` counts every byte given to the transport; `charged` is what is reported as held at the moment.
    """

    __slots__ = ("_app", "_of", "_taken", "_taken_since", "charged", "written")

    def __init__(self, app: Application, now: float) -> None:
        self._app = app
        self._of: HttpRequest | None = None
        self._taken = 0
        self._taken_since = now
        self.charged = 0
        self.written = 0

    def blame(self, request: HttpRequest) -> None:
        """What will be charged is this request's answer, unless an earlier one is still unread."""
        if self._of is None and not self.charged:
            self._of = request

    def charge(self, unread: int) -> None:
        """Report that `unread` bytes are held now."""
        if unread != self.charged:
            self._app.hold(self._of, unread - self.charged)
            self.charged = unread
        if not unread:
            self._of = None

    def stalled(self, unread: int, now: float, timeout: float) -> bool:
        """Whether, with `unread` bytes left at `now`, hardly anything was taken for `timeout` seconds."""
        self.charge(unread)
        taken = self.written - unread
        if unread == 0 or taken - self._taken >= PROGRESS:
            self._taken, self._taken_since = taken, now
            return False
        return now - self._taken_since >= timeout
