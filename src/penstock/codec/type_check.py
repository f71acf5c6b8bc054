"""Check objects, rather than bytes, against a declared type.

The fields of Structs and dataclasses are checked here: msgspec does not check them, and neither do their constructors.
numpy scalars count as numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
from enum import Enum
from typing import Any

import msgspec

from penstock.codec.annotations import alternatives, is_array, is_numpy_scalar, is_pydantic, type_name
from penstock.codec.custom import model_reader, read_custom, write_custom
from penstock.codec.invalid import UnreadablePart, explain
from penstock.codec.type_cache import fill_type_cache
from penstock.errors import ConfigError

_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


class _ArrayAsList(list[Any]):
    """The numbers of an array that may be declared as lists or as an array; `array` is the array itself."""

    __slots__ = ("array",)
    array: Any


class TypeCheck:
    """Checks objects against one declared type; `invalid.explain` reads what it raises.

    Raises:
        ConfigError: nothing can be checked against this type, for instance a union of two lists.
    """

    def __init__(self, type_: Any) -> None:
        self._type = type_
        self._models = model_reader(type_)
        if self._models is None:
            try:
                fill_type_cache(type_)
            except TypeError as exc:
                raise ConfigError(f"cannot check values against `{type_name(type_)}`: {exc}") from exc

    def item(self, value: Any) -> Any:
        """The item itself; where builtins stand for an object, that object, for instance a Struct for a dict.

        Raises UnreadablePart, msgspec.ValidationError or what the type's own checks raise.
        """
        if self._type is Any:
            return value
        if self._models is not None:
            return self._models.value(_numbers(value))
        checked = msgspec.convert(_builtins(value, arrays_as_lists=False), self._type, dec_hook=read_custom)
        try:
            # the caller's own objects, where they need no change
            return msgspec.convert(value, self._type, dec_hook=read_custom)
        except msgspec.ValidationError:
            return checked  # numpy scalars where numbers are declared

    def result(self, value: Any) -> None:
        """Raise like `item` unless `value` may be sent as this type.  An array also counts as a list here."""
        if self._type is Any:
            return
        if self._models is not None:
            self._models.value(_numbers(value))
        elif is_array(self._type):
            _strictly(self._type, value)
        else:
            msgspec.convert(_builtins(value, arrays_as_lists=True), self._type, dec_hook=_strictly)


def _strictly(type_: Any, value: Any) -> Any:
    """Like `read_custom`, but an array must already be an array, and have the declared dtype."""
    if not is_array(type_):
        return read_custom(type_, value)
    from penstock.codec import numpy_

    array = value.array if isinstance(value, _ArrayAsList) else value
    numpy_.check_dtype(array, type_)
    return array


def _numbers(value: Any) -> Any:
    """The value with numpy scalars as numbers, in lists and dicts as well; all other objects stay."""
    return _builtins(value, arrays_as_lists=True, open_objects=False)


def _builtins(value: Any, *, arrays_as_lists: bool, open_objects: bool = True) -> Any:
    """The value with its Structs and dataclasses opened and numpy scalars as numbers; other objects stay."""
    kind = type(value)
    if kind in _SCALARS:
        return value

    def again(inner: Any) -> Any:
        return _builtins(inner, arrays_as_lists=arrays_as_lists, open_objects=open_objects)

    if isinstance(value, (list, tuple)):
        return [again(inner) for inner in value]
    if isinstance(value, dict):
        return {again(key): again(inner) for key, inner in value.items()}
    if issubclass(kind, Enum):
        return value.value  # msgspec takes members whose values are texts, and none whose values are numbers
    if is_numpy_scalar(kind):
        return write_custom(value)
    if is_array(kind) and arrays_as_lists:
        return _array_as_list(value)
    if open_objects and isinstance(value, msgspec.Struct):
        return _open_struct(value, again)
    if open_objects and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: again(_field_of(value, f.name)) for f in dataclasses.fields(value)}
    return value


def _field_of(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError as exc:  # it was made without its `__init__`, or lost it since
        raise UnreadablePart(f"an object of `{type(value).__name__}` without `{name}`") from exc


def _array_as_list(array: Any) -> Any:
    numbers = write_custom(array)
    if not isinstance(numbers, list):
        return numbers  # an array without axes is a number
    listed = _ArrayAsList(numbers)
    listed.array = array
    return listed


def _open_struct(value: Any, again: Any) -> Any:
    config = value.__struct_config__
    fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    opened = {name: _field_of(value, attribute) for name, attribute in fields}
    if config.array_like:
        tag = [] if config.tag is None else [config.tag]
        return [*tag, *map(again, opened.values())]
    tagged = {} if config.tag is None else {config.tag_field: config.tag}
    return tagged | {name: again(inner) for name, inner in opened.items() if inner is not msgspec.UNSET}


class ResultWatch:
    """Looks at the first results of a stage, and says once where one is not of the declared type.

    It refuses nothing, and is `over` once it has said so or has seen `most` results, or where nothing can be checked.
    An object of a class without fields is of its type, whatever it holds.
    """

    def __init__(self, type_: Any, most: int) -> None:
        self._type = type_
        self._left = most
        self._classes = [kind for kind in alternatives(type_) if isinstance(kind, type) and not _has_fields(kind)]
        self._check: TypeCheck | None = None
        if type_ is not Any:
            with contextlib.suppress(ConfigError):
                self._check = TypeCheck(type_)

    @property
    def over(self) -> bool:
        """Whether it looks at nothing more."""
        return self._check is None

    def look(self, value: Any, *, counts: bool = True) -> str:
        """Why `value` is not of the type; "" where it is, or nobody can tell.  It is one of `most` if it `counts`."""
        words = self._misfit(value)
        self._left -= counts
        if words or self._left <= 0:
            self._check = None
        return words

    def _misfit(self, value: Any) -> str:
        if self._check is None or any(kind in type(value).__mro__ for kind in self._classes):
            return ""
        try:
            self._check.result(value)
        except (msgspec.ValidationError, ValueError) as error:
            reason, path = explain(error)
            where = f" at `{path}`" if path else ""
            return f"a result is not `{type_name(self._type)}`: {reason}{where}"
        except BaseException:  # noqa: BLE001  # of a type's own checks: there is nothing to say of the value
            return ""
        return ""


def _has_fields(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_pydantic(kind)


def misfit(type_: Any, value: Any) -> str:
    """Why `value`, which no caller has sent, cannot be an item of `type_`; "" where it can, or nobody can tell.

    An object of the class that is declared always can, whatever its fields hold, and so can any array for an array.
    """
    for kind in alternatives(type_):
        if is_array(kind) and is_array(type(value)):
            return ""
        if kind in type(value).__mro__:  # `isinstance` would ask the class, which may refuse
            return ""
    try:
        TypeCheck(type_).item(value)
    except ConfigError:
        return ""
    except (msgspec.ValidationError, ValueError) as error:
        reason, path = explain(error)
        return f"{reason} at `{path}`" if path else reason
    except Exception:  # noqa: BLE001  # of a type's own checks: there is nothing to say of the value
        return ""
    return ""
