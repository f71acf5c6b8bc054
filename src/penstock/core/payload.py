"""The bytes of an item or of a result as they travel, in one piece or in several.

Code that carries a payload asks for its size, its pieces, or its bytes joined, and never looks inside.  These are
functions, not a class: an object for each payload costs 24 ns more per item.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""One piece.  A memoryview is of bytes, so that its length is its size."""

Payload: TypeAlias = Buffer | list[Buffer]
"""One buffer, or several that are read as if joined."""

ALIGNMENT: Final = 64
"""A large array starts at a multiple of so many bytes, in a frame and in a pickle: it can be used without a copy."""


def payload_size(payload: Payload) -> int:
    """How many bytes `payload` is."""
    if type(payload) is bytes:
        return len(payload)
    if isinstance(payload, list):
        return sum([_buffer_size(piece) for piece in payload])
    return _buffer_size(payload)


def _buffer_size(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def payload_pieces(payload: Payload) -> list[Buffer]:
    """The buffers of `payload`, in order."""
    return payload if isinstance(payload, list) else [payload]


def join_payload(payload: Payload) -> Buffer:
    """`payload` as one buffer: itself, or a copy of its pieces where there are several."""
    return b"".join(payload) if isinstance(payload, list) else payload


def alignment_gap(offset: int) -> int:
    """How many bytes lie between `offset` and the next multiple of `ALIGNMENT`."""
    return -offset % ALIGNMENT
