"""What a connection gives its transport while large bodies come: bytes are received where they are to lie.

Contract
--------
* What comes of a body with a piece is received into the piece, and never beyond the body's end.  Anything else is
  received into a small buffer, and handed to the connection as if it had come without this.
* The connection's own protocol is set again with the first thing that came and is no part of a large request.  To
  exchange it for each body takes up to a quarter of the rate of requests.
* No view of a piece is kept here.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from penstock.server.http1.intake import BodyIntake
from penstock.server.http1.reading import ReadingFlow

HEAD_ROOM_BYTES: Final = 16 * 1024
"""How much is received at a time where no piece is: the head of a large body.  What comes with it is copied twice.

A body that comes wholly with its head in one such part is read as a small one: the plain protocol would do as well.
"""


class PlainProtocol(Protocol):
    """The connection: what its transport tells it, and where bytes have come past `data_received`."""

    def data_received(self, data: bytes) -> None:
        """Bytes came."""

    def body_received(self, nbytes: int) -> None:
        """So many bytes came into the room of the body in arrival."""

    def plain_again(self) -> None:
        """Set the connection's own protocol."""

    def eof_received(self) -> None:
        """The client will send no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""

    def pause_writing(self) -> None:
        """Much of what was written waits for the client."""

    def resume_writing(self) -> None:
        """Little of it waits now."""


class LargeBodies(asyncio.BufferedProtocol):
    """The protocol object of one connection for its large bodies; the parts of the connection are given.

    `head_room` may be shared by all connections of an event loop: what it gets is taken out at once.
    """

    def __init__(
        self, connection: PlainProtocol, intake: BodyIntake, reading: ReadingFlow, head_room: memoryview
    ) -> None:
        self._connection = connection
        self._intake = intake
        self._reading = reading
        self._head_room = head_room
        self._into_piece = False
        """Whether the last `get_buffer` gave room in a piece."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """Where the next bytes are received.  It may be asked several times before something comes."""
        room = self._intake.room()
        self._into_piece = room is not None
        return self._head_room if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` from where `get_buffer` said."""
        if self._into_piece:
            self._connection.body_received(nbytes)
            return
        self._connection.data_received(bytes(self._head_room[:nbytes]))
        if not self._reading.kept and not self._intake.large():
            self._connection.plain_again()

    def eof_received(self) -> None:
        """See `Connection`."""
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `Connection`."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """See `Connection`."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """See `Connection`."""
        self._connection.resume_writing()
