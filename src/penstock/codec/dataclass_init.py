"""Have msgspec make dataclasses by their own `__init__`: a decoded object is what its class would have made.

By itself msgspec sets the fields that came, in the order in which they came, and calls `__post_init__`.  A default
stays with the class, so that `vars` does not have it.  A field with ``init=False`` is demanded.  An `__init__` of the
user's is not called, and a converter of attrs is not either.

msgspec calls the `__post_init__` that a class had when its annotations were read.  While they are read here, that is a
function which takes the fields out of the object again, and calls `__init__` with them.  It costs half a microsecond.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gc
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import FunctionType, MemberDescriptorType
from typing import Any, Final, get_origin

import msgspec

from penstock.codec.annotations import is_model, is_pydantic, reached, type_hints, type_name
from penstock.codec.fitting import cannot_fit

_CACHE: Final = "__msgspec_cache__"
"""The attribute in which msgspec keeps what it has read of a class, or of a generic class with its arguments."""
_REMAKE: Final = "penstock_remake"
"""The name of the functions that msgspec is given, by which they are known again."""
_EMPTY: Final = inspect.Parameter.empty
_UNGIVEN: Final = object()
"""Stands in a field that did not come, and of which only `__init__` knows the default."""


def read_with_init(type_: Any) -> None:
    """Have msgspec read `type_`, so that from then on the dataclasses in it are made by their `__init__`.

    Only one thread may be here.  A class that cannot be made so is read as usual: see `not_as_made`.

    Raises:
        TypeError: msgspec can read nothing as this type.
    """
    classes = [cls for cls in dataclasses_in(type_) if not _why_no_init(cls)]
    unread = [get_origin(kind) or kind for kind in reached(type_, models=False) if _CACHE not in _attributes(kind)]
    with _shown([cls for cls in classes if any(cls is kind for kind in unread)]):
        try:
            decoder = msgspec.msgpack.Decoder(type_)
        except NotImplementedError as exc:
            raise TypeError(str(exc)) from exc
    if not _left_out(decoder, classes):
        return
    for kind in reached(type_):  # others have had it read
        if _CACHE in _attributes(kind) and not isinstance(kind, enum.EnumMeta):
            delattr(kind, _CACHE)
    with _shown(classes):
        msgspec.msgpack.Decoder(type_)


def not_as_made(type_: Any, *, by_pydantic: bool) -> str:
    """Why an object that is read as `type_` would not be what its class makes; "" where it would be.

    `by_pydantic` says that pydantic reads all of it; else msgspec does, and `read_with_init` has been called.
    """
    for kind in reached(type_, models=by_pydantic):
        cls = get_origin(kind) or kind
        if by_pydantic:
            reason = _why_not_by_pydantic(cls)
        elif is_model(cls):
            reason = not_as_made(cls, by_pydantic=True)
        else:
            reason = _why_no_init(cls) if _is_dataclass(cls) else _why_no_tuple(cls)
        if reason:
            return reason
    classes = [] if by_pydantic else [cls for cls in dataclasses_in(type_) if not _has_plain_init(cls)]
    for cls in _left_out(msgspec.msgpack.Decoder(type_), classes) if classes else ():
        return (
            f"msgspec read a Struct with `{type_name(cls)}` before Penstock did, and creates its objects without "
            "their defaults; create your own decoders in `setup`, not at import"
        )
    return ""


def fields_without_init(cls: Any) -> frozenset[str]:
    """The fields that only the class itself sets: those with ``init=False`` of a dataclass or a class of attrs."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else getattr(cls, "__attrs_attrs__", ())
    return frozenset(field.name for field in fields if not field.init)


def dataclasses_in(type_: Any) -> list[Any]:
    """The dataclasses that msgspec reads in `type_`, each once."""
    kinds = (get_origin(kind) or kind for kind in reached(type_, models=False))
    return list(dict.fromkeys(filter(_is_dataclass, kinds)))


def _attributes(kind: Any) -> Any:
    return getattr(kind, "__dict__", {})


def _is_dataclass(kind: Any) -> bool:
    """Whether msgspec reads `kind` as a dataclass, as it does classes of attrs."""
    if not isinstance(kind, type) or issubclass(kind, enum.Enum):
        return False
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


# -- `__init__` -------------------------------------------------------------------------------------------------------


def _arguments(cls: Any) -> dict[str, str]:
    """The arguments of `__init__` by the fields that they set."""
    if dataclasses.is_dataclass(cls):
        return {field.name: field.name for field in dataclasses.fields(cls) if field.init}
    return {field.name: field.alias for field in cls.__attrs_attrs__ if field.init}


def _default(cls: Any, field: str, argument: str) -> Any:
    """The default of an argument of `__init__`, or of the field that it sets; `_EMPTY` where neither has one."""
    parameter = inspect.signature(cls).parameters.get(argument)
    if parameter is not None and parameter.default is not _EMPTY:
        return parameter.default
    own = getattr(cls, "__dataclass_fields__", {})
    return own[field].default if field in own and own[field].default is not dataclasses.MISSING else _EMPTY


def _why_no_init(cls: Any) -> str:
    """Why a dataclass cannot be made by its `__init__`; "" where it can."""
    name = f"`{type_name(cls)}`"
    if type(cls).__call__ is not type.__call__ or cls.__new__ is not object.__new__:
        return f"{name} has its own `__new__` or metaclass, not only an `__init__`"
    if inspect.isabstract(cls):
        return f"{name} is abstract"
    arguments = _arguments(cls)
    for field in arguments:
        found = inspect.getattr_static(cls, field, None)
        if hasattr(type(found), "__set__") and not _is_slot(cls, field):
            return f"the field `{field}` of {name} is a `{type(found).__name__}`"
    for each in getattr(cls, "__attrs_attrs__", ()):
        if getattr(each.default, "takes_self", False):  # msgspec cannot describe it
            return f"the default of the field `{each.name}` of {name} needs the object"
    parameters = inspect.signature(cls).parameters.values()
    takes = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    wanted = [p for p in parameters if p.default is _EMPTY and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    own = {} if _has_usual_init(cls) or hasattr(cls, "__attrs_attrs__") else type_hints(cls.__init__)
    for field, argument in arguments.items():
        if argument not in takes and not takes_all:
            return f"the `__init__` of {name} does not take `{argument}`"
        declared = type_hints(cls).get(field, Any) if argument in own else Any
        if cannot_fit(declared, own.get(argument, Any)):
            return (
                f"the `__init__` of {name} takes `{argument}` as `{type_name(own[argument])}`, and the field is "
                f"`{type_name(declared)}`"
            )
    for p in wanted:
        if p.name not in arguments.values():
            return f"the `__init__` of {name} requires `{p.name}`, which is not a field"
    return ""


def _why_not_by_pydantic(cls: Any) -> str:
    """Why a dataclass is another one if pydantic makes it, which calls no `__init__`; "" where it is not."""
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or is_pydantic(cls):
        return ""
    if not _has_usual_init(cls):
        return f"`{type_name(cls)}` has its own `__init__` or `__new__`, which pydantic does not call"
    for field in dataclasses.fields(cls):
        if not field.init and field.default is not dataclasses.MISSING:
            return (
                f"pydantic sets the field `{field.name}` of `{type_name(cls)}`, although `init=False` reserves it "
                "for the class"
            )
    return ""


def _why_no_tuple(cls: Any) -> str:
    """Why a named tuple is another one if msgspec makes it, which calls no `__new__`; "" where it is not."""
    if not isinstance(cls, type) or not issubclass(cls, tuple) or not hasattr(cls, "_fields"):
        return ""
    below = itertools.takewhile(lambda base: "_fields" not in vars(base), cls.__mro__)
    if not any(name in vars(base) for base in below for name in ("__new__", "__init__")):
        return ""
    return f"`{type_name(cls)}` has its own `__init__` or `__new__`, which msgspec does not call"


def _has_usual_init(cls: Any) -> bool:
    """Whether `__init__` is the one that `dataclasses` has written, which is in no file, and alone makes objects."""
    code = getattr(cls.__init__, "__code__", None)
    return cls.__new__ is object.__new__ and code is not None and code.co_filename == "<string>"


def _has_plain_init(cls: Any) -> bool:
    """Whether an object is the same without its `__init__`, but for the order of the fields."""
    usual = dataclasses.is_dataclass(cls) and _has_usual_init(cls) and not fields_without_init(cls)
    return usual and all(_default(cls, field, argument) is _EMPTY for field, argument in _arguments(cls).items())


def _is_slot(cls: Any, field: str) -> bool:
    return isinstance(inspect.getattr_static(cls, field, None), MemberDescriptorType)


# -- what msgspec is shown --------------------------------------------------------------------------------------------


class _Shown:
    """A class attribute that has one value for who asks the class, as msgspec does, and another for its objects.

    While it is there other threads may make objects.
    """

    def __init__(self, cls: type, name: str, value: Any, own: dict[str, Any]) -> None:
        self._cls, self._name, self._value, self._own = cls, name, value, own

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self._value
        if self._name not in self._own:
            return getattr(super(self._cls, instance), self._name)
        own = self._own[self._name]
        return own.__get__(instance, owner) if hasattr(own, "__get__") else own


@contextlib.contextmanager
def _shown(classes: list[Any]) -> Iterator[None]:
    """While it lasts, a class of these that msgspec reads is one that is made by its `__init__`."""
    shown = [(cls, {"__post_init__": _remake(cls), **_fields(cls)}) for cls in classes]
    before = [{name: vars(cls)[name] for name in attributes if name in vars(cls)} for cls, attributes in shown]
    try:
        for (cls, attributes), own in zip(shown, before, strict=True):
            for name, value in attributes.items():
                setattr(cls, name, _Shown(cls, name, value, own))
        yield
    finally:
        for (cls, attributes), own in zip(shown, before, strict=True):
            for name in attributes:
                if name in own:
                    setattr(cls, name, own[name])
                else:
                    delattr(cls, name)


def _fields(cls: Any) -> dict[str, Any]:
    """The attribute with the fields as msgspec is to see them, where it would see others.

    A field that `__init__` does not take gets a default, so that it need not be sent.  The defaults of attrs are
    replaced: only `__init__` knows some of them, and none is to be converted twice.
    """
    optional = fields_without_init(cls)
    if dataclasses.is_dataclass(cls):
        if not optional:
            return {}
        shown = dict(cls.__dataclass_fields__)
    else:
        arguments = _arguments(cls)
        needed = [field for field in arguments if _default(cls, field, arguments[field]) is _EMPTY]
        optional |= arguments.keys() - set(needed)
        shown = _made_fields(needed)
    shown |= _made_fields([(field, object, dataclasses.field(default=_UNGIVEN)) for field in sorted(optional)])
    return {"__dataclass_fields__": shown}


def _made_fields(fields: list[Any]) -> dict[str, Any]:
    made: Any = dataclasses.make_dataclass("Shown", fields)
    return dict(made.__dataclass_fields__)


def _remake(cls: Any) -> Callable[[Any], None]:
    """A function that has `__init__` make an object in which msgspec has set the fields that came.

    It is written for the class, as `dataclasses` writes an `__init__`: any other way takes twice as long.
    """
    if is_pydantic(cls):
        from penstock.codec import pydantic_

        return pydantic_.remaking(cls)
    lines, given = [], []
    known = {"init": cls.__init__, "delete": object.__delattr__, "UNGIVEN": _UNGIVEN, "__name__": __name__}
    for n, (field, argument) in enumerate(_arguments(cls).items()):
        default = known[f"default{n}"] = _default(cls, field, argument)
        # Not as an attribute, where it has a default: the class has that too, and a function there is a method.
        read = f"self.{field}" if default is _EMPTY or _is_slot(cls, field) else f"d.get({field!r}, default{n})"
        lines.append(f"v{n} = {read}")
        if default is not _EMPTY and not dataclasses.is_dataclass(cls):
            lines.append(f"if v{n} is UNGIVEN: v{n} = default{n}")
        given.append(f"{argument}=v{n}")
    lines += [f"delete(self, {field!r})" for field in fields_without_init(cls) if _is_slot(cls, field)]
    if cls.__dictoffset__:
        lines = ["d = self.__dict__", *lines, "d.clear()"]
    lines.append(f"init(self, {', '.join(given)})")
    exec(f"def {_REMAKE}(self):\n    " + "\n    ".join(lines), known)  # noqa: S102  # names of fields are identifiers
    remake: Callable[[Any], None] = known[_REMAKE]
    return remake


def _left_out(decoder: Any, classes: list[Any]) -> list[Any]:
    """The `classes` that this decoder of msgspec makes without their `__init__`.

    Nothing else tells what msgspec keeps: it may have read a class before, for others.
    """
    found: list[Any] = []
    todo = [decoder]
    seen: dict[int, Any] = {}
    while todo:
        for part in gc.get_referents(todo.pop()):
            if type(part).__module__ != "msgspec._core" or isinstance(part, type) or id(part) in seen:
                continue
            seen[id(part)] = part
            todo.append(part)
            kept = gc.get_referents(part) if type(part).__name__ == "DataclassInfo" else []
            if not any(isinstance(each, FunctionType) and each.__name__ == _REMAKE for each in kept):
                found += [cls for cls in classes if any(cls is each for each in kept)]
    return found
