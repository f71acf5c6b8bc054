"""A request in hand on a connection, and the place for its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.framing_rules import Head
from penstock.server.messages import HttpRequest, Response

if TYPE_CHECKING:
    from penstock.server.connection import Connection


class Exchange(HttpRequest):
    """What the application sees as a request is also the connection's record of it: one object for both.

    `head` is None where the head made no sense; such an exchange only keeps a place in the order of answers.
    `connection` is None once the answer was written or the client has left; `last` says that the connection ends
    with this answer.
    """

    __slots__ = ("connection", "head", "last", "response")

    def __init__(self, connection: Connection, head: Head | None, now: float) -> None:
        if head is None:
            HttpRequest.__init__(self, "", b"", b"", {}, now)
        else:
            HttpRequest.__init__(self, head.method, head.path, head.query, head.headers, now)
        self.head = head
        self.connection: Connection | None = connection
        self.response: Response | None = None
        self.last = False

    def reply(self, response: Response) -> None:
        """Answer.  Ignored where the client has left, and the second time."""
        connection = self.connection
        if connection is not None and self.response is None:
            self.response = response
            connection.settle(self)
