"""Decide whether a client has taken too long.  All times are in seconds."""

from __future__ import annotations

from penstock.config import ServerOptions
from penstock.server.application import BODY_TIMEOUTS_PER_BODY
from penstock.server.http1.refusals import LINGER_SECONDS
from penstock.server.http1.states import LINGERING, READING_HEAD, SKIPPING, ConnectionState


class TimeLimits:
    """The limits of one listener's connections.

    `silent` is how long nothing came of what is awaited from the client.  `idle` is how long no answer was owed to it.
    """

    __slots__ = ("_body", "_head", "_keep_alive", "unread")

    def __init__(self, options: ServerOptions) -> None:
        self._head = options.header_timeout
        self._body = options.body_timeout
        self._keep_alive = options.keepalive_timeout
        self.unread = options.write_timeout

    def end_idle(self, state: ConnectionState, fresh: bool, idle: float, silent: float) -> bool:
        """Whether a connection ends on which no answer is owed and nothing is asked.

        `fresh` says that nothing was ever asked on it: it gets the time of a head.
        """
        if state is READING_HEAD:
            return idle >= (self._head if fresh else self._keep_alive)
        if state is SKIPPING:
            return silent >= self._body or idle >= BODY_TIMEOUTS_PER_BODY * self._body
        return state is LINGERING and idle >= LINGER_SECONDS

    def late_head(self, silent: float) -> str | None:
        """Why a head that was begun `silent` seconds ago is refused, or None."""
        return f"the request head took longer than {self._head:g} s (header_timeout)" if silent >= self._head else None

    def late_body(self, silent: float, age: float, allowed: float) -> str | None:
        """Why the body of a request is refused, or None.  The request is `age` seconds old and has `allowed` in all."""
        if silent >= self._body:
            return f"no request body data received for {self._body:g} s (body_timeout)"
        if age >= allowed:
            return f"the request body was incomplete after {allowed:g} s, the time limit of this request"
        return None
