"""Tell what an exception was in words that can travel: the exception itself never does."""

from __future__ import annotations

import traceback
from typing import Any

from penstock.codec.text import utf8
from penstock.errors import InvalidItem
from penstock.transport.messages import Problem
from penstock.worker.loading import MAIN_NAME

# What user code may raise and the worker survives: everything.  A library that calls sys.exit() on bad input, a
# cancelled coroutine that was run inside `predict`, an extension that panics: none may take a worker down, and none is
# an Exception.
USER_ERRORS = (BaseException,)


class WrongLength(Exception):
    """`predict` returned another number of results than it was given items."""


def author_name(kind: type) -> str:
    """`module.Qualname` of a class, by the name its author knows: here the main script has another."""
    module = "__main__" if kind.__module__ == MAIN_NAME else kind.__module__
    return f"{module}.{kind.__qualname__}"


def describe_error(error: BaseException, *, skip_frames: int = 0) -> Problem:
    """`error` as text; `skip_frames` leaves out our own frames at the top of its traceback."""
    trace = error.__traceback__
    for _ in range(skip_frames):
        if trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
    return Problem(
        type_name=_text(author_name(type(error))),
        mro=tuple(_text(author_name(kind)) for kind in type(error).__mro__),
        message=_text(error),
        traceback=_text("".join(traceback.format_exception(type(error), error, trace))),
    )


def describe_invalid(error: InvalidItem) -> Problem:
    """What is wrong with an item, as text; the caller needs no traceback for that."""
    # A subclass may have kept its reason to itself, and a reason may be any object.
    return Problem("", (), _text(getattr(error, "reason", error)), path=_text(getattr(error, "path", "")))


def _text(value: Any) -> str:
    """`value` as text that can be written as UTF-8; never raises, so that every failure reaches its caller."""
    try:
        text = str(value)
    except USER_ERRORS as broken:
        return f"<{type(value).__name__} whose message cannot be made: {type(broken).__name__}>"
    return utf8(text)
