"""Client batches: a body with a list of items taken apart, and its outcomes put together.

Taking apart looks at syntax only: the items stay bytes, each is decoded where it is run, and fails alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.codec.formats import Buffer, Codec
from penstock.codec.invalid import invalid_item
from penstock.errors import PenstockError

_SPLIT = {
    Codec.JSON: msgspec.json.Decoder(list[msgspec.Raw]).decode,
    Codec.MSGPACK: msgspec.msgpack.Decoder(list[msgspec.Raw]).decode,
}
_JOIN = {Codec.JSON: msgspec.json.Encoder().encode, Codec.MSGPACK: msgspec.msgpack.Encoder().encode}


class TooManyItems(PenstockError):
    """The list has more items than one call may have."""


def split_list(codec: Codec, body: Buffer, limit: float = math.inf) -> list[memoryview]:
    """The items of a JSON or MessagePack list, each a view of `body`.

    Raises:
        InvalidItem: the body is broken or not a list.
        TooManyItems: it has more than `limit`.
    """
    try:
        items = _SPLIT[codec](body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise invalid_item(exc) from exc
    if len(items) > limit:
        raise TooManyItems(f"the list has {len(items)} items, more than {limit}")
    return [memoryview(raw) for raw in items]


def join_outcomes(codec: Codec, entries: Sequence[tuple[Buffer | list[Buffer] | None, dict[str, Any] | None]]) -> bytes:
    """``{"outcomes": [{"result": ...} | {"error": {...}}]}`` of payloads already in `codec`, and of problems."""
    outcomes = [
        {"result": msgspec.Raw(_whole(payload))} if payload is not None else {"error": error}
        for payload, error in entries
    ]
    return _JOIN[codec]({"outcomes": outcomes})


def problem(codec: Codec, obj: dict[str, Any]) -> bytes:
    """A small dict as JSON or MessagePack."""
    return _JOIN[codec](obj)


def _whole(payload: Buffer | list[Buffer]) -> Buffer:
    return b"".join(payload) if isinstance(payload, list) else payload
