"""The bodies in arrival that lie in the slab of one service, and which of them are moved out.  Told the time.

Contract
--------
* What a client announces is not there yet.  So all bodies in arrival together announce at most half of the slab.
* A body that finds no room may have others moved out: those that brought least in the last second, each of them less
  than the body itself has brought.  So nobody makes way for a client that only announces.
* A body that is moved out goes on inline: what came is copied into memory of its own, and its piece is dropped.
* At most `MOVED_BYTES_PER_TURN` are copied in one turn of the event loop.  What comes meanwhile still goes to the
  piece, and a body that is whole by then stays there.
* A body that is whole is in arrival no more, and is never moved out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.core.payload import Buffer

MOVED_BYTES_PER_TURN: Final = 1024 * 1024
"""Most bytes that are copied in one turn of the event loop.  It takes a tenth of a millisecond or two."""
MOVED_PER_BODY: Final = 16
"""Most bodies that are moved out for one that finds no room: each is searched for among all."""
SPAN_SECONDS: Final = 0.5
"""What a body brought in the last second is counted in two spans: the current one and the one before."""

FULL: Final = "full"
MOVED: Final = "moved"
CHUNKED: Final = "chunked"

Take: TypeAlias = Callable[[int], memoryview | None]
"""Gives a piece: a writable view of so many bytes, or None where there is no room."""


class ArrivingBody:
    """One body, from its first byte to its last: `came` of `announced` bytes are there.

    They lie in `piece`, which whoever asked for one sets, or inline where that is None.  Call `coming` for the bytes
    that come.  Then store them with `put`, unless they were received into `room`.

    With `chunked` it came in chunks and is whole: it gets no piece, and is shown only to be counted.
    """

    __slots__ = ("_before", "_lately", "_own", "_span", "announced", "came", "chunked", "piece")

    def __init__(self, announced: int, *, chunked: bool = False) -> None:
        self.announced = announced
        self.chunked = chunked
        self.came = 0
        self.piece: memoryview | None = None
        # It grows as bytes come and is not made at full size: a client may announce any length and send nothing.
        self._own = bytearray()
        """What lies inline.  While the body is moved out: how far the copy has got."""
        self._span = 0
        """The span of time in which something came last, by its number."""
        self._lately = 0
        """Bytes that came in it."""
        self._before = 0
        """Bytes that came in the span before it."""

    @property
    def whole(self) -> bool:
        """Whether the last byte came."""
        return self.came == self.announced

    def coming(self, nbytes: int, now: float) -> None:
        """Count `nbytes` more, which came at `now`."""
        span = int(now / SPAN_SECONDS)
        if span != self._span:
            self._before = self._lately if span == self._span + 1 else 0
            self._lately = 0
            self._span = span
        self._lately += nbytes
        self.came += nbytes

    def put(self, part: Buffer) -> None:
        """Store `part`: the bytes that were counted last."""
        piece = self.piece
        if piece is None:
            self._own += part
        else:
            piece[self.came - len(part) : self.came] = part

    def room(self) -> memoryview | None:
        """Where the next bytes may be received: the rest of the piece.  None where the body goes on inline."""
        piece = self.piece
        return None if piece is None else piece[self.came :]

    def brought(self, now: float) -> int:
        """The bytes that came in the last second before `now`, or in half a second at least."""
        ago = int(now / SPAN_SECONDS) - self._span
        if ago == 0:
            return self._before + self._lately
        return self._lately if ago == 1 else 0

    def move_out(self, most: int) -> int:
        """Copy at most `most` bytes more out of the piece; returns how many.  With the last of those that came it is
        dropped.
        """
        piece = self.piece
        if piece is None:
            return 0
        at = len(self._own)
        stop = min(at + most, self.came)
        self._own += piece[at:stop]
        if stop == self.came:
            self.piece = None
        return stop - at

    def content(self) -> Buffer:
        """What the body says, once it is whole."""
        piece = self.piece
        return self._own if piece is None else piece


class Arriving:
    """The bodies in arrival in one slab of `slab_bytes`, whose pieces come from `take`.

    Why a body did not get a piece, or lost it, is counted in `inline`, by `FULL`, `MOVED` and `CHUNKED`.  While `busy`,
    `go_on` must be called in the next turn of the event loop.
    """

    def __init__(self, slab_bytes: int, take: Take, inline: dict[str, int]) -> None:
        self.announced = 0
        """Bytes of all bodies in arrival, as far as they lie in the slab, once they are whole."""
        self._most_announced = slab_bytes // 2
        self._take = take
        self._reasons = inline  # not `_inline`: mypyc would write `__inline`, which C compilers take for a keyword
        self._bodies: dict[ArrivingBody, None] = {}
        """In the order in which they began to arrive."""
        self._moving: ArrivingBody | None = None
        """The one that is being moved out, for several turns."""
        self._copied = 0
        """Bytes that were copied in this turn of the event loop."""

    @property
    def busy(self) -> bool:
        """Whether something was copied in this turn, so that the next one must be told."""
        return self._copied > 0

    def piece_for(self, body: ArrivingBody, now: float) -> memoryview | None:
        """A piece for a body whose first bytes were counted, or None: it goes on inline.  Asked once."""
        if body.chunked:
            self._count(CHUNKED)
            return None
        piece = self._find(body, now)
        if piece is None:
            self._count(FULL)
        elif not body.whole:
            self._bodies[body] = None
            self.announced += body.announced
        return piece

    def arrived(self, body: ArrivingBody) -> None:
        """`body` is whole, or will not come: it is in arrival no more.  Harmless where it is not."""
        if body in self._bodies:
            del self._bodies[body]
            self.announced -= body.announced
        if self._moving is body:
            self._moving = None

    def go_on(self) -> bool:
        """Another turn of the event loop has begun: copy on.  Returns whether the next turn must be told too."""
        self._copied = 0
        if self._moving is not None:
            self._copy(self._moving)
        return self.busy

    def _find(self, body: ArrivingBody, now: float) -> memoryview | None:
        """A piece for `body`, for which others may be moved out."""
        whole, announced = body.whole, body.announced
        if not whole and announced > self._most_announced:
            return None
        moved = 0
        while True:
            if whole or self.announced + announced <= self._most_announced:
                piece = self._take(announced)
                if piece is not None:
                    return piece
            if moved == MOVED_PER_BODY or not self._move_one(body.brought(now), now):
                return None
            moved += 1

    def _move_one(self, brought: int, now: float) -> bool:
        """Move out the body that brought least, less than `brought`; returns whether it is out already."""
        if self._moving is not None or self._copied >= MOVED_BYTES_PER_TURN:
            return False
        slowest, least = None, brought
        for body in self._bodies:
            its = body.brought(now)
            if its < least:
                slowest, least = body, its
        if slowest is None:
            return False
        self._moving = slowest
        self._copy(slowest)
        return slowest.piece is None

    def _copy(self, body: ArrivingBody) -> None:
        """Copy of `body` what this turn allows."""
        self._copied += body.move_out(MOVED_BYTES_PER_TURN - self._copied)
        if body.piece is None:
            self._count(MOVED)
            self.arrived(body)

    def _count(self, reason: str) -> None:
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
