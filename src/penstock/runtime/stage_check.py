"""Check that something can be a stage: a function, or a class whose methods are called and return, or are awaited.

Contract
--------
* A method that has a `yield` is refused when the stage is described.  A worker would get an object that no answer can
  carry, so each request would fail.
* A method may be `async`, and so may a function: the stage is a waiting one then.
* `declare` and `__init__` may not, nor a property that a worker reads: these are called without an event loop.
* A method that cannot be called with what a worker gives it is refused, too.  What a C function takes is not known,
  nor what an object in a method's place takes, as a decorator may make one.
* What is judged is what a worker calls: behind a `partial`, or the `__call__` of an object.  A plain function that
  wraps an `async` one is plain.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from penstock.errors import ConfigError
from penstock.runtime.stage_hooks import IDLE_METHODS, VALUES, predict_by_another_name
from penstock.worker.stage import METHODS, Stage, behind, called, wants_pre

NO_EXAMPLES = (str, bytes, bytearray, memoryview, Mapping, AbstractSet)
"""What has a length, but is one item rather than a list of them, or has no order."""


def check_target(target: Any) -> None:
    """ConfigError if `target` is no stage: no function, or no `Stage` class with a `predict`."""
    if isinstance(target, Stage):
        raise ConfigError(
            "pass the class of a stage, not an object, because each worker creates its own: write "
            f"{type(target).__qualname__}, and penstock.stage(..., setup={{...}}) for what it needs"
        )
    if isinstance(target, (list, tuple)):
        raise ConfigError(
            f"a stage is a class or a function, got a {type(target).__name__}: pass the stages of a service one by "
            "one, penstock.Service(A, B)"
        )
    if not callable(target):
        raise ConfigError(f"a stage is a class or a function, got {target!r}")
    if inspect.isclass(target) and not issubclass(target, Stage):
        raise ConfigError(
            f"{target.__qualname__} is not a stage: a stage is a subclass of penstock.Stage or a function"
        )
    if inspect.isclass(target) and inspect.getattr_static(target, "predict") is Stage.predict:
        raise ConfigError(f"{target.__qualname__} has no predict method{predict_by_another_name(target)}")


def check_described(label: str, target: Any) -> None:
    """ConfigError if `target` is a class with something `async` that nobody awaits.

    It is asked before anything of the class is called.
    """
    if not inspect.isclass(target):
        return
    for name, instead in (
        ("declare", "it is called without an event loop, when the service is created: write `def declare`"),
        (
            "__init__",
            "Python does not await it: write `def __init__`, and put code that awaits into `async def setup`",
        ),
    ):
        if inspect.iscoroutinefunction(behind(inspect.getattr_static(target, name, None))):
            raise ConfigError(f"stage {label!r}: {name} is `async`, and {instead}")
    for name in (*METHODS, *IDLE_METHODS, *VALUES):
        if inspect.iscoroutinefunction(_read_by(inspect.getattr_static(target, name, None))):
            raise ConfigError(
                f"stage {label!r}: {name} is an `async` property, which is never awaited: use a method or a plain "
                "value instead, without `@property`"
            )


def check_calls(label: str, target: Any, *, batched: bool) -> None:
    """ConfigError if what a worker calls of `target` is a generator, or takes too few or too many arguments.

    It says what to write instead.  `batched` says whether `predict` takes lists.
    """
    if not inspect.isclass(target):
        name = getattr(target, "__name__", "the function")
        _check_call(label, name, target)
        _check_arguments(label, name, target, (), ("xs" if batched else "x",))
        return
    for name in METHODS:
        found = inspect.getattr_static(target, name, None)
        if found is not None:
            _check_call(label, name, found)
            call = called(target, name)
            if call is not None and name != "setup":  # it is checked with its arguments
                function, owner = call
                _check_arguments(label, name, function, owner, _arguments(name, function, owner, batched=batched))


def examples_of(label: str, target: Any) -> tuple[Any, ...]:
    """The examples of `target`; ConfigError if they are no list of items."""
    return checked_examples(label, getattr(target, "examples", ()))


def checked_examples(label: str, examples: Any) -> tuple[Any, ...]:
    """`examples` as they are kept; ConfigError if they are no list of items."""
    try:
        if not isinstance(examples, NO_EXAMPLES) and len(examples) >= 0:
            return tuple(examples)
    except TypeError:  # it has no length, as an iterator: each worker would have to read it anew
        pass
    raise ConfigError(f"stage {label!r}: examples must be a list of items, got {examples!r}")


def _check_call(label: str, name: str, call: Any) -> None:
    function = behind(call)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"stage {label!r}: {name} is a generator, because it has a `yield`: write `def {name}` without one, "
            "and return the whole result, for instance as a list"
        )


def _arguments(name: str, call: Any, owner: tuple[str, ...], *, batched: bool) -> tuple[str, ...]:
    """What a worker gives the method `name`, by names that a user would give them."""
    if name == "teardown":
        return ()
    if name == "predict":
        return ("xs",) if batched else ("x",)
    if name == "preprocess":
        return ("x",)
    try:
        return ("y", "pre") if wants_pre(functools.partial(call, *owner)) else ("y",)
    except (TypeError, ValueError):
        return ("y",)


def _check_arguments(label: str, name: str, call: Any, owner: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    try:
        takes = inspect.signature(call, follow_wrapped=False)  # a decorator may give what its caller does not
    except (TypeError, ValueError):  # a function written in C that does not tell
        return
    try:
        takes.bind(*owner, *arguments)
    except TypeError:
        wanted = ", ".join((*owner, *arguments))
        hint = (
            ("; pass everything that belongs to an item in one argument, for instance a dataclass") if arguments else ""
        )
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in takes.parameters.values()]
        given = inspect.Signature(bare)
        raise ConfigError(
            f"stage {label!r}: a worker calls {name}({wanted}), but it is defined as {name}{given}: write `def "
            f"{name}({wanted})`{hint}"
        ) from None


def _read_by(found: Any) -> Any:
    """The function that runs when the property `found` is read; None where it is no property."""
    if isinstance(found, functools.cached_property):
        return found.func
    return found.fget if isinstance(found, property) else None
