"""The class users write: one step of a service."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.config import Batch

if TYPE_CHECKING:
    from penstock.worker.declaration import Declaration

METHODS = ("setup", "preprocess", "predict", "postprocess", "teardown")
"""The methods of a class that a worker calls."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Which worker a stage object lives in, and how much time its items have left."""

    stage: str
    index: int
    """From 0 to `count` - 1."""
    count: int
    gpus: tuple[int | str, ...] = ()
    """The GPUs that `penstock.stage(gpus=...)` gives it, as they were named there; its own number 0 is the first."""
    left: Callable[[], list[float]] | None = field(default=None, repr=False, compare=False)
    """What `remaining` asks; a worker has its own, a test of a stage may give another."""

    def remaining(self) -> list[float]:
        """The seconds that each item of the running call has left at this moment, in the order of the items.

        `predict` with a batch policy has one number for each item that it was given; `predict` without one,
        `preprocess` and `postprocess` have one.  It is inf for an item without a deadline and for examples, and 0.0
        once the deadline has passed.  Outside of these calls the list is empty.
        """
        return [] if self.left is None else self.left()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is no worker's: where it goes, to another process for one, nothing runs that it could tell of.
        return WorkerInfo, (self.stage, self.index, self.count, self.gpus)


class Stage:
    """One step of a service.  Subclass it; each worker process makes one object of the class.

    Write ``predict(self, x)`` for one item, or set `batch` and write ``predict(self, xs)``, which takes a list and
    returns as many results: a list, a tuple, or an array whose first axis is the batch.  An `InvalidItem` or another
    exception in an item's place fails that item alone.

    These are optional.  ``setup(self, **kwargs)`` runs once in the worker, before anything else.
    ``preprocess(self, x)`` and ``postprocess(self, y)``, or ``postprocess(self, y, pre)``, run for each item, before
    and after `predict`; `pre` is what `preprocess` made of the item.  ``teardown(self)`` runs once, when the worker
    ends in good order.  ``health(self)`` runs while the worker is idle; where it raises, the worker is replaced.
    Each of these, and `predict`, may be `async`: the stage is a waiting one then, and a worker has many of its batches
    in progress at once, in one event loop that lives as long as the worker.
    ``declare(cls, **kwargs)``, a classmethod, is given what `setup` will be given.
    """

    batch: ClassVar[Batch | None] = None
    """How items are gathered; None: `predict` gets them one by one."""
    examples: ClassVar[Sequence[Any]] = ()
    """Inputs of this stage, plain or as an `Example`: each worker runs them, alone and as a full batch, before it is
    ready, and is not ready where one that is an `Example` has another output."""
    worker: WorkerInfo
    """Which worker this is, and what time its items have left; set before `setup` is called."""

    @classmethod
    def declare(cls, *args: Any, **kwargs: Any) -> Declaration:  # noqa: ARG003  # any signature overrides this one
        """What this stage takes and gives with these arguments of `setup`, where only they tell.

        It is called when the stage is described, and once more in each worker, because types do not travel: it has to
        say the same there.  It loads no more than it needs to say so.
        """
        from penstock.worker.declaration import Declaration

        return Declaration()

    def setup(self, *args: Any, **kwargs: Any) -> Awaitable[None] | None:  # any signature overrides this one
        """Load what `predict` needs; called once with the arguments given to `penstock.stage(setup=...)`."""

    def teardown(self) -> Awaitable[None] | None:
        """Release what `setup` took; called once when the worker ends in good order, and not after a crash."""

    def predict(self, x: Any, /) -> Any:
        """Answer one item, or a list of items if the stage has a batch policy."""
        raise NotImplementedError(f"{type(self).__name__} has no predict method")


class FunctionStage(Stage):
    """A plain function as a stage."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        # The function replaces the method, so that there is no line of ours in its tracebacks.
        self.predict = function  # type: ignore[method-assign]
        self.examples = getattr(function, "examples", ())  # type: ignore[misc]  # this object is the only one


def make_stage(target: Any) -> Any:
    """An object of the class `target`; for a function `target`, an object that calls it."""
    return target() if inspect.isclass(target) else FunctionStage(target)


def called(target: type, name: str) -> tuple[Any, tuple[str, ...]] | None:
    """What a worker calls as the method `name` of an object of `target`, and the names of what it is given first.

    None where only an object can tell, as for a property and for a decorator that is an object in the method's place.
    """
    found = inspect.getattr_static(target, name)
    if isinstance(found, (staticmethod, classmethod)):
        return getattr(target, name), ()
    if isinstance(found, (types.FunctionType, functools.partialmethod)):
        return getattr(target, name), ("self",)
    return None if hasattr(type(found), "__get__") else (found, ())


def has_health(target: Any) -> bool:
    """Whether workers of `target` can be asked how they are: it is a class with a method ``health(self)``.

    Much is called so.  Only a method counts that takes nothing, plain or `async`: no property, no value, no generator.
    """
    found = inspect.getattr_static(target, "health", None) if inspect.isclass(target) else None
    if not isinstance(found, types.FunctionType):
        return False
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        return False
    parameters = list(inspect.signature(found).parameters.values())
    return len(parameters) == 1 and parameters[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


def behind(call: Any) -> Any:
    """The function that runs when `call` is called."""
    while isinstance(call, (staticmethod, classmethod, functools.partial, functools.partialmethod)):
        call = call.func if isinstance(call, (functools.partial, functools.partialmethod)) else call.__func__
    if inspect.isroutine(call) or inspect.isclass(call):
        return call
    return getattr(type(call), "__call__", call)  # noqa: B004  # the function is wanted, and not whether there is one


def waiting_methods(target: Any) -> tuple[str, ...]:
    """The methods of `target` that are `async`; of a function that is, `predict`.

    A stage that has any is a waiting one: its workers run it in an event loop, many batches at once.
    """
    if not inspect.isclass(target):
        return ("predict",) if inspect.iscoroutinefunction(behind(target)) else ()
    names = (*METHODS, "health") if has_health(target) else METHODS
    return tuple(
        name for name in names if inspect.iscoroutinefunction(behind(inspect.getattr_static(target, name, None)))
    )


def wants_pre(postprocess: Callable[..., Any]) -> bool:
    """Whether `postprocess` also takes what `preprocess` made of its item."""
    parameters = inspect.signature(postprocess).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
