"""Say what is wrong with an input, and where, in one form for all parsers.

Each parser has its own errors: msgspec appends the path to the text, pydantic lists locations, numpy raises errors of
many types.  All become an `InvalidItem` with a reason and a path such as ``$.x[3]``, or "" for the whole item.

A type's own checks are the user's code, and may raise anything.  Only `CALLERS_FAULTS` say something of the item: all
else is a fault of the code that reads it.
"""

from __future__ import annotations

import ast
import codecs
import enum
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.core.payload import Buffer
from penstock.errors import InvalidItem

# Errors of msgspec have no attribute for the path: it stands in the English text, which ends with " - at `$.x[3]`", or
# with " - at `key` in `$.x`" where a key of an object is wrong.  These two lines depend on the words of the version in
# use; with other words the reason still says everything, and the path is "".
_LOCATION = re.compile(r"(?s)(.*) - at (`key` in )?`(\$.*)`")
_OPENINGS = ("Expected ", "Object ", "Number ", "Invalid ", "Integer ", "Input data ", "Array ")
_TRUNCATED = "input data was truncated"
_NOT_UTF8 = "text is not valid UTF-8"
_NOT_UTF8_IN_MSGSPEC = "Invalid UTF-8 encoded string"
"""From 0.23 on; before, msgspec raised a UnicodeDecodeError."""
_NO_MEMBER = re.compile(r"Invalid enum value (-?\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_NO_JSON_AT_ALL = "JSON is malformed: invalid character (byte 0)"
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*+\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u|\\?\Z)")
"""The first half of a pair, without the second: msgspec then finds the end of the text too early."""


CALLERS_FAULTS: Final = (InvalidItem, ValueError, TypeError, AssertionError)
"""Errors by which a check says that the item is wrong.  Our parsers raise them too, and RecursionError."""


class UnreadablePart(ValueError):
    """Part of an item cannot be read.

    `path` leads from that part (``$``) to what is wrong in it; `more` has what else is wrong, each with its path, and
    `untold` is how much there is besides.  The error is a ValueError, which msgspec lets a hook raise; msgspec adds the
    path to the part itself.
    """

    def __init__(self, reason: str, path: str = "", more: Sequence[tuple[str, str]] = (), untold: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.more = more
        self.untold = untold

    def within(self, outer: str) -> tuple[str, str]:
        """The reason and the path where the part is at `outer` in the item.

        Where more than one thing is wrong, the reason tells all of them, each with its path.  The path is that of the
        first.
        """
        path = join_paths(outer, self.path)
        if not self.more:
            return self.reason, path
        all_ = [(self.reason, path), *((reason, join_paths(outer, inner)) for reason, inner in self.more)]
        told = "; ".join(f"{reason} at `{where or '$'}`" for reason, where in all_)
        return told + (f"; and {self.untold} more" if self.untold else ""), path


def is_callers_fault(exc: BaseException) -> bool:
    """Whether `exc`, which was raised while an item was read, says that the item is wrong.

    An item that is nested too deeply ends in a RecursionError, and so does a check that calls itself without end.  The
    first may meet the limit within a check, which then has few frames; the second has filled the stack with its own.
    """
    if isinstance(exc, RecursionError):
        return len(_frames_of_others(exc)) < sys.getrecursionlimit() // 4
    return isinstance(exc, CALLERS_FAULTS)


def fault_of_pickle(exc: BaseException) -> BaseException | None:
    """The error of the user's code that ended an unpickling with `exc`, where no caller is to blame for it."""
    cause = exc.__cause__
    if cause is None or is_callers_fault(cause) or not _frames_of_others(cause):
        return None
    return cause


def fault_of_enum(exc: BaseException, enums: Iterable[type[enum.Enum]]) -> BaseException | None:
    """The error of an enum's own `_missing_` that msgspec has swallowed, where no caller is to blame for it.

    msgspec says "Invalid enum value" whatever `_missing_` raised.  Therefore `_missing_` is called once more.
    """
    found = _NO_MEMBER.match(str(exc)) if isinstance(exc, msgspec.ValidationError) else None
    if found is None:
        return None
    value = ast.literal_eval(found[1])
    for kind in enums:
        try:
            kind._missing_(value)
        except Exception as missing:  # noqa: BLE001  # the user's code
            if not is_callers_fault(missing):
                return missing
    return None


def _frames_of_others(exc: BaseException) -> list[Any]:
    """The frames in the traceback of `exc` that run no code of ours."""
    found = []
    trace = exc.__traceback__
    while trace is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith("penstock."):
            found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def invalid_item(exc: BaseException, payload: Buffer) -> InvalidItem:
    """The `InvalidItem` for the caller whose item could not be read from `payload` because of `exc`."""
    if isinstance(exc, InvalidItem):
        return exc
    reason, path = explain(exc)
    if reason == _TRUNCATED:
        reason = _why_truncated(payload)
    elif reason == _NO_JSON_AT_ALL and bytes(payload[:3]) == codecs.BOM_UTF8:
        reason = "the body begins with a UTF-8 byte order mark (BOM): remove it"
    return InvalidItem(reason, path=path)


def explain(exc: BaseException) -> tuple[str, str]:
    """The reason and the path behind `exc`; the path is "" where the whole item is meant."""
    if isinstance(exc, UnreadablePart):
        return exc.within("")
    if isinstance(exc, msgspec.MsgspecError):
        return _from_msgspec(exc)
    if isinstance(exc, RecursionError):
        return "nested too deeply", ""
    if isinstance(exc, UnicodeDecodeError):
        return _NOT_UTF8, ""
    if isinstance(exc, CALLERS_FAULTS):
        return str(exc) or "not a valid value", ""
    return f"{type(exc).__name__}: {exc}", ""


def _from_msgspec(exc: msgspec.MsgspecError) -> tuple[str, str]:
    text, path = str(exc), ""
    located = _LOCATION.fullmatch(text)
    if located is not None:
        text, in_key, path = located.groups()
        if in_key:
            text += " as a key"
    cause = exc.__cause__
    if isinstance(cause, UnreadablePart):
        text, path = cause.within(path)
    elif text == _NOT_UTF8_IN_MSGSPEC:
        text = _NOT_UTF8
    elif cause is None and text.startswith(_OPENINGS):
        text = text[0].lower() + text[1:]
    return text, "" if path == "$" else path


def _why_truncated(payload: Buffer) -> str:
    if not len(payload):
        return "the body is empty"
    if _LONE_SURROGATE.search(payload):
        return "text has half of a surrogate pair, which is not a character"
    return _TRUNCATED


def join_paths(outer: str, inner: str) -> str:
    """The path of what lies at `inner` within what lies at `outer`."""
    if not outer:
        return inner
    return outer + inner.removeprefix("$")
