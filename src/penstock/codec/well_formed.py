"""Tell whether a payload is in the format that it should be in, without making an object of it.

What a worker from outside answers is handed to clients as it is, and one answer of a client batch stands among others.
So each must be whole by itself.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.codec.formats import Codec

NPY_MAGIC: Final = b"\x93NUMPY"
JSON: Final = int(Codec.JSON)  # asked for each answer: a constant costs nothing once compiled, a member is looked up
RAW: Final = int(Codec.RAW)
NPY: Final = int(Codec.NPY)
_json = msgspec.json.Decoder(msgspec.Raw).decode
_msgpack = msgspec.msgpack.Decoder(msgspec.Raw).decode


def well_formed(codec: int, payload: Any) -> bool:
    """Whether `payload` is one value in the format `codec`; plain bytes always are, and of NPY the beginning tells.

    JSON that is not UTF-8 is none: no reader of the answer that it stands in could read what stands beside it.
    """
    if codec == RAW:
        return True
    if codec == NPY:
        return bytes(payload[: len(NPY_MAGIC)]) == NPY_MAGIC
    try:
        if codec == JSON:
            _json(str(payload, "utf-8"))  # as bytes, the texts in it are not looked into
        else:
            _msgpack(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
