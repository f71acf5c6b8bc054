"""Write the input of a job as bytes, when it is submitted.

Contract
--------
* What a consumer could not read is an error here, and says at which place of the input it stands.
* JSON has no NaN and no infinity.  An array as `.npy` may have them.
* numpy is imported only for those who hand in one of its arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from penstock.codec.annotations import is_array
from penstock.codec.custom import write_custom
from penstock.codec.formats import MEDIA_TYPES, Codec
from penstock.codec.media_types import content_codec
from penstock.core.payload import join_payload
from penstock.errors import ConfigError, InvalidItem

_JSON: Final = msgspec.json.Encoder(enc_hook=write_custom).encode
_MSGPACK: Final = msgspec.msgpack.Encoder(enc_hook=write_custom).encode
_READERS: Final[dict[Codec, Callable[[bytes], Any]]] = {
    Codec.JSON: msgspec.json.Decoder().decode,
    Codec.MSGPACK: msgspec.msgpack.Decoder().decode,
}


class InputBody(NamedTuple):
    """An input as a store keeps it."""

    body: bytes
    content_type: str


def encode_input(value: Any, content_type: str | None) -> InputBody:
    """The bytes of `value`.

    Args:
        value: what msgspec writes as JSON, numpy's numbers and arrays inside it included; bytes, which are taken as
            they are; or a numpy array, which is written as `.npy`.
        content_type: the media type of bytes, or the one to write as; None is ``application/json``, for bytes
            ``application/octet-stream``, for an array ``application/x-npy``.

    Raises:
        InvalidItem: `value` cannot be written, or is not of this media type; `path` says where.
        ConfigError: `value` is not written as this media type at all.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _as_given(bytes(value), content_type)
    codec = Codec.NPY if is_array(type(value)) else Codec.JSON
    if content_type is not None:
        named = content_codec(content_type.encode())
        codec = _writable(codec, named, content_type)
    return InputBody(_written(value, codec), content_type or MEDIA_TYPES[codec])


def _as_given(body: bytes, content_type: str | None) -> InputBody:
    if content_type is None:
        return InputBody(body, MEDIA_TYPES[Codec.RAW])
    codec = content_codec(content_type.encode())
    reader = _READERS.get(codec) if codec is not None else None
    if reader is not None:
        try:
            reader(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidItem(f"the input is not {content_type}: {error}") from None
    return InputBody(body, content_type)


def _writable(usual: Codec, named: Codec | None, content_type: str) -> Codec:
    """The codec to write an object in, where `usual` is what it is written in and `named` what is asked for."""
    if named in (Codec.JSON, Codec.MSGPACK) or named is usual:
        return Codec(named)
    raise ConfigError(
        f"an object is written as application/json or application/msgpack, and an array also as application/x-npy; "
        f"give bytes for {content_type!r}"
    )


def _written(value: Any, codec: Codec) -> bytes:
    if codec is Codec.NPY:
        from penstock.codec import numpy_

        try:
            return bytes(join_payload(numpy_.write_npy(value)))
        except TypeError as error:
            raise InvalidItem(f"the input cannot be submitted: {error}") from None
    encode = _JSON if codec is Codec.JSON else _MSGPACK
    try:
        written = encode(value)
    except Exception as error:  # serializers of pydantic's models are user code
        raise _explained(value, encode, error) from error
    # msgspec writes NaN and infinity as null.
    if codec is Codec.JSON and b"null" in written and (path := _place_of_nan(value)) is not None:
        raise InvalidItem("the input has a NaN or an infinity, which JSON cannot carry,", path=path)
    return written


def _explained(value: Any, encode: Callable[[Any], bytes], error: Exception) -> InvalidItem:
    """The error that says what in `value` cannot be written, and where."""
    if isinstance(error, RecursionError):
        return InvalidItem("the input is nested too deeply, or holds itself")
    reason = str(error).partition("; let the stage")[0]  # the way out of a stage is not a submitter's
    return InvalidItem(f"the input cannot be submitted: {reason},", path=_place_of_unwritable(value, encode))


def _place_of_unwritable(value: Any, encode: Callable[[Any], bytes]) -> str:
    """The innermost part of `value` that cannot be written."""

    def is_written(part: Any) -> bool:
        try:
            encode(part)
        except Exception:  # noqa: BLE001  # as above
            return False
        return True

    path = "$"
    while True:
        wrong = next(((step, part) for step, part in _parts(value) if not is_written(part)), None)
        if wrong is None:
            return path
        path, value = path + wrong[0], wrong[1]


def _place_of_nan(value: Any) -> str | None:
    """The first NaN or infinity in `value`, which can be written."""
    todo = [("$", msgspec.to_builtins(value, enc_hook=write_custom))]
    while todo:
        path, part = todo.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return path
        todo += [(path + step, inner) for step, inner in reversed(list(_parts(part)))]
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What is directly in `value`, and how its place is written."""
    if isinstance(value, dict):
        yield from ((f".{key}", inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        names = getattr(value, "__struct_fields__", None) or [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
        yield from ((f".{name}", getattr(value, name, None)) for name in names)
