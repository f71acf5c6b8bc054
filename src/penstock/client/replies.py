"""What came back of one try: an answer, or none.

Names of header fields are in lower case.  A field that came twice has its values joined by ", ".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_OF_OTHERS: Final = frozenset({502, 503, 504})
"""Refusals of proxies, and of other servers that are at an address where ours was."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status says that what was asked has been done."""
        return 200 <= self.status < 300

    @property
    def may_have_moved(self) -> bool:
        """Whether the server's name may lead to another one by now: 421, or no server of ours has written a refusal."""
        return self.status == 421 or (self.status in _OF_OTHERS and "x-should-retry" not in self.headers)


@dataclass(frozen=True, slots=True)
class NoReply:
    """A connection that could not be had, or that was lost before the whole answer was there."""

    sent: bool
    """Whether the request, or a part of it, was sent; False is a connection that never was."""
    detail: str
