"""The bytes of an item or of a result as they travel, in one buffer or in several.

Code that carries a payload asks for its size, its buffers, or its bytes joined, and never looks inside.  These are
functions, not a class: an object for each payload costs 24 ns more per item.

A large payload may lie in a piece of a slab, which is shared memory.  It is a memoryview then, as of any other bytes.
Whoever holds that view, or a slice of it, holds the piece: it is free again when the last view is gone.  So nobody
gives a piece back, and nobody can forget to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A memoryview is of bytes, so that its length is its size."""

Payload: TypeAlias = Buffer | list[Buffer]
"""One buffer, or several that are read as if joined."""


class Handle:
    """What a frame says of a payload that lies in a slab, in place of its bytes.

    `slab` is the number of the slab, and `offset` where the payload begins in it, in bytes.  `serial` is a number that
    no other lease of that slab has: a piece whose pages are used again is another piece.
    """

    __slots__ = ("nbytes", "offset", "serial", "slab")

    def __init__(self, slab: int, offset: int, nbytes: int, serial: int) -> None:
        self.slab = slab
        self.offset = offset
        self.nbytes = nbytes
        self.serial = serial


LeasePiece: TypeAlias = Callable[[int], memoryview | None]
"""Gives a place in a slab for so many bytes, to be written to; None where they are to travel inline."""

LEAST_LEASED: Final = 4096
"""The bytes from which on a slab is asked for a place: a page, the least that it gives."""
ALIGNMENT: Final = 64
"""A large array starts at a multiple of so many bytes, in a frame and in a pickle: it can be used without a copy."""


def payload_size(payload: Payload) -> int:
    """How many bytes `payload` is."""
    if type(payload) is bytes:
        return len(payload)
    if isinstance(payload, list):
        return sum([_buffer_size(buffer) for buffer in payload])
    return _buffer_size(payload)


def _buffer_size(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def any_large(lengths: list[int], least: int) -> bool:
    """Whether one of `lengths` is `least` or more.  Compiled, it takes a tenth of the time of `max`."""
    for length in lengths:  # noqa: SIM110  # `any` would make a generator
        if length >= least:
            return True
    return False


def payload_buffers(payload: Payload) -> list[Buffer]:
    """The buffers of `payload`, in order."""
    return payload if isinstance(payload, list) else [payload]


def handle_of(payload: object) -> Handle | None:
    """The handle of `payload`; None where it does not lie in a slab, or is not the whole of its piece.

    `transport.slab` makes the objects that such views are of, and notes there which piece it is.
    """
    if type(payload) is not memoryview:
        return None
    handle = getattr(payload.obj, "handle", None)
    return handle if isinstance(handle, Handle) and handle.nbytes == payload.nbytes else None


def join_payload(payload: Payload) -> Buffer:
    """`payload` as one buffer: itself, or a copy of them all where there are several."""
    return b"".join(payload) if isinstance(payload, list) else payload


def write_payload(payload: Payload, place: memoryview) -> None:
    """Copy `payload` to `place`, which has room for all of it."""
    begin = 0
    for buffer in payload_buffers(payload):
        end = begin + _buffer_size(buffer)
        place[begin:end] = buffer
        begin = end


def copy_to_piece(payload: Payload, lease: LeasePiece) -> memoryview | None:
    """A copy of `payload` in a slab; None where it is small, or there is no place for it."""
    nbytes = payload_size(payload)
    piece = lease(nbytes) if nbytes >= LEAST_LEASED else None
    if piece is not None:
        write_payload(payload, piece)
    return piece


def alignment_gap(offset: int) -> int:
    """How many bytes lie between `offset` and the next multiple of `ALIGNMENT`."""
    return -offset % ALIGNMENT
