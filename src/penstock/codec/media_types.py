"""Decide in which format a body came and in which one the answer goes.  Bytes in, a codec out; no state.

* A missing or empty ``Content-Type`` is JSON.  Parameters are ignored, but a charset other than UTF-8 is refused.
* ``Accept`` is read with its q-values: the most specific range that names a format decides for it, the highest
  quality wins, and among equals the order of preference that the caller gave.  An element that cannot be read is
  skipped.
* Of a value that is `too_long` nothing may be read: to take it apart would cost milliseconds.
* The answer has the name that the client used: a client that accepts ``application/x-msgpack`` gets that name back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from penstock.codec.formats import MEDIA_TYPES, Codec

_NAMES: dict[bytes, Codec] = {name.encode(): codec for codec, name in MEDIA_TYPES.items()} | {
    b"application/x-msgpack": Codec.MSGPACK,
    b"application/vnd.msgpack": Codec.MSGPACK,
}
"""Every media type we know.  Pickle has none, so that no client can select it."""

_QUALITY = re.compile(rb"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")

MAX_VALUE_BYTES = 4096
"""Longest value that is taken apart.  Browsers send some 200 bytes."""
MAX_PARTS = 100
"""Most commas and semicolons in such a value."""


def too_long(value: bytes | None) -> bool:
    """Whether a ``Content-Type`` or an ``Accept`` is longer, or has more parts, than is ever taken apart."""
    if value is None:
        return False
    return len(value) > MAX_VALUE_BYTES or value.count(b",") + value.count(b";") > MAX_PARTS


def content_codec(value: bytes | None) -> Codec | None:
    """The codec of a ``Content-Type``, or None if it is none of ours."""
    if not value or not value.strip():
        return Codec.JSON
    name, *parameters = value.lower().split(b";")
    for parameter in parameters:
        key, _, given = parameter.partition(b"=")
        if key.strip() == b"charset" and given.strip().strip(b'"') not in (b"utf-8", b"utf8"):
            return None
    return _NAMES.get(name.strip())


def media_names(codecs: Iterable[Codec]) -> str:
    """The media types of `codecs`, for a message."""
    return ", ".join(MEDIA_TYPES[codec] for codec in sorted(codecs))


def answer_codec(accept: bytes | None, preferred: Sequence[Codec]) -> tuple[Codec, bytes] | None:
    """The codec and media type to answer with, or None if the client accepts nothing we have.

    `preferred` are the formats we can give, best first.
    """
    if not accept or not accept.strip():
        return preferred[0], MEDIA_TYPES[preferred[0]].encode()
    ranges = _ranges(accept)
    best: tuple[float, Codec, bytes] | None = None
    for codec in preferred:
        quality, name = _quality(codec, ranges)
        if quality > 0 and (best is None or quality > best[0]):
            best = (quality, codec, name)
    return best and best[1:]


def _ranges(accept: bytes) -> dict[bytes, float]:
    """Media ranges and their qualities; a range given twice keeps its last quality."""
    found = {}
    for element in accept.lower().split(b","):
        name, *parameters = (part.strip() for part in element.split(b";"))
        quality = 1.0
        for parameter in parameters:
            key, _, given = parameter.partition(b"=")
            if key.strip() == b"q":
                quality = float(given) if _QUALITY.fullmatch(given := given.strip()) else -1.0
        if b"/" in name and quality >= 0:
            found[name] = quality
    return found


def _quality(codec: Codec, ranges: dict[bytes, float]) -> tuple[float, bytes]:
    """How much the client wants `codec`, and by which name: an exact name decides over a range."""
    named = [(ranges[name], name) for name, which in _NAMES.items() if which is codec and name in ranges]
    if named:
        return max(named, key=lambda pair: pair[0])
    return ranges.get(b"application/*", ranges.get(b"*/*", 0.0)), MEDIA_TYPES[codec].encode()
