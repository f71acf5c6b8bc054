"""Write the input of a job as bytes, when it is submitted.

Contract
--------
* What a consumer could not read is an error here, and says at which place of the input it stands.
* JSON has no NaN and no infinity.  An array as `.npy` may have them.
* Two inputs of jobs that are of one media type and stand for the same value have the same canonical form: the order of
  the names in an object, of the elements of a set and of an array in memory, blanks and escapes make no difference.
  ``1`` and ``1.0`` are two values.  A text that is written without any freedom is its own canonical form.
* numpy is imported only for those who hand in one of its arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from penstock.codec.annotations import is_array
from penstock.codec.custom import write_sent
from penstock.codec.formats import MEDIA_TYPES, Codec
from penstock.codec.invalid import invalid_item
from penstock.codec.media_types import content_codec
from penstock.core.payload import join_payload
from penstock.errors import ConfigError, InvalidItem

_JSON: Final = msgspec.json.Encoder(enc_hook=write_sent).encode
_MSGPACK: Final = msgspec.msgpack.Encoder(enc_hook=write_sent).encode
_SORTED: Final[dict[Codec, Callable[[Any], bytes]]] = {
    Codec.JSON: msgspec.json.Encoder(enc_hook=write_sent, order="sorted").encode,
    Codec.MSGPACK: msgspec.msgpack.Encoder(enc_hook=write_sent, order="sorted").encode,
}
_READERS: Final[dict[Codec, Callable[[bytes], Any]]] = {
    Codec.JSON: msgspec.json.Decoder().decode,
    Codec.MSGPACK: msgspec.msgpack.Decoder().decode,
}
_NPY_HEADER_BYTES: Final = 256
"""Where the memory order of a `.npy` stands."""


class InputBody(NamedTuple):
    """An input as a store keeps it."""

    body: bytes
    content_type: str


class JobInput(NamedTuple):
    """The input of a job, and its canonical form."""

    body: bytes
    content_type: str
    canonical: bytes


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


def encode_job_input(value: Any, content_type: str | None) -> JobInput:
    """As `encode_input`; sets are written in an order that is the same in every process."""
    body, content_type = encode_input(value, content_type)
    codec = content_codec(content_type.encode())
    if codec is Codec.NPY:
        return JobInput(body, content_type, _in_rows(body))
    if codec not in _READERS:
        return JobInput(body, content_type, body)
    read, write = _READERS[codec], _SORTED[codec]
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = read(body)
    try:
        ordered = write(value)
    except Exception:  # noqa: BLE001  # a set whose elements have no order, or names that are no text
        return _in_own_order(value, body, content_type, codec)
    # A set is written as a list, so without one there is nothing to be put in order in the body.
    if ordered != body and (codec is not Codec.JSON or b"[" in body):
        plain = read(body)
        if write(plain) != ordered:
            with contextlib.suppress(RecursionError):
                body = (_JSON if codec is Codec.JSON else _MSGPACK)(_with_lists_of(read(ordered), plain))
    return JobInput(body, content_type, ordered)


def is_same_input(value: Any, body: bytes, kept: bytes, content_type: str) -> bool:
    """Whether two inputs of one media type stand for the same value.

    Args:
        value: the object that `body` was written from; where it has a set, the order in `kept` does not count.
        body: the one.
        kept: the other.
        content_type: their media type.
    """
    codec = content_codec(content_type.encode())
    if codec in _READERS:
        one, other = _in_own_order(value, body, content_type, codec), _in_own_order(value, kept, content_type, codec)
        return one.canonical == other.canonical
    return body == kept or (codec is Codec.NPY and _in_rows(body) == _in_rows(kept))


def _in_own_order(value: Any, body: bytes, content_type: str, codec: Codec) -> JobInput:
    """The input `body` where the lists that are sets in `value` are in the order of their texts."""
    write = _SORTED[codec]

    def arrange(part: Any, shape: Any) -> Any:
        shapes = dict(_parts(shape))
        if isinstance(part, dict):
            return {name: arrange(inner, shapes.get(f".{name}")) for name, inner in part.items()}
        if isinstance(part, list):
            arranged = [arrange(inner, shapes.get(f"[{index}]")) for index, inner in enumerate(part)]
            return sorted(arranged, key=canonical_of) if isinstance(shape, (set, frozenset)) else arranged
        return part

    def sort_names(part: Any) -> Any:
        if isinstance(part, dict):
            pairs = sorted([(write(name), canonical_of(inner)) for name, inner in part.items()])
            return msgspec.msgpack.Ext(0, write(pairs))
        return [sort_names(inner) for inner in part] if isinstance(part, list) else part

    def canonical_of(part: Any) -> bytes:
        try:
            return write(part)
        except TypeError:  # MessagePack has names that are no text
            return write(sort_names(part))

    try:
        arranged = arrange(_READERS[codec](body), value)
        text = (_JSON if codec is Codec.JSON else _MSGPACK)(arranged)
        return JobInput(text, content_type, canonical_of(arranged))
    except RecursionError:
        return JobInput(body, content_type, body)


def _with_lists_of(ordered: Any, plain: Any) -> Any:
    """The value `ordered` with its names in the order of `plain`, which differs only in the order of names and sets."""
    if isinstance(plain, dict) and isinstance(ordered, dict) and plain.keys() == ordered.keys():
        return {name: _with_lists_of(ordered[name], inner) for name, inner in plain.items()}
    if isinstance(plain, list) and isinstance(ordered, list):
        return [_with_lists_of(*pair) for pair in zip(ordered, plain, strict=True)]
    return ordered


def _in_rows(body: bytes) -> bytes:
    """A `.npy` as one of an array that lies row by row, where it is one that lies column by column."""
    if b"'fortran_order': True" not in body[:_NPY_HEADER_BYTES]:
        return body
    try:
        from penstock.codec import numpy_

        array = numpy_.read_npy(body, Any)
        return bytes(join_payload(numpy_.write_npy(array.copy(order="C"))))
    except Exception:  # noqa: BLE001  # no array, which its stage will tell, or numpy is not installed
        return body


def _as_given(body: bytes, content_type: str | None) -> InputBody:
    if content_type is None:
        return InputBody(body, MEDIA_TYPES[Codec.RAW])
    codec = content_codec(content_type.encode())
    reader = _READERS.get(codec) if codec is not None else None
    if reader is not None:
        try:
            reader(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidItem(f"the input is not valid {content_type}: {invalid_item(error, body)}") from None
    return InputBody(body, content_type)


def _writable(usual: Codec, named: Codec | None, content_type: str) -> Codec:
    """The codec to write an object in, where `usual` is what it is written in and `named` what is asked for."""
    if named in (Codec.JSON, Codec.MSGPACK) or named is usual:
        return Codec(named)
    raise ConfigError(
        "an object can be sent as application/json or application/msgpack, an array also as "
        f"application/x-npy; give bytes for {content_type!r}"
    )


def _written(value: Any, codec: Codec) -> bytes:
    if codec is Codec.NPY:
        from penstock.codec import numpy_

        try:
            return bytes(join_payload(numpy_.write_npy(value)))
        except TypeError as error:
            raise InvalidItem(f"cannot encode the input: {error}") from None
    encode = _JSON if codec is Codec.JSON else _MSGPACK
    try:
        written = encode(value)
    except Exception as error:  # serializers of pydantic's models are user code
        raise _explained(value, encode, error) from error
    # msgspec writes NaN and infinity as null.
    if codec is Codec.JSON and b"null" in written and (path := _place_of_nan(value)) is not None:
        raise InvalidItem("the input has a NaN or an infinity, which JSON does not support,", path=path)
    return written


def _explained(value: Any, encode: Callable[[Any], bytes], error: Exception) -> InvalidItem:
    """The error that says what in `value` cannot be written, and where."""
    if isinstance(error, RecursionError):
        return InvalidItem("the input is nested too deeply, or contains itself")
    reason = str(error).partition("; let the stage")[0]  # the way out of a stage is not a submitter's
    return InvalidItem(f"cannot encode the input: {reason},", path=_place_of_unwritable(value, encode))


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
    todo = [("$", msgspec.to_builtins(value, enc_hook=write_sent))]
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
