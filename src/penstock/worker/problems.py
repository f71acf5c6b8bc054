"""Tell what an exception was in words that can travel: the exception itself never does."""

from __future__ import annotations

import traceback

from penstock.transport.messages import Problem

# What user code may raise and the worker survives.  SystemExit is among them: a library that calls sys.exit() on bad
# input must not take a worker down.
USER_ERRORS = (Exception, SystemExit)


class WrongLength(Exception):
    """`predict` returned another number of results than it was given items."""


def type_name(kind: type) -> str:
    """`module.Qualname` of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def describe(error: BaseException, *, skip_frames: int = 0) -> Problem:
    """`error` as text; `skip_frames` leaves out our own frames at the top of its traceback."""
    trace = error.__traceback__
    for _ in range(skip_frames):
        if trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return Problem(
        type_name=type_name(type(error)),
        mro=tuple(type_name(kind) for kind in type(error).__mro__),
        message=_message(error),
        traceback=text,
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except USER_ERRORS as second:
        # User classes can have a broken __str__; the failure must still reach its caller.
        return f"<{type(error).__name__} whose message cannot be made: {type(second).__name__}>"
