"""A path with variables, as ``/jobs/{id}/result``: which paths fit it, and what stands in the variables' places.

A variable is a whole segment.  What stands in its place is 1 to 128 of ``A-Z a-z 0-9 . _ -``, as a request's id is.
A path with any other character there, a percent sign too, does not fit.  `without_needless_escapes` comes before.
"""

from __future__ import annotations

import re
from typing import Final

_VALUE = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_ESCAPE = re.compile(rb"%[2-7][0-9A-Fa-f]")
_UNRESERVED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"


def without_needless_escapes(path: bytes) -> bytes:
    """`path` as any client means it that escapes what stands for itself: ``/%70redict`` (RFC 3986, 6.2.2.2)."""
    return _ESCAPE.sub(_unescaped, path)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    character = bytes.fromhex(escape[0][1:].decode())
    return character if character in _UNRESERVED else escape[0]


class PathPattern:
    """What paths look like that one route takes; `fixed` says that it is one path, because there is no variable."""

    def __init__(self, path: str) -> None:
        segments = path.split("/")
        self._segments = [None if each.startswith("{") and each.endswith("}") else each.encode() for each in segments]
        self.slashes = len(segments) - 1
        self.fixed = None not in self._segments

    def values(self, path: bytes) -> list[str] | None:
        """What stands in the places of the variables, in their order; None where `path` does not fit."""
        given = path.split(b"/", self.slashes + 1)
        if len(given) != len(self._segments):
            return None
        found: list[str] = []
        for segment, part in zip(self._segments, given, strict=True):
            if segment is None:
                if _VALUE.fullmatch(part) is None:
                    return None
                found.append(part.decode())
            elif part != segment:
                return None
        return found
