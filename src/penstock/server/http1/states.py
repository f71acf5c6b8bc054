"""The states of a connection, and its legal moves as a table."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.core.moves import Move


class ConnectionState(IntEnum):
    """Where the next byte from the client belongs."""

    READING_HEAD = 0
    """To the head of a request.  A new connection starts here, and each request ends here."""
    READING_BODY = 1
    """To the body of the request begun last."""
    AWAITING_TURN = 2
    """To that body too.  The client waits for "100 Continue", which is written after the answers before it."""
    SKIPPING = 3
    """To a refused body, which passes unread."""
    FINISHING = 4
    """To no request: the last one was read whole, and its answer closes the connection.  So far, nothing came."""
    DISCARDING = 5
    """To no request: the client may still be sending, so the connection lingers after its last answer."""
    LINGERING = 6
    """To no request: the last answer was written, and our sending side is closed."""
    CLOSED = 7
    """To nothing: the socket is closed, or will be once what was written has been sent."""


# A compiled module loads a constant of a module at once, but has to look up an attribute of an enum.  The type is
# written out because mypy would otherwise rule out states that a called method may have moved to.
READING_HEAD: Final[ConnectionState] = ConnectionState.READING_HEAD
READING_BODY: Final[ConnectionState] = ConnectionState.READING_BODY
AWAITING_TURN: Final[ConnectionState] = ConnectionState.AWAITING_TURN
SKIPPING: Final[ConnectionState] = ConnectionState.SKIPPING
FINISHING: Final[ConnectionState] = ConnectionState.FINISHING
DISCARDING: Final[ConnectionState] = ConnectionState.DISCARDING
LINGERING: Final[ConnectionState] = ConnectionState.LINGERING
CLOSED: Final[ConnectionState] = ConnectionState.CLOSED

_ON = "on a connection"
_A = "a connection"

POSTPONE: Final = Move("postpone a body", _ON, {READING_HEAD: AWAITING_TURN})
"""The client asks whether it may send its body; it is told when no earlier answer is owed."""
EXPECT: Final = Move("expect a body", _ON, {READING_HEAD: READING_BODY, AWAITING_TURN: READING_BODY})
"""A body follows the head; or "100 Continue" was written; or the body came without waiting for it."""
SKIP: Final = Move("skip a body", _ON, {READING_HEAD: SKIPPING})
"""A request with a small body was refused by its head."""
END_BODY: Final = Move("end a body", _ON, {READING_BODY: READING_HEAD, SKIPPING: READING_HEAD})
"""The last byte of a body came, read or skipped."""
FINISH: Final = Move("finish", _A, {READING_HEAD: FINISHING})
"""The request that ends the connection was read whole."""
DISCARD: Final = Move("discard input", _ON, {READING_HEAD: DISCARDING, READING_BODY: DISCARDING, FINISHING: DISCARDING})
"""A refusal ends the connection while the client may be sending, or something came after the last request."""
HALF_CLOSE: Final = Move("half-close", _A, {READING_HEAD: LINGERING, DISCARDING: LINGERING})
"""The last answer was written, and the client may still be sending, or kept requests are dropped by a drain."""
CLOSE: Final = Move("close", _A, {state: CLOSED for state in ConnectionState if state is not CLOSED})
"""The connection ends: by its last answer, by a limit of time, or because the client left."""

MOVES: Final = (POSTPONE, EXPECT, SKIP, END_BODY, FINISH, DISCARD, HALF_CLOSE, CLOSE)
