"""What a request asks for itself in its header: how long it may take, and how urgent it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from penstock.server.priority_field import urgency_of

MOST_REMEMBERED: Final = 256
LONGEST_REMEMBERED_BYTES: Final = 64

_urgencies: dict[bytes, int] = {}
"""What was read of a `Priority` field: few different ones are ever sent, and to read one takes microseconds."""


def read_urgency(value: bytes) -> int:
    """The urgency that a `Priority` field names, the usual one where it is not valid (RFC 9218)."""
    urgency = _urgencies.get(value)
    if urgency is None:
        urgency = urgency_of(value)
        if len(value) <= LONGEST_REMEMBERED_BYTES:
            if len(_urgencies) >= MOST_REMEMBERED:
                _urgencies.clear()
            _urgencies[value] = urgency
    return urgency


def read_time_limit(headers: Mapping[bytes, bytes], longest: float) -> float:
    """The seconds that a request may take: the smallest of `longest` and its fields; NaN if one is malformed."""
    asked = headers.get(b"x-request-timeout")
    if asked is None:
        return longest
    seconds = read_timeout(asked)
    return seconds if seconds < longest or math.isnan(seconds) else longest


def read_timeout(value: bytes) -> float:
    """The seconds that `value` names, or NaN if it is no positive, finite number."""
    try:
        seconds = float(value)
    except ValueError:
        return math.nan
    return seconds if 0 < seconds < math.inf and b"_" not in value else math.nan
