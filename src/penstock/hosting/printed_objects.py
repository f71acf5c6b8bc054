"""Make JSON objects of what is printed, one for each line, so that a log of objects has nothing else in it.

Contract
--------
* A line ends at a line break or at a carriage return, which progress bars write.  An empty line is left out.
* What has no end yet waits for one, or for `rest`; beyond `MAX_LINE_BYTES` it counts as a line.
* A line that is a JSON object with a level of its own stays as it is: a logger of the user wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

MAX_LINE_BYTES = 64 * 1024
"""Longest line of one object; what is longer becomes several."""

_ENDS = re.compile(rb"[\r\n]")
_LEVELS = frozenset(("level", "levelname", "severity"))
"""What loggers that write JSON call the level."""


class PrintedObjects:
    """The lines of one stream; `make` makes the object of a line, without a line break."""

    def __init__(self, make: Callable[[str], str], encoding: str) -> None:
        self._make = make
        self._encoding = encoding
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """The objects of the lines that end in `data`, each with a line break."""
        *lines, self._begun = _ENDS.split(self._begun + data)
        while len(self._begun) > MAX_LINE_BYTES:
            lines.append(self._begun[:MAX_LINE_BYTES])
            self._begun = self._begun[MAX_LINE_BYTES:]
        return b"".join([self._object(line) for line in lines if line])

    def rest(self) -> bytes:
        """The object of the line that has no end, or b""."""
        line, self._begun = self._begun, b""
        return self._object(line) if line else b""

    def _object(self, line: bytes) -> bytes:
        if not _is_object(line):
            line = self._make(line.decode(self._encoding, "backslashreplace")).encode()
        return line + b"\n"


def _is_object(line: bytes) -> bool:
    """Whether `line` is a JSON object that says its level."""
    if not line.startswith(b"{"):
        return False
    try:
        return not _LEVELS.isdisjoint(msgspec.json.decode(line, type=dict))
    except msgspec.MsgspecError:
        return False
