"""Write items as bodies of requests, and read bodies of answers as results.

Contract
--------
* Bytes travel as they are, a numpy array as `.npy`, and everything else as JSON or as MessagePack.
* In a client batch every item is JSON, or MessagePack, and is written once however often it is sent.
* numpy is imported only where an array is written or read.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.codec.annotations import is_array
from penstock.codec.formats import MEDIA_TYPES, Codec
from penstock.codec.invalid import UnreadablePart
from penstock.codec.media_types import content_codec
from penstock.errors import ConfigError, InvalidItem
from penstock.jobs.inputs import encode_input

CODECS: Final = {"json": Codec.JSON, "msgpack": Codec.MSGPACK}
"""The formats that a client may be told to use, by their names."""
_READERS: Final = {Codec.JSON: msgspec.json.Decoder().decode, Codec.MSGPACK: msgspec.msgpack.Decoder().decode}


class CallBody(NamedTuple):
    """The body of a request, and what its headers say of it."""

    body: bytes
    content_type: str
    accept: str = ""
    """Which answer is wanted; "" leaves it to the server."""


class UnreadableBody(Exception):
    """The body is not what its media type says, or of a type that stands for no result."""


def write_item(item: Any, codec: Codec) -> CallBody:
    """The body of a request of one item.

    Raises:
        InvalidItem: it cannot be written; `path` says where.
    """
    if isinstance(item, (bytes, bytearray, memoryview)):
        return CallBody(bytes(item), MEDIA_TYPES[Codec.RAW])
    if is_array(type(item)):
        # Who sends an array wants one, and not lists of numbers that stand for it.
        return CallBody(encode_input(item, None).body, MEDIA_TYPES[Codec.NPY], f"{MEDIA_TYPES[Codec.NPY]}, */*;q=0.9")
    return CallBody(encode_input(item, MEDIA_TYPES[codec]).body, MEDIA_TYPES[codec])


def write_item_of_batch(item: Any, codec: Codec) -> bytes:
    """One item of a client batch.

    Raises:
        InvalidItem: it cannot be written; `path` says where.
    """
    if isinstance(item, (bytes, bytearray, memoryview)):
        return _BYTES[codec](bytes(item))  # in JSON a text in base64, as the server reads it
    return encode_input(item, MEDIA_TYPES[codec]).body


_BYTES: Final = {Codec.JSON: msgspec.json.Encoder().encode, Codec.MSGPACK: msgspec.msgpack.Encoder().encode}


def join_items(items: Sequence[bytes], codec: Codec) -> CallBody:
    """The body of a client batch of items that are written already."""
    if codec is Codec.JSON:
        return CallBody(b"[" + b",".join(items) + b"]", MEDIA_TYPES[codec])
    return CallBody(b"".join((b"\xdd", struct.pack(">I", len(items)), *items)), MEDIA_TYPES[codec])


def read_result_body(body: bytes, content_type: str, *, otherwise_bytes: bool = False) -> Any:
    """The object that a body stands for.

    Args:
        body: what came.
        content_type: what it is said to be.
        otherwise_bytes: whether a media type that is none of ours is given as bytes, and no error.

    Raises:
        UnreadableBody: it is not what it is said to be.
        ConfigError: it is an array, and numpy is not installed.
    """
    codec = content_codec(content_type.encode("latin-1", "replace")) if content_type.strip() else None
    if codec is Codec.RAW or (codec is None and otherwise_bytes):
        return body
    if codec is None:
        raise UnreadableBody(f"a body of type {content_type[:100]!r}")
    if codec is Codec.NPY:
        return _read_array(body)
    try:
        return _READERS[codec](body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableBody(f"an invalid {MEDIA_TYPES[codec]} body ({error})") from None


def read_outcomes(body: bytes, content_type: str, count: int) -> Iterable[dict[str, Any]]:
    """The outcomes of a client batch of `count` items, in order; each has a `result`, or an `error` that is a problem.

    Raises:
        UnreadableBody: it has no such outcomes.
    """
    read = read_result_body(body, content_type)
    outcomes = read.get("outcomes") if isinstance(read, dict) else None
    if not isinstance(outcomes, list) or len(outcomes) != count or not all(map(_is_outcome, outcomes)):
        raise UnreadableBody(f"a body without outcomes for {count} items")
    return outcomes


def _is_outcome(outcome: object) -> bool:
    return isinstance(outcome, dict) and ("result" in outcome or isinstance(outcome.get("error"), dict))


def _read_array(body: bytes) -> Any:
    if importlib.util.find_spec("numpy") is None:
        raise ConfigError("the result is an array and needs numpy: pip install 'penstock[numpy]'")
    from penstock.codec import numpy_

    try:
        return numpy_.read_npy(body, Any)
    except (UnreadablePart, InvalidItem) as error:
        raise UnreadableBody(f"an invalid .npy body ({error})") from None
