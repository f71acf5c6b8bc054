"""The formats a payload can be in, and the media types that name them."""

from __future__ import annotations

from enum import IntEnum


class Codec(IntEnum):
    """How a payload's bytes stand for an object.  Frames carry these numbers: never reuse one."""

    PICKLE = 0
    """Used between our own processes only; no client can select it."""
    JSON = 1
    MSGPACK = 2
    RAW = 3
    """The bytes are the value."""
    NPY = 4
    """One numpy array as `numpy.save` writes it."""


CODEC_NAMES: dict[str, Codec] = {"json": Codec.JSON, "msgpack": Codec.MSGPACK, "raw": Codec.RAW, "npy": Codec.NPY}
"""The formats that a worker from outside may be spoken to in, by the names that options and handshakes use."""


MEDIA_TYPES: dict[Codec, str] = {
    Codec.JSON: "application/json",
    Codec.MSGPACK: "application/msgpack",
    Codec.RAW: "application/octet-stream",
    Codec.NPY: "application/x-npy",
}
