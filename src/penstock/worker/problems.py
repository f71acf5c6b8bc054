"""Describe an exception as text, which can be sent to another process; the exception itself is never sent."""

from __future__ import annotations

import traceback
from typing import Any

from penstock.codec.text import utf8
from penstock.errors import InvalidItem
from penstock.transport.messages import Problem
from penstock.worker.loading import MAIN_NAME

USER_ERRORS = (BaseException,)
"""What user code may raise while its worker goes on: everything.

A library may call sys.exit() on bad input, a coroutine that `predict` runs may be cancelled, and an extension in Rust
may panic.  What these raise is a BaseException and no Exception.
"""


class WrongLength(Exception):
    """`predict` returned another number of results than it was given items."""


def author_name(kind: type) -> str:
    """`module.Qualname` of a class as its author knows it; the main script has another name in a worker."""
    module = "__main__" if kind.__module__ == MAIN_NAME else kind.__module__
    return f"{module}.{kind.__qualname__}"


def describe_error(error: BaseException, *, skip_frames: int = 0) -> Problem:
    """`error` as text, without the first `skip_frames` of its traceback, which are ours."""
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
    """What is wrong with an item, as text and without a traceback, which would not help the caller."""
    # The `__init__` of a user's subclass may not have called ours, and a reason may be any object.
    return Problem("", (), _text(getattr(error, "reason", error)), path=_text(getattr(error, "path", "")))


def _text(value: Any) -> str:
    """`value` as text that UTF-8 can carry; never raises, so that every failure reaches its caller."""
    try:
        text = str(value)
    except USER_ERRORS as broken:
        return f"<{type(value).__name__} whose message cannot be made: {type(broken).__name__}>"
    return utf8(text)
