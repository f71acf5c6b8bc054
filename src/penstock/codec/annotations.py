"""Read annotations: which type one item has on the wire, and what kind of type it is.

numpy and pydantic are optional, so nothing here imports them.  An annotation can only name their classes if other code
has imported them already, and then `sys.modules` has them.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from penstock.errors import ConfigError, InvalidItem

_LISTS: frozenset[Any] = frozenset(
    {list, tuple, Sequence, MutableSequence, Collection, Iterable, Iterator, typing.List, typing.Tuple}  # noqa: UP006
)
# Types that certainly are no batch: a batched `predict` that is annotated with one is refused.
_SINGLES = (bool, int, float, complex, str, bytes, bytearray, dict, set, frozenset, types.NoneType)
# One of these is an attribute of each dataclass, class of attrs, Struct, TypedDict, NamedTuple and model of pydantic.
_HAVE_FIELDS = (
    "__dataclass_fields__",
    "__attrs_attrs__",
    "__struct_fields__",
    "__total__",
    "_fields",
    "__pydantic_validator__",
)
_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class Signature:
    """The types at the two ends of a stage, for one item each, batched or not."""

    item: Any
    """The wire type of one item; `typing.Any` where it is not annotated."""
    result: Any
    """The type of one item's result; `typing.Any` where it is not annotated."""


def signature(target: type | Callable[..., Any], *, batched: bool) -> Signature:
    """The item type and the result type of a stage, by the first and the last of its methods.

    `target` is a class with `predict` and perhaps `preprocess` and `postprocess`, or a plain function.  With `batched`,
    `predict` takes a list, and returns one or an array whose first axis is the batch; the type of their elements is
    used.  The other two methods always take one item.

    Raises:
        ConfigError: there is no `predict`, it takes no item, an annotation cannot be resolved, or a batched
            `predict` is annotated with something that is not a batch.
    """
    owner = getattr(target, "__name__", type(target).__name__)
    first: Callable[..., Any] | None = None
    last: Callable[..., Any] | None = None
    predict: Callable[..., Any] | None = target
    name = owner
    if isinstance(target, type):
        first, predict, last = (_method(target, m) for m in ("preprocess", "predict", "postprocess"))
        name = f"{owner}.predict"
    if predict is None:
        raise ConfigError(f"{owner} has no method `predict`")
    if first is not None:
        item = _parameter_type(first, f"{owner}.preprocess")
    else:
        item = _parameter_type(predict, name)
        item = _element(_no_array(item, name), f"{name} takes a batch") if batched else item
    if last is not None:
        result = _without_invalid(_return_type(last, f"{owner}.postprocess"))
    else:
        result = _without_invalid(_return_type(predict, name))
        result = _without_invalid(_element(result, f"{name} returns a batch")) if batched else result
    return Signature(item, result)


def takes_file(type_: Any) -> bool:
    """Whether an item of this type is a file that was fetched for it: no request can bring one, but a job can."""
    return type_ is Path


def alternatives(type_: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone; `Annotated`, `NewType` and type aliases are looked through."""
    type_ = _bare(type_)
    if get_origin(type_) in (Union, types.UnionType):
        return tuple(alternative for member in get_args(type_) for alternative in alternatives(member))
    return (type_,)


def mentioned(type_: Any) -> Iterator[Any]:
    """Every type the annotation names, however deep; fields of classes are not followed."""
    type_ = _bare(type_)
    yield type_
    for inner in get_args(type_):
        yield from mentioned(inner)


def reached(type_: Any, *, models: bool = True) -> Iterator[Any]:
    """Every type that an item of this type may have in it, each once: those of the fields of classes, too.

    Without `models` those of the fields of pydantic's models are left out.
    """
    todo: list[Any] = [type_]
    seen: dict[int, Any] = {}  # by their ids, which are theirs while they are kept: not every type has a hash
    while todo:
        for kind in mentioned(todo.pop()):
            if id(kind) not in seen:
                seen[id(kind)] = kind
                yield kind
                if models or not is_model(kind):
                    todo += _fields_of(get_origin(kind) or kind)


def enums_with_missing(type_: Any) -> list[type[enum.Enum]]:
    """The enums in `type_` that have a `_missing_` of their own."""
    enums = (kind for kind in reached(type_) if isinstance(kind, type) and issubclass(kind, enum.Enum))
    return [kind for kind in enums if any("_missing_" in vars(b) for b in kind.__mro__ if b.__module__ != "enum")]


def bytes_kind(type_: Any) -> type | None:
    """`bytes`, `bytearray` or `memoryview`, whichever the annotation allows first, or None."""
    return next((kind for kind in alternatives(type_) if kind in _BYTES), None)


def array_kind(type_: Any) -> Any:
    """The alternative of an annotation that is a numpy array, or None."""
    return next((kind for kind in alternatives(type_) if is_array(kind)), None)


def expand_alias(type_: Any) -> Any:
    """The type that an alias stands for, with its arguments in place; any other type as it is.

    From Python 3.12 on there is `type X[T] = ...`, and the `NDArray` of numpy 2.5 is such an alias.
    """
    while type(alias := get_origin(type_) or type_).__name__ == "TypeAliasType":
        parameters, arguments = alias.__type_params__, get_args(type_)
        if arguments and len(arguments) != len(parameters):
            return type_  # a `*Ts`, which takes any number of them
        places = getattr(alias.__value__, "__parameters__", ())
        given = dict(zip(parameters, arguments, strict=False))
        type_ = alias.__value__[tuple(given[place] for place in places)] if places and given else alias.__value__
    return type_


def is_array(type_: Any) -> bool:
    """Whether the type is a numpy array, plain or with its dtype."""
    numpy = sys.modules.get("numpy")
    if not isinstance(type_, type):
        type_ = expand_alias(type_)
    origin = get_origin(type_) or type_
    return numpy is not None and isinstance(origin, type) and issubclass(origin, numpy.ndarray)


def is_numpy_scalar(type_: Any) -> bool:
    """Whether the type is one of numpy's scalars, as `numpy.float32`."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(type_, type) and issubclass(type_, numpy.generic)


def is_pydantic(type_: Any) -> bool:
    """Whether the type is a pydantic model or a pydantic dataclass."""
    return "pydantic" in sys.modules and isinstance(type_, type) and hasattr(type_, "__pydantic_validator__")


def type_hints(annotated: Any) -> dict[str, Any]:
    """The annotations of a class or a function; none where they cannot be resolved, which others tell."""
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except Exception:  # noqa: BLE001  # the user's expressions
        return {}


def is_model(type_: Any) -> bool:
    """Whether the type is a pydantic model, and no pydantic dataclass: only pydantic reads its fields."""
    return is_pydantic(type_) and not hasattr(type_, "__dataclass_fields__")


def type_name(type_: Any) -> str:
    """The type as a user would write it, short enough for a message: ``list[float]``, ``ndarray[float32]``."""
    if type_ is Any:
        return "Any"
    if type_ is None or type_ is types.NoneType:
        return "None"
    members = alternatives(type_)
    if len(members) > 1:
        return " | ".join(map(type_name, members))
    type_ = members[0]
    if type_ is Ellipsis:
        return "..."
    if isinstance(type_, str):
        return repr(type_)
    origin, args = get_origin(type_), get_args(type_)
    if is_array(type_):
        dtype = next((d for a in args for d in get_args(a) if is_numpy_scalar(d)), None)
        name = (origin or type_).__name__
        return f"{name}[{dtype.__name__}]" if dtype else name
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if args:
        return f"{type_name(origin)}[{', '.join(map(type_name, args))}]"
    return str(getattr(type_, "__qualname__", type_)).rpartition("<locals>.")[2]


def _fields_of(kind: Any) -> list[Any]:
    """The types of the fields of `kind`, if it is a class that is read by its fields."""
    if not isinstance(kind, type) or not any(hasattr(kind, mark) for mark in _HAVE_FIELDS):
        return []
    return list(type_hints(kind).values())


def _bare(type_: Any) -> Any:
    while True:
        if get_origin(type_) is Annotated:
            type_ = get_args(type_)[0]
        elif isinstance(type_, typing.NewType):
            type_ = type_.__supertype__
        elif (expanded := expand_alias(type_)) is not type_:
            type_ = expanded
        else:
            return type_


def _method(target: Any, name: str) -> Callable[..., Any] | None:
    """The method as it is called on an instance, without `self`; None where the class has no such method."""
    found = inspect.getattr_static(target, name, None)
    if found is None:
        return None
    if isinstance(found, (staticmethod, classmethod)):
        return typing.cast("Callable[..., Any]", getattr(target, name))
    return types.MethodType(found, target) if callable(found) else None


def _parameter_type(function: Callable[..., Any], name: str) -> Any:
    try:
        declared = inspect.signature(function).parameters.values()
    except ValueError:  # a function written in C that does not tell
        return Any
    parameters = [p for p in declared if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if not parameters:
        raise ConfigError(f"{name} needs a parameter for the item")
    return _resolve(function, parameters[0].name, name)


def _return_type(function: Callable[..., Any], name: str) -> Any:
    return _resolve(function, "return", name)


def _resolve(function: Callable[..., Any], key: str, name: str) -> Any:
    """One annotation of `function`, resolved alone: those of its other parameters may be unknown here."""
    inner: Any = inspect.unwrap(getattr(function, "__func__", function))
    annotation = "?"
    try:
        annotations = getattr(inner, "__annotations__", {})
        if key not in annotations:
            return Any
        annotation = annotations[key]
        holder: Any = types.SimpleNamespace(__annotations__={key: annotation})
        return typing.get_type_hints(holder, getattr(inner, "__globals__", {}), include_extras=True)[key]
    except Exception as exc:  # evaluating an annotation runs the user's expression
        raise ConfigError(
            f"{name}: cannot resolve the annotation {annotation!r} of {key!r}: {exc}; "
            "it must be importable from the module's top level, not only while type checking"
        ) from exc


def _no_array(type_: Any, name: str) -> Any:
    """`type_`, which a batched `predict` takes; ConfigError where it is an array, for a worker calls it with a list."""
    array = array_kind(type_)
    if array is not None:
        raise ConfigError(
            f"{name} receives a batch as a list: annotate it as list[np.ndarray], got `{type_name(array)}`; use "
            "np.stack to make one array of the list"
        )
    return type_


def _element(type_: Any, where: str) -> Any:
    """The type of one item of a batch of `type_`."""
    elements = [_element_of_one(kind, where) for kind in alternatives(type_)]
    return Union[tuple(elements)]  # noqa: UP007  # built from values


def _element_of_one(type_: Any, where: str) -> Any:
    origin, args = get_origin(type_) or type_, get_args(type_)
    if is_array(type_):
        return type_  # its first axis is the batch: each item is an array too
    if origin in _LISTS:
        if origin is tuple and args and not (len(args) == 2 and args[1] is Ellipsis):
            raise ConfigError(f"{where}, which `{type_name(type_)}` cannot be: write tuple[T, ...]")
        return args[0] if args else Any
    if isinstance(origin, type) and issubclass(origin, _SINGLES):
        raise ConfigError(f"{where}: annotate it as list[T] where T is one item, got `{type_name(type_)}`")
    return Any  # some framework's tensor, or no annotation: nothing is known about its items


def _without_invalid(type_: Any) -> Any:
    """The type without `InvalidItem`, which a stage may return in a result's place."""
    if get_origin(type_) not in (Union, types.UnionType):
        return type_
    kept = [t for t in get_args(type_) if not (isinstance(t, type) and issubclass(t, InvalidItem))]
    return Union[tuple(kept)] if kept else Any  # noqa: UP007  # built from values
