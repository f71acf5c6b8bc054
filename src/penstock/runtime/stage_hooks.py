"""Find what the author of a stage meant as a hook, and called by another name.  Penstock would never call it.

Contract
--------
* Only names count that a subclass of `Stage` has itself, and that no method of the class mentions: what the class uses
  is a helper.  They begin with a small letter: others are classes, constants, and what is not public.
* A name is no slip where the class has the hook itself.
* A method is meant as a method, and a value as a value: `examples` is never a method.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from penstock.config import Batch
from penstock.errors import ConfigError
from penstock.spelling import is_slip, nearest
from penstock.worker.stage import Stage

METHODS = ("setup", "preprocess", "predict", "postprocess", "teardown")
"""What a worker calls of a class."""
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
            found.append(f"nothing uses {name!r}: if it is meant as {hook!r}, rename it")
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
            return f"nothing calls its {name!r}: set `examples = [...]`, which every worker runs before it is ready"
        hook = SAME_AS.get(name) or next((hook for hook in METHODS if is_slip(name, hook)), None)
        if hook is not None and not _has(target, hook):
            return f"nothing calls its {name!r}: rename it to {hook!r}"
        return ""
    if name in BATCH_SIZES and isinstance(value, int) and not batched:
        return f"nothing reads its {name!r}: write `batch = penstock.Batch(max_size={value})`"
    if is_slip(name, "examples") and not _has(target, "examples"):
        return f"nothing reads its {name!r}: write `examples = [...]`, a list of items"
    if isinstance(value, Batch) and is_slip(name, "batch") and not batched:
        return f"nothing reads its {name!r}: rename it to 'batch'"
    return ""


def _unused(target: Any) -> Iterator[tuple[str, Any]]:
    """What the class `target` has under public names that none of its methods mentions."""
    if not inspect.isclass(target):
        return
    mentioned = {name for kind in target.__mro__ for value in vars(kind).values() for name in _names_in(value)}
    hooks = {*METHODS, *VALUES}
    for name, value in _own(target):
        if name[:1].islower() and name not in hooks and name not in mentioned:
            yield name, value


def _own(target: type) -> Iterator[tuple[str, Any]]:
    """What the author of the class has written in it and in the stages that it inherits from, without properties."""
    for kind in target.__mro__:
        if issubclass(kind, Stage) and kind is not Stage:
            for name, value in vars(kind).items():
                found = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                if not isinstance(found, property):
                    yield name, found


def _has(target: type, hook: str) -> bool:
    """Whether the class has `hook` from anybody but `Stage`."""
    missing = object()
    return inspect.getattr_static(target, hook, missing) is not inspect.getattr_static(Stage, hook, missing)


def _names_in(value: Any) -> Iterator[str]:
    """The names that the code of `value` mentions, also as texts: `getattr(self, "name")`."""
    if isinstance(value, property):
        for accessor in (value.fget, value.fset, value.fdel):
            yield from _names_in(accessor)
        return
    function: Callable[..., Any] | None = getattr(value, "__func__", value)
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    if isinstance(code, types.CodeType):
        yield from _names_in_code(code)


def _names_in_code(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _names_in_code(constant)
