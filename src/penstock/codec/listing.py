"""Client batches: a body with a list of items taken apart, and its outcomes put together.

Taking apart looks at syntax only.  The items stay bytes; each is decoded where it is run, and fails alone.  An item
that nobody has asked for costs 56 bytes, and no work of the cycle collector: its view is made when it is asked for.

A list of too many items is refused before it is taken apart, because each item would cost far more memory than its
bytes.  In MessagePack the list begins with its number of items; in JSON the commas between items are counted until
there are too many.  The count has to be right for well-formed JSON only: other JSON is refused when it is parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, overload

import msgspec

from penstock.codec.formats import Codec
from penstock.codec.invalid import invalid_item
from penstock.core.payload import Buffer, Payload, join_payload
from penstock.errors import PenstockError

_SPLIT = {
    Codec.JSON: msgspec.json.Decoder(list[msgspec.Raw]).decode,
    Codec.MSGPACK: msgspec.msgpack.Decoder(list[msgspec.Raw]).decode,
}
_JOIN = {Codec.JSON: msgspec.json.Encoder().encode, Codec.MSGPACK: msgspec.msgpack.Encoder().encode}

_PIECE_BYTES = 64 * 1024
"""Bytes of JSON that are looked at in one step; other threads can run between two steps."""
_START = re.compile(rb"[ \t\n\r]*+\[")
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_STRUCTURE = bytes(set(range(256)) - set(b'",[]{}'))
_FIRST_COMMAS = re.compile(rb"\[,++")
_RUNS = re.compile(rb"\[++|\]++|,++")
_COMMA, _OPENING = b",["


class TooManyItems(PenstockError):
    """The list has more items than one call may have."""


class ItemViews(Sequence[memoryview]):
    """The items of a list; each is a view of the body, made anew whenever it is asked for.

    A view is two objects that the cycle collector visits, 300 bytes together.  Of the 100 000 items that a client batch
    may have by default, a few thousand are in hand at a time.
    """

    __slots__ = ("_raws",)

    def __init__(self, raws: list[msgspec.Raw]) -> None:
        self._raws = raws

    def __len__(self) -> int:
        return len(self._raws)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> ItemViews: ...
    def __getitem__(self, index: int | slice) -> memoryview | ItemViews:
        if isinstance(index, slice):
            return ItemViews(self._raws[index])
        return memoryview(self._raws[index])


def split_list(codec: Codec, body: Buffer, limit: float = math.inf) -> ItemViews:
    """The items of a JSON or MessagePack list, each a view of `body`.

    Raises:
        InvalidItem: the body is broken or not a list.
        TooManyItems: it has more than `limit`.
    """
    if _announces_more(codec, body, limit):
        raise TooManyItems(f"the list has more than {limit} items")
    try:
        items = _SPLIT[codec](body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise invalid_item(exc, body) from exc
    if len(items) > limit:
        raise TooManyItems(f"the list has more than {limit} items")
    return ItemViews(items)


def most_items(codec: Codec, body: Buffer) -> int:
    """A number of items that a well-formed list in `body` does not exceed; it takes a fraction of `split_list`."""
    if codec is Codec.MSGPACK:
        return _announced(body)
    return _text(body).count(b",") + 1


def join_outcomes(codec: Codec, entries: Sequence[tuple[Payload | None, dict[str, Any] | None]]) -> bytes:
    """``{"outcomes": [{"result": ...} | {"error": {...}}]}`` of payloads already in `codec`, and of problems."""
    outcomes = [
        {"result": msgspec.Raw(join_payload(payload))} if payload is not None else {"error": error}
        for payload, error in entries
    ]
    return _JOIN[codec]({"outcomes": outcomes})


def _announces_more(codec: Codec, body: Buffer, limit: float) -> bool:
    """Whether a well-formed list in `body` has more than `limit` items; for any other body the answer may be wrong."""
    if len(body) <= limit:  # an item is a byte at least
        return False
    if codec is Codec.MSGPACK:
        return _announced(body) > limit
    text = _text(body)
    return codec is Codec.JSON and text.count(b",") >= limit and _has_commas(text, limit)


def _text(body: Buffer) -> bytes | bytearray:
    return bytes(body) if isinstance(body, memoryview) else body


def _announced(body: Buffer) -> int:
    """The number of items that the head of a MessagePack array names; 0 if `body` is no array."""
    kind = body[0] if len(body) else 0
    if kind >> 4 == 0x9:
        return kind & 0xF
    size = {0xDC: 2, 0xDD: 4}.get(kind, 0)
    return int.from_bytes(body[1 : 1 + size], "big")


def _has_commas(text: bytes | bytearray, limit: float) -> bool:
    """Whether a JSON list has at least `limit` commas of its own, neither in strings nor in inner lists and objects."""
    start, end = _START.match(text), text.rfind(b"]")  # all brackets between the two belong to inner lists
    if start is None:
        return False
    if b"\\" in text:  # every quotation mark that is left after this begins or ends a string
        text = text.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    quoted, depth, commas = 0, 1, 0
    for at in range(start.end(), end, _PIECE_BYTES):
        piece = text[at : min(at + _PIECE_BYTES, end)].translate(_BRACES_TO_BRACKETS, _NO_STRUCTURE)
        strings = piece.split(b'"')
        for run in _RUNS.findall(_without_inner_lists(b"".join(strings[quoted::2]))):
            if run[0] == _COMMA:
                commas += len(run) if depth == 1 else 0
            else:
                depth += len(run) if run[0] == _OPENING else -len(run)
        quoted ^= (len(strings) - 1) & 1
        if commas >= limit or depth <= 0:
            break
    return commas >= limit


def _without_inner_lists(structure: bytes | bytearray) -> bytes | bytearray:
    """The brackets and commas of a part of a list, less most of what is deeper than this list.

    Each round removes the innermost lists, which is half of the rest or more.  Runs of brackets stay, and so do lists
    that reach beyond this part.  After four rounds too little is left for another one to pay.
    """
    for _ in range(4):
        structure = _FIRST_COMMAS.sub(b"[", structure).replace(b"[]", b"").replace(b",]", b"]")
    return structure
