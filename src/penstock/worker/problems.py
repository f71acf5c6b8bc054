"""Describe an exception as text, which can be sent to another process; the exception itself is never sent.

The texts are bounded, because a message often has the item in it: ``raise ValueError(f"bad {item!r}")``.  Here, in the
worker, each is cut before it is copied; nobody behind the worker ever sees more.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from types import CoroutineType, TracebackType
from typing import Any

from penstock.codec.encode import EncodeFailed
from penstock.codec.text import cut_middle
from penstock.errors import ArtifactInvalid
from penstock.transport.messages import MAX_NAMES, MESSAGE_BYTES, NAME_BYTES, TRACEBACK_BYTES, Problem
from penstock.worker.loading import MAIN_NAME

USER_ERRORS = (BaseException,)
"""What user code may raise while its worker goes on: everything.

A library may call sys.exit() on bad input, a coroutine that `predict` runs may be cancelled, and an extension in Rust
may panic.  What these raise is a BaseException and no Exception.
"""

MAX_NOTES = 16
"""Most notes of one error in a traceback."""
_MAX_CAUSES = 8
"""Errors behind one of ours that are looked at: they may be a circle."""
SINGLE_ITEM = "this stage has no batch policy, so predict receives one item"
_NO_LIST = ("is not iterable", "has no len()", "is not subscriptable")
_NO_ARRAY = ("0-d array", "0-d tensor", "unsized object")


_trace_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
"""The traceback that Python keeps for an error, whatever its class makes of the attribute."""
_mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""The classes of a class, whatever its metaclass makes of the attribute."""


IMPORT_MACHINERY = re.compile(r"<frozen (importlib|runpy|zipimport)|.*/importlib/__init__\.py$")
"""Files of Python that stand between us and a module that we import."""

_module_of: Callable[[type], object] = type.__dict__["__module__"].__get__
"""The module of a class, whatever its metaclass makes of the attribute."""


class WrongLength(Exception):
    """`predict` returned another number of results than it was given items."""


class NotAwaited(Exception):
    """A method that is no `async def` returned what has to be awaited."""


STAGE_FAULTS = (WrongLength, NotAwaited)
"""Errors that are the stage's fault, whatever the items are."""


class UnfitResult(Exception):
    """What a remote stage gave is no item of the stage behind it."""


def author_name(kind: type) -> str:
    """`module.Qualname` of a class as its author knows it; the main script has another name in a worker."""
    module = "__main__" if kind.__module__ == MAIN_NAME else kind.__module__
    return f"{module}.{kind.__qualname__}"


_FUTURE_OF_A_POOL = ("concurrent.futures._base", "Future")
"""By its name: few workers import it."""


def not_awaited(value: Any, method: str) -> NotAwaited | None:
    """The error of `method`, which is no `async def`, where the `value` that it gave has to be awaited; else None."""
    kind = type(value)
    if not hasattr(kind, "__await__") and (_module_of(kind), kind.__name__) != _FUTURE_OF_A_POOL:
        return None
    if kind is CoroutineType:
        value.close()  # else Python warns that nobody has awaited it
    name = kind.__name__
    return NotAwaited(f"{method} returned {name!r}, which is never awaited: write `async def`, and `await` the call")


def note_single_item(error: BaseException, value: Any) -> None:
    """Note in `error` that `predict` takes one item, if it looks as if one was read as a list.

    `error` is what a `predict` that takes single items raised for `value`.  The note is a line below the traceback.
    """
    if type(error) is not TypeError or issubclass(type(value), (list, tuple)):
        return
    text = str(error)
    of_item = f"{type(value).__name__!r}" in text and any(words in text for words in _NO_LIST)
    if of_item or any(words in text for words in _NO_ARRAY):
        error.__notes__ = [SINGLE_ITEM]  # and not `add_note`, which would add a line each time to an error that is kept


def describe_error(error: BaseException) -> Problem:
    """`error` as text.  Its traceback begins at the user's code.  It never raises."""
    trace = _users_part(error)
    return Problem(
        type_name=_name(type(error)),
        mro=_names(_mro_of(type(error))),
        message=_text(error, MESSAGE_BYTES),
        traceback=_traceback(error, trace),
        raised_at=_raised_at(trace) or _place_of_result(error),
    )


def _users_part(error: BaseException) -> TracebackType | None:
    """The traceback of `error` from the first frame of the user's on.

    Where no frame is the user's, an error of one of our classes says all there is to say, and has none.  Any other is a
    mistake of ours, or comes from a function in C: it keeps them all.
    """
    whole = _trace_of(error)
    return _first_of_users(whole) or (None if is_ours(_module_of(type(error))) else whole)


def _has_telling_cause(error: BaseException) -> bool:
    """Whether the user's code is behind an error of ours: in the traceback of one of its causes.

    Behind an artifact that is invalid there is the library that cannot open it.  What it said is in the message.
    """
    if isinstance(error, ArtifactInvalid):
        return False
    causes = _causes_of(error)
    return len(causes) == _MAX_CAUSES or any(_first_of_users(_trace_of(cause)) is not None for cause in causes)


def _causes_of(error: BaseException) -> list[BaseException]:
    """The errors behind `error`, the nearest first; not all where they are many."""
    found: list[BaseException] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(found) < _MAX_CAUSES:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _first_of_users(part: TracebackType | None) -> TracebackType | None:
    while part is not None:
        frame = part.tb_frame
        # By the name of the module: files of compiled modules are named as they were where they were compiled.
        if not is_ours(dict.get(frame.f_globals, "__name__")) and not IMPORT_MACHINERY.match(frame.f_code.co_filename):
            return part
        part = part.tb_next
    return None


def is_ours(module: object) -> bool:
    """Whether the module of that name is one of Penstock's."""
    return isinstance(module, str) and str.startswith(module, "penstock.")


def describe_invalid(error: BaseException) -> Problem:
    """What is wrong with an item, as text and without a traceback, which would not help the caller; never raises."""
    # The `__init__` of a user's subclass may not have called ours, and a reason may be any object.
    reason, path = _attribute(error, "reason", error), _attribute(error, "path", "")
    return Problem("", (), _text(reason, MESSAGE_BYTES), path=_text(path, MESSAGE_BYTES))


def _attribute(error: BaseException, name: str, default: Any) -> Any:
    try:
        return getattr(error, name, default)
    except USER_ERRORS as broken:  # it may be a property
        return f"<{name} that cannot be read: {_last_name(type(broken))}>"


def _text(value: Any, limit: int) -> str:
    """`value` as text of at most `limit` bytes that UTF-8 can carry; every failure must reach its caller."""
    try:
        return cut_middle(str(value), limit)
    except USER_ERRORS as broken:
        return f"<{_last_name(type(value))} with an unprintable message: {_last_name(type(broken))}>"


def _name(kind: type) -> str:
    try:
        return cut_middle(author_name(kind), NAME_BYTES)
    except USER_ERRORS:  # a metaclass may have made properties of both parts
        return "<a class with an unreadable name>"


def _last_name(kind: type) -> str:
    return _name(kind).rpartition(".")[2]


def _names(kinds: tuple[type, ...]) -> tuple[str, ...]:
    """The first and the last of the names: a class's own, and those of the built-in classes it ends in."""
    kept = kinds if len(kinds) <= MAX_NAMES else (*kinds[: MAX_NAMES // 2], *kinds[-MAX_NAMES // 2 :])
    return tuple(_name(kind) for kind in kept)


def _raised_at(trace: TracebackType | None) -> str:
    """`file:line` of the innermost frame of a traceback; "" where there is none, as for an error that was returned."""
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return cut_middle(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", NAME_BYTES)


def _place_of_result(error: BaseException) -> str:
    """Place of a result that cannot be encoded: a line of the user's code, the type or the path of an object, or ""."""
    if not issubclass(type(error), EncodeFailed):
        return ""
    for cause in _causes_of(error):
        users = _first_of_users(_trace_of(cause))
        if users is not None:
            return cut_middle(f"{_name(type(cause))} at {_raised_at(users)}", NAME_BYTES)
    return _text(_attribute(error, "place", ""), NAME_BYTES)


def _traceback(error: BaseException, trace: TracebackType | None) -> str:
    try:
        described = traceback.TracebackException(type(error), error, trace, compact=True)
        if trace is None and is_ours(_module_of(type(error))) and not _has_telling_cause(error):
            described.__cause__ = described.__context__ = None  # its message has what they say
        todo = [described]
        while todo:
            part = todo.pop()
            _shorten(part)
            causes = (part.__cause__, part.__context__, *(part.exceptions or ()))
            todo += [cause for cause in causes if cause is not None]
        return cut_middle("".join(described.format()), TRACEBACK_BYTES)
    except USER_ERRORS as broken:  # from properties of the user's exception, or for want of memory
        message = _text(error, MESSAGE_BYTES)
        return f"{_name(type(error))}: {message}\n<its traceback cannot be made: {_last_name(type(broken))}>"


def _shorten(part: traceback.TracebackException) -> None:
    """Cut the texts of one error before they are formatted, which would copy them: each may have hundreds of MB."""
    text = getattr(part, "_str", None)  # its message; private, but of this name in every Python from 3.5 on
    if isinstance(text, str):
        part._str = cut_middle(text, MESSAGE_BYTES)  # type: ignore[attr-defined]
    notes: Any = part.__notes__
    if notes is not None:
        each = notes if isinstance(notes, (list, tuple)) else [notes]
        part.__notes__ = [_text(note, MESSAGE_BYTES) for note in each[:MAX_NOTES]]
        if len(each) > MAX_NOTES:
            part.__notes__.append(f"[... cut: {len(each)} notes in all ...]")
    if hasattr(part, "msg"):  # of a SyntaxError
        part.msg = _text(part.msg, MESSAGE_BYTES)
        if len(part.text or "") > MESSAGE_BYTES:  # the line that does not parse, and a row of carets as long
            part.text = ""
            part.offset = None  # type: ignore[assignment]  # it may be None, whatever the stubs say
