"""Which types a request can never bring: of objects that neither JSON nor MessagePack has, and nobody here makes.

msgspec accepts every class in an annotation and leaves its objects to a hook.  Ours makes arrays, numpy's scalars and
pydantic's models; of anything else there is no object, so each request would be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect

from penstock.codec.annotations import is_array, is_numpy_scalar, is_pydantic
from penstock.codec.dataclass_init import fields_without_init

_VALUES: tuple[Any, ...] = (None, True, 0, 0.0, "", b"", [], {})
"""One of each kind that JSON or MessagePack has.  An abstract class as `Iterable` or `Hashable` takes some of them."""


def unsendable(type_: Any) -> Any:
    """A class in `type_` without whose objects there is no item of this type; None if a request can bring one.

    What need not be there does not count: a field with a default, and all members of a union but one.  An empty list
    of a class that nobody can send is no item worth sending, so the elements of a list, a set or a dict do count.
    """
    return next(_unsendable(inspect.type_info(type_), frozenset()), None)


def _unsendable(info: inspect.Type, seen: frozenset[Any]) -> Iterator[Any]:
    match info:
        case inspect.CustomType(cls):
            if not _is_made(cls):
                yield cls
        case inspect.UnionType(types):
            found = [next(_unsendable(member, seen), None) for member in types]
            if all(strange is not None for strange in found):
                yield found[0]
        case (
            inspect.StructType(cls=owner, fields=members)
            | inspect.DataclassType(cls=owner, fields=members)
            | inspect.TypedDictType(cls=owner, fields=members)
            | inspect.NamedTupleType(cls=owner, fields=members)
        ):
            if owner not in seen:  # a class may have fields of its own type
                own = fields_without_init(owner)
                needed = (field.type for field in members if field.required and field.name not in own)
                yield from _of_all(needed, seen | {owner})
        case inspect.DictType(key_type=key, value_type=value):
            yield from _of_all((key, value), seen)
        case inspect.TupleType(item_types=types):
            yield from _of_all(types, seen)
        case inspect.CollectionType(item_type=element):
            yield from _unsendable(element, seen)


def _of_all(infos: Iterable[inspect.Type], seen: frozenset[Any]) -> Iterator[Any]:
    for info in infos:
        yield from _unsendable(info, seen)


def _is_made(kind: Any) -> bool:
    """Whether a request can lead to an object of `kind`."""
    if is_array(kind):
        return not is_array(kind.__mro__[1])  # objects of a subclass of arrays are made in ways of its own
    if is_numpy_scalar(kind) or is_pydantic(kind):
        return True
    try:
        return any(isinstance(value, kind) for value in _VALUES)
    except TypeError:  # a Protocol that tells nothing at run time: msgspec could not tell either
        return False
