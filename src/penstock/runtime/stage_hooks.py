"""Find what the author of a stage meant as a hook, and called by another name.  Penstock would never call it.

Contract
--------
* Only names count that a subclass of `Stage` has itself, and that the class does not use.  It uses what its methods,
  its metaclass, its values and the functions of the module that its methods call mention; also behind decorators.
* They begin with a small letter: others are classes, constants, and what is not public.
* A name is no slip where the class has the hook itself.
* A method is meant as a method, and a value as a value: `examples` is never a method.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from penstock.config import Batch
from penstock.errors import ConfigError
from penstock.spelling import is_slip, nearest
from penstock.worker.stage import METHODS, Stage

IDLE_METHODS = ("health",)
"""Further methods that a worker calls, where they take nothing: much else is called so."""
VALUES = ("examples", "batch")
"""What is read of a class."""
SAME_AS = {
    "initialize": "setup",
    "initialise": "setup",
    "encode_response": "postprocess",
    "decode_request": "preprocess",
}
"""Hooks of other model servers, and those of ours that do the same."""
ENDS = ("cleanup", "clean_up", "shutdown", "finalize")
"""Other words for `teardown`, which may also be methods that only the author's own code calls."""
WARM_UPS = ("warmup", "warm_up")
BATCH_SIZES = ("batch_size", "max_batch_size")
FORMERLY_PREDICT = ("forward", "inference", "infer", "execute", "__call__")
"""What the method that answers is called elsewhere."""


def check_hooks(label: str, target: Any, *, batched: bool) -> None:
    """ConfigError if the class `target` has what can only be meant as a hook, under a name that is none.

    `batched` says whether the stage has a batch policy.
    """
    for name, value in _unused(target):
        words = _words(name, value, target, batched=batched)
        if words:
            raise ConfigError(f"stage {label!r}: {words}")


def doubtful_hooks(target: Any) -> list[str]:
    """A sentence for each name of the class `target` that is near to the name of a hook it lacks."""
    found = []
    for name, value in _unused(target):
        hooks = METHODS if callable(value) else VALUES
        hook = "teardown" if name in ENDS and callable(value) else nearest(name, hooks)
        if hook is not None and not _has(target, hook):
            found.append(f"{name!r} is not used: if it is meant to be {hook!r}, rename it")
    return found


def predict_by_another_name(target: type) -> str:
    """The end of a sentence about a class without `predict`: which of its methods may be meant, or ""."""
    for name, value in _own(target):
        if callable(value) and (name in FORMERLY_PREDICT or is_slip(name, "predict")):
            return f": rename its {name!r}"
    return ""


def _words(name: str, value: Any, target: type, *, batched: bool) -> str:
    """Why `name` is wrong, and what to write; "" where it may be what it should be."""
    if callable(value):
        if name in WARM_UPS:
            return f"its {name!r} is never called: set `examples = [...]`, which every worker runs before it is ready"
        hook = SAME_AS.get(name) or next((hook for hook in METHODS if is_slip(name, hook)), None)
        if hook is not None and not _has(target, hook):
            return f"its {name!r} is never called: rename it to {hook!r}"
        return ""
    if name in BATCH_SIZES and isinstance(value, int) and not batched:
        return f"its {name!r} is never read: write `batch = penstock.Batch(max_size={value})`"
    if is_slip(name, "examples") and not _has(target, "examples"):
        return f"its {name!r} is never read: write `examples = [...]`, a list of items"
    if isinstance(value, Batch) and is_slip(name, "batch") and not batched:
        return f"its {name!r} is never read: rename it to 'batch'"
    return ""


def _unused(target: Any) -> Iterator[tuple[str, Any]]:
    """What the class `target` has under public names, and does not use itself."""
    if not inspect.isclass(target):
        return
    mentioned, called = _used(target)
    hooks = {*METHODS, *IDLE_METHODS, *VALUES}
    for name, value in _own(target):
        used = name in mentioned or (callable(value) and id(value) in called)
        if name[:1].islower() and name not in hooks and not used:
            yield name, value


def _used(target: type) -> tuple[set[str], set[int]]:
    """The names that the class mentions, and the ids of the functions that are hooks or lie within its others."""
    kinds = (*target.__mro__, *inspect.getmro(type(target)))
    members = [item for kind in kinds for item in vars(kind).items()]
    names: set[str] = set()
    called = {id(_bare(value)) for name, value in members if name in (*METHODS, *IDLE_METHODS)}
    waiting = [_bare(value) for _name, value in members]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if _is_unreadable(value):
            names.update(name for name, _value in members)
        elif id(value) not in seen:
            seen.add(id(value))
            names.update(_names_in(value))
            inside = list(_inside(value))
            called.update(map(id, inside))
            waiting += inside
    return names, called


def _is_unreadable(value: Any) -> bool:
    """Whether `value` is a function that Cython or Nuitka has compiled: its code has no names."""
    return not isinstance(value, types.FunctionType) and hasattr(type(value), "__code__")


def _bare(value: Any) -> Any:
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _own(target: type) -> Iterator[tuple[str, Any]]:
    """What the author of the class has written in it and in the stages that it inherits from, without properties."""
    for kind in target.__mro__:
        if issubclass(kind, Stage) and kind is not Stage:
            for name, value in vars(kind).items():
                found = _bare(value)
                if not isinstance(found, property):
                    yield name, found


def _has(target: type, hook: str) -> bool:
    """Whether the class has `hook` from anybody but `Stage`."""
    missing = object()
    return inspect.getattr_static(target, hook, missing) is not inspect.getattr_static(Stage, hook, missing)


def _names_in(value: Any) -> Iterator[str]:
    """The names that `value` mentions: in its code, or as a text, for `getattr(self, "name")`."""
    if isinstance(value, types.FunctionType):
        value = value.__code__
    if isinstance(value, types.CodeType):
        yield from value.co_names
        for constant in value.co_consts:
            yield from _names_in(constant)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from (each for each in value if isinstance(each, str))


def _inside(value: Any) -> Iterator[Any]:
    """What runs with `value`: what a decorator holds, and the functions of the same module that a method calls."""
    if isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, (functools.partial, types.MethodType)):
        yield value.func if isinstance(value, functools.partial) else value.__func__
    elif isinstance(value, types.FunctionType):
        yield from _in_function(value)
        yield from vars(value).values()
    elif hasattr(type(value), "__get__"):  # an object in a method's place, as `functools.cached_property` makes
        yield from map(_bare, getattr(value, "__dict__", {}).values())


def _in_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty: what it is for was deleted, or is not there yet
            yield _bare(cell.cell_contents)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names_in(function):
        found = function.__globals__.get(name)
        if isinstance(found, types.FunctionType) and found.__globals__ is function.__globals__:
            yield found
