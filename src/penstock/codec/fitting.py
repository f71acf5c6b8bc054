"""Tell of two types that no value of the one is a value of the other, as far as that is certain.

Nothing is said of a class that either side may have subclassed, or that may only look like another one.
"""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any, get_args, get_origin

import msgspec

from penstock.codec.annotations import alternatives, is_pydantic

_PLAIN = (str, bytes, int, float, bool, list, dict, NoneType)
_COUNT_AS = {(int, float), (bool, int), (bool, float)}
"""A value of the first passes for the second."""


def cannot_fit(given: Any, wanted: Any) -> bool:
    """Whether no value of the type `given` passes for one of the type `wanted`; False where that is not certain."""
    return all(_differ(one, other) for one in alternatives(given) for other in alternatives(wanted))


def _differ(given: Any, wanted: Any) -> bool:
    one, other = get_origin(given) or given, get_origin(wanted) or wanted
    if not (_is_plain(one) and _is_plain(other)):
        return (_is_plain(one) and _is_record(other)) or (_is_record(one) and _is_plain(other))
    if one is not other:
        return (one, other) not in _COUNT_AS
    inner, wanted_inner = get_args(given), get_args(wanted)
    return one is list and bool(inner and wanted_inner) and cannot_fit(inner[0], wanted_inner[0])


def _is_plain(kind: Any) -> bool:
    return any(kind is plain for plain in _PLAIN)


def _is_record(kind: Any) -> bool:
    """Whether `kind` is a class of objects with fields, whose objects are nothing plain."""
    if not isinstance(kind, type) or issubclass(kind, _PLAIN):
        return False
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_pydantic(kind)
