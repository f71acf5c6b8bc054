"""Make JSON objects of what is printed, one for each line, so that a log of objects has nothing else in it.

Contract
--------
* A line ends at a line break or at a carriage return, which progress bars write.  An empty line is left out.
* What has no end yet waits for one, for `rest`, or for what has other marks, as another call of the stage has; beyond
  `MAX_LINE_BYTES` it counts as a line.
* A line that is a JSON object with a level of its own stays as it is: a logger of the user wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Marks = Mapping[str, Any]
"""What tells where a line is from; an object has them as fields."""

MAX_LINE_BYTES = 64 * 1024
"""Longest line of one object; what is longer becomes several."""

_ENDS = re.compile(rb"[\r\n]")
_LEVELS = frozenset(("level", "levelname", "severity"))
"""What loggers that write JSON call the level."""


class PrintedObjects:
    """The lines of one stream; `make` makes the object of a line and its marks, without a line break.

    `marks` is called in the thread that prints.
    """

    def __init__(self, make: Callable[[str, Marks], str], marks: Callable[[], Marks], encoding: str) -> None:
        self._make = make
        self._marks = marks
        self._encoding = encoding
        self._begun = b""
        self._begun_marks: Marks = {}

    def feed(self, data: bytes) -> bytes:
        """The objects of the lines that end in `data`, each with a line break, and of one that was begun elsewhere."""
        marks = self._marks()
        before = self.rest() if self._begun and self._begun_marks != marks else b""
        first, *rest = _ENDS.split(data)  # not what was begun again: it may come in thousands of pieces
        *lines, self._begun = self._begun + first, *rest
        self._begun_marks = marks
        while len(self._begun) > MAX_LINE_BYTES:
            lines.append(self._begun[:MAX_LINE_BYTES])
            self._begun = self._begun[MAX_LINE_BYTES:]
        return before + b"".join([self._object(line, marks) for line in lines if line])

    def rest(self) -> bytes:
        """The object of the line that has no end, or b""."""
        line, self._begun = self._begun, b""
        return self._object(line, self._begun_marks) if line else b""

    def _object(self, line: bytes, marks: Marks) -> bytes:
        if not _is_object(line):
            line = self._make(line.decode(self._encoding, "backslashreplace"), marks).encode()
        return line + b"\n"


def _is_object(line: bytes) -> bool:
    """Whether `line` is a JSON object that says its level."""
    if not line.startswith(b"{"):
        return False
    try:
        return not _LEVELS.isdisjoint(msgspec.json.decode(line, type=dict))
    except msgspec.MsgspecError:
        return False
