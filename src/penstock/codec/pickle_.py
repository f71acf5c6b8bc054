"""Objects between our own processes: pickle protocol 5, with large buffers beside the pickle and not in it.

The payload of an object without large buffers is its pickle alone.  That of an object with large buffers (numpy arrays,
mostly) is

    kind 1 | count of buffers | length of the pickle | length of each buffer | pickle | buffers

where each buffer starts at a multiple of 64 bytes from the payload's start.  The first byte tells the two forms apart:
a pickle of protocol 5 starts with 0x80.

Pickling and unpickling run the user's code, which may raise anything.  All of it is a ValueError here, SystemExit and
CancelledError too: in a task they would end its event loop, or look like a cancelled caller.  Only KeyboardInterrupt
passes, because in the main thread it is the user's Ctrl-C and not the object's error.

Bytes from a network must never reach `loads`: a pickle can run any code.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from penstock.core.payload import Buffer, alignment_gap

OUT_OF_BAND_BYTES = 1024
"""Bytes from which on a buffer travels beside the pickle.  To copy a smaller one costs less than two more segments."""

_WITH_BUFFERS = 1
_PICKLE = 0x80
_HEAD = struct.Struct("<B3xIQ")


def dumps(value: Any) -> bytes | list[Buffer]:
    """The payload of `value`: one piece, or segments to be sent in order as if joined.

    Segments share memory with the arrays in `value`: they must be sent before anybody changes those.

    Raises:
        ValueError: `value` cannot be pickled; the message says why.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()  # contiguous: pickle refuses other buffers before it asks
        if raw.nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    try:
        pickled = pickle.dumps(value, protocol=5, buffer_callback=keep_in_band)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # see the head of this file
        raise ValueError(f"`{type(value).__qualname__}` cannot be pickled: {_message(exc)}") from exc
    if not buffers:
        return pickled
    lengths = struct.pack(f"<{len(buffers)}Q", *(b.nbytes for b in buffers))
    segments: list[Buffer] = [_HEAD.pack(_WITH_BUFFERS, len(buffers), len(pickled)) + lengths, pickled]
    end = len(segments[0]) + len(pickled)
    for buffer in buffers:
        padding = alignment_gap(end)
        if padding:
            segments.append(bytes(padding))
        segments.append(buffer)
        end += padding + buffer.nbytes
    return segments


def loads(payload: Buffer) -> Any:
    """The object of a payload made by `dumps`; large arrays in it are views of `payload`, not copies.

    Such an array can be written to only if both `payload` (a bytearray, a writable memoryview) and the sender's array
    can; over bytes it is read-only.

    Raises:
        ValueError: the payload is damaged, or its objects cannot be made here.
    """
    view = memoryview(payload)
    if not view:
        raise ValueError("the payload is empty, not a pickle")
    if view[0] == _PICKLE:
        return _unpickle(view, ())
    if view[0] != _WITH_BUFFERS or len(view) < _HEAD.size:
        raise ValueError("the payload is not a pickle in Penstock's format")
    _, count, pickled = _HEAD.unpack_from(view)
    start = _HEAD.size + 8 * count
    if start + pickled > len(view):
        raise ValueError("the payload ends inside its pickle")
    end = start + pickled
    buffers = []
    for length in struct.unpack_from(f"<{count}Q", view, _HEAD.size):
        begin = end + alignment_gap(end)
        end = begin + length
        if end > len(view):
            raise ValueError("the payload ends inside a buffer")
        buffers.append(view[begin:end])
    if end != len(view):
        raise ValueError("the payload has extra bytes after its last buffer")
    return _unpickle(view[start : start + pickled], buffers)


def _unpickle(view: memoryview, buffers: Any) -> Any:
    try:
        return pickle.loads(view, buffers=buffers)  # noqa: S301  # from our own processes only, see above
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # see the head of this file
        raise ValueError(f"cannot be unpickled: {type(exc).__name__}: {_message(exc)}") from exc


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as broken:  # noqa: BLE001  # see the head of this file
        return f"<its message cannot be made: {type(broken).__name__}>"
