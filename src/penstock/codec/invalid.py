"""Say what is wrong with an input, and where, in one form for all parsers.

Each parser has its own errors: msgspec appends the path to the text, pydantic lists locations, numpy raises errors of
many types.  All become an `InvalidItem` with a reason and a path such as ``$.x[3]``, or "" for the whole item.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.payload import Buffer
from penstock.errors import InvalidItem

# Errors of msgspec have no attribute for the path: it stands in the English text, which ends with " - at `$.x[3]`", or
# with " - at `key` in `$.x`" where a key of an object is wrong.  These two lines depend on the words of the version in
# use; with other words the reason still says everything, and the path is "".
_LOCATION = re.compile(r"(?s)(.*) - at (`key` in )?`(\$.*)`")
_OPENINGS = ("Expected ", "Object ", "Number ", "Invalid ", "Integer ", "Input data ", "Array ")
_TRUNCATED = "input data was truncated"
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*+\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u|\\?\Z)")
"""The first half of a pair, without the second: msgspec then finds the end of the text too early."""


class UnreadablePart(ValueError):
    """Part of an item cannot be read.

    `path` leads from that part (``$``) to what is wrong in it.  The error is a ValueError, which msgspec lets a hook
    raise; msgspec adds the path to the part itself.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def invalid_item(exc: BaseException, payload: Buffer) -> InvalidItem:
    """The `InvalidItem` for the caller whose item could not be read from `payload` because of `exc`."""
    if isinstance(exc, InvalidItem):
        return exc
    reason, path = explain(exc)
    if reason == _TRUNCATED:
        reason = _why_truncated(payload)
    return InvalidItem(reason, path=path)


def explain(exc: BaseException) -> tuple[str, str]:
    """The reason and the path behind `exc`; the path is "" where the whole item is meant."""
    if isinstance(exc, UnreadablePart):
        return exc.reason, exc.path
    if isinstance(exc, msgspec.MsgspecError):
        return _from_msgspec(exc)
    if isinstance(exc, RecursionError):
        return "nested too deeply", ""
    if isinstance(exc, UnicodeDecodeError):
        return "text that is not UTF-8", ""
    if isinstance(exc, ValueError):
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
        text, path = cause.reason, join_paths(path, cause.path)
    elif cause is None and text.startswith(_OPENINGS):
        text = text[0].lower() + text[1:]
    return text, "" if path == "$" else path


def _why_truncated(payload: Buffer) -> str:
    if not len(payload):
        return "the body is empty"
    if _LONE_SURROGATE.search(payload):
        return "text with half of a surrogate pair, which is no character"
    return _TRUNCATED


def join_paths(outer: str, inner: str) -> str:
    """The path of what lies at `inner` within what lies at `outer`."""
    if not outer:
        return inner
    return outer + inner.removeprefix("$")
