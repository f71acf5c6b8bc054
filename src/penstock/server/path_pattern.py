"""A path with variables, as ``/jobs/{id}/result``: which paths fit it, and what stands in the variables' places.

A variable is a whole segment.  What stands in its place is 1 to 128 of ``A-Z a-z 0-9 . _ -``, as a request's id is.
Nothing is decoded: a path with any other character there, a percent sign too, does not fit.
"""

from __future__ import annotations

import re

_VALUE = re.compile(rb"[A-Za-z0-9._-]{1,128}")


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
