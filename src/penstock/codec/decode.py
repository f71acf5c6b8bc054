"""Bytes to objects: one item of a declared type, in any format a payload can be in.

* A payload becomes a value of the declared type, or an `InvalidItem` that says what is wrong and where.
* A fault of a type's own checks is raised as it is: no caller is told of it.
* Memory is allocated for the bytes that are there.  A length that a payload only claims allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.codec import pickle_
from penstock.codec.annotations import array_kind, bytes_kind, enums_with_missing, type_name
from penstock.codec.custom import model_reader, read_custom
from penstock.codec.dataclass_init import not_as_made
from penstock.codec.formats import Codec
from penstock.codec.invalid import UnreadablePart, fault_of_enum, fault_of_pickle, invalid_item, is_callers_fault
from penstock.codec.type_cache import fill_type_cache
from penstock.codec.type_check import TypeCheck
from penstock.core.payload import Buffer


class ItemDecoder:
    """Decodes items of one type.  The decoders are built once, here, so that an item costs one call.

    `item_type` is what `signature` found.  `typing.Any` takes all that a format can express: of RAW bytes, of NPY an
    array.  With `validate`, items from our own processes (PICKLE) are checked too; else they pass as they are.

    Raises:
        ConfigError: with `validate`, nothing can be checked against `item_type`.
    """

    def __init__(self, item_type: Any, *, validate: bool = False) -> None:
        self._type = item_type
        self._bytes_kind = bytes_kind(item_type)
        self._array_kind = array_kind(item_type)
        self._enums = enums_with_missing(item_type)
        limited = self._bytes_kind not in (None, item_type)  # the type may limit the length
        self._check = TypeCheck(item_type) if validate or limited else None
        json, msgpack = _typed_readers(item_type)
        self._readers: dict[int, Callable[[Buffer], Any]] = {
            Codec.PICKLE: pickle_.loads,
            Codec.JSON: json,
            Codec.MSGPACK: msgpack,
            Codec.RAW: bytes if item_type is Any else self._raw,
            Codec.NPY: _any_array if item_type is Any else self._npy,
        }
        if validate:
            self._readers[Codec.PICKLE] = self._pickled

    def decode(self, codec: int, payload: Buffer) -> Any:
        """The item in `payload`.

        A `memoryview` item, a RAW one, and arrays in NPY or PICKLE are views of the payload where they can be.

        Raises:
            InvalidItem: the payload is not an item of this type, or the type's own checks (`__post_init__`,
                validators) say so; its `__cause__` is what was raised.
            Exception: whatever else these checks raise, which says nothing of the item.
        """
        reader = self._readers[codec]
        try:
            return reader(payload)
        except Exception as exc:  # a type's own checks are user code, and parsers raise errors of many types
            if not is_callers_fault(exc):
                raise
            if self._enums and (fault := fault_of_enum(exc, self._enums)) is not None:
                raise fault from None
            found = invalid_item(exc, payload)
            if found is exc:
                raise
            found.__cause__ = exc  # once compiled, `from` does not set it
            try:
                raise found from exc
            finally:
                del found  # it leads to this frame: only the cycle collector would free both, and the payload

    def _pickled(self, payload: Buffer) -> Any:
        try:
            value = pickle_.loads(payload)
        except ValueError as exc:
            fault = fault_of_pickle(exc)
            if fault is None:
                raise
            raise fault from None
        return self._checked(value)

    def _raw(self, payload: Buffer) -> Any:
        if self._bytes_kind is None:
            raise UnreadablePart(f"expected `{type_name(self._type)}`, got plain bytes")
        return self._checked(self._bytes_kind(payload))

    def _checked(self, value: Any) -> Any:
        return value if self._check is None else self._check.item(value)

    def _npy(self, payload: Buffer) -> Any:
        if self._array_kind is None:
            raise UnreadablePart(f"expected `{type_name(self._type)}`, got an array")
        from penstock.codec import numpy_

        return numpy_.read_npy(payload, self._array_kind)


def _any_array(payload: Buffer) -> Any:
    from penstock.codec import numpy_

    return numpy_.read_npy(payload, Any)


def _typed_readers(type_: Any) -> tuple[Callable[[Buffer], Any], Callable[[Buffer], Any]]:
    """Readers of JSON and of MessagePack."""
    models = model_reader(type_)
    if models is not None and not not_as_made(type_, by_pydantic=True):
        builtins = msgspec.msgpack.Decoder()
        return models.json, lambda payload: models.value(builtins.decode(payload))
    # A later stage may have any type.  A first stage with a type that cannot be read is refused by `schema.accepts`.
    try:
        fill_type_cache(type_)
        why = not_as_made(type_, by_pydantic=False)
        if not why:
            return (
                msgspec.json.Decoder(type_, dec_hook=read_custom).decode,
                msgspec.msgpack.Decoder(type_, dec_hook=read_custom).decode,
            )
    except TypeError as exc:
        why = str(exc)
    reason = f"`{type_name(type_)}` cannot be read from JSON or MessagePack: {why}"

    def refuse(_: Buffer) -> Any:
        raise UnreadablePart(reason)

    return refuse, refuse
