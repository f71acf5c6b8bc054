"""Objects to bytes: one result, in the format its caller asked for.

A result that cannot be written in that format fails with a reason, and is written in no other form.  JSON has no NaN
and no infinity: a result with one of them fails.  With `allow_nan` they are written as null instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

import msgspec

from penstock.codec import pickle_
from penstock.codec.annotations import is_array, type_name
from penstock.codec.custom import write_custom
from penstock.codec.formats import Codec
from penstock.codec.invalid import explain
from penstock.codec.type_check import TypeCheck
from penstock.core.payload import Buffer
from penstock.errors import PenstockError

_NAMED_TYPE: Final = re.compile(r"[`']([^`']+)[`']")
"""The type that an error names, as in "cannot pickle 'generator' object"."""
_INDEX: Final = re.compile(r"\[\d+\]")


class EncodeFailed(PenstockError):
    """The result cannot be written in the format that was asked for.

    `reason` says why without naming the format, or is "".  `place` is what results that fail in the same way have in
    common: the type of the object that cannot be written, or where in the result it is, without numbers.
    """

    def __init__(self, message: str = "", *, reason: str = "", place: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.place = place


class ResultMismatch(EncodeFailed):
    """The result is not of its declared type.

    `path` says where in the result, as ``$.x[3]``, or is "".
    """

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(message, place=_without_numbers(path))
        self.path = path


class ItemEncoder:
    """Encodes results of one stage.

    With `validate`, each result is first checked against `result_type`; what is sent stays the same.  With `allow_nan`,
    NaN and infinity are written as null in JSON.  `subject` is what is written, in the words of an error.

    Raises:
        ConfigError: with `validate`, nothing can be checked against `result_type`.
    """

    def __init__(
        self, result_type: Any, *, validate: bool = False, allow_nan: bool = False, subject: str = "the result"
    ) -> None:
        self._type = result_type
        self._subject = subject
        self._check = TypeCheck(result_type) if validate else None
        self._allow_nan = allow_nan
        self._json_text = msgspec.json.Encoder(enc_hook=write_custom).encode
        self._writers: dict[int, Callable[[Any], bytes | list[Buffer]]] = {
            Codec.PICKLE: pickle_.dumps,
            Codec.JSON: self._json,
            Codec.MSGPACK: msgspec.msgpack.Encoder(enc_hook=write_custom).encode,
            Codec.RAW: _raw,
            Codec.NPY: _npy,
        }

    def encode(self, codec: int, value: Any) -> bytes | list[Buffer]:
        """The payload of `value`: one piece, or segments to be sent in order as if joined.

        Segments of NPY and PICKLE share memory with the arrays in `value`.

        Raises:
            ResultMismatch: with `validate`, `value` is not of the declared type.
            EncodeFailed: `value` cannot be written in this format.
        """
        writer = self._writers[codec]
        if self._check is not None:
            self._refuse_mismatch(self._check, value)
        try:
            return writer(value)
        except EncodeFailed:
            raise
        except Exception as exc:  # pickling and serializers run user code
            reason = "it is nested too deeply, or contains itself" if isinstance(exc, RecursionError) else str(exc)
            # Once compiled, `from` sets no cause.  The text has the reason, so nobody looks for the cause.
            message = f"{self._subject} cannot be written as {Codec(codec).name}: {reason}"
            named = _NAMED_TYPE.search(reason)
            raise EncodeFailed(message, reason=reason, place="" if named is None else named[1]) from exc

    def _refuse_mismatch(self, check: TypeCheck, value: Any) -> None:
        try:
            check.result(value)
        except Exception as exc:  # a type's own checks are user code
            reason, path = explain(exc)
            where = f" at `{path}`" if path else ""
            raise ResultMismatch(f"the result is not `{type_name(self._type)}`: {reason}{where}", path=path) from exc

    def _json(self, value: Any) -> bytes:
        text = self._json_text(value)
        # msgspec writes NaN as null and raises no error.  Most text has no null in it and needs no further check.
        if b"null" in text and not self._allow_nan:
            _refuse_nan(value, self._subject)
        return text


def _refuse_nan(value: Any, subject: str) -> None:
    """Raise EncodeFailed if a null that was written for `value` stands for NaN or infinity."""
    path = _path_of_nan(msgspec.to_builtins(value, enc_hook=_write_unless_finite), "$")
    if path is not None:
        raise EncodeFailed(
            f"{subject} has NaN or infinity at `{path}`, which JSON does not support; set nan_as_null=True to write "
            "null",
            place=_without_numbers(path),
        )


def _without_numbers(path: str) -> str:
    """The path of each of many items, as ``$.x[].y``."""
    return _INDEX.sub("[]", path)


def _write_unless_finite(value: Any) -> Any:
    """Like `write_custom`, but leaves out objects that cannot contain a NaN."""
    if isinstance(value, msgspec.Raw):
        return None
    if is_array(type(value)):
        from penstock.codec import numpy_

        if numpy_.is_finite(value):
            return None
    return write_custom(value)


def _path_of_nan(value: Any, path: str) -> str | None:
    if isinstance(value, float):
        return None if isfinite(value) else path
    if isinstance(value, dict):
        found = (_path_of_nan(inner, f"{path}.{key}") for key, inner in value.items())
        return next(filter(None, found), None)
    if isinstance(value, (list, tuple)) and not _all_finite(value):
        found = (_path_of_nan(inner, f"{path}[{index}]") for index, inner in enumerate(value))
        return next(filter(None, found), None)
    return None


def _all_finite(values: Any) -> bool:
    """Whether all are finite numbers; quick for a list of floats, and False where it cannot tell."""
    try:
        return all(map(isfinite, values))
    except (TypeError, OverflowError):
        return False


def _raw(value: Any) -> bytes | list[Buffer]:
    if isinstance(value, (bytes, bytearray)):
        return [value] if isinstance(value, bytearray) else value
    if isinstance(value, memoryview):
        return [value.cast("B") if value.c_contiguous and value.nbytes else value.tobytes()]
    raise TypeError(f"expected bytes, got `{type(value).__name__}`")


def _npy(value: Any) -> list[Buffer]:
    from penstock.codec import numpy_  # the format needs numpy here, whatever the type of the result

    return numpy_.write_npy(value)
