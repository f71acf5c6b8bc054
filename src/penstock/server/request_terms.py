"""What a request asks for itself in its header: how long it may take, and how urgent it is."""

from __future__ import annotations

import math
from typing import Final

from penstock.server.priority_field import urgency_of

MOST_REMEMBERED: Final = 256
LONGEST_REMEMBERED_BYTES: Final = 64

_urgencies: dict[bytes, int] = {}
"""What was read of a `Priority` field: few different ones are ever sent, and to read one takes microseconds."""

REQUEST_TIMEOUT: Final = b"x-request-timeout"
GRPC_TIMEOUT: Final = b"grpc-timeout"
ENVOY_TIMEOUT: Final = b"x-envoy-expected-rq-timeout-ms"

GRPC_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
"""The seconds of each unit of gRPC."""
GRPC_DIGITS: Final = 8
"""Most digits of gRPC's number."""
ENVOY_DIGITS: Final = 20
"""Most digits of Envoy's number, which has 64 bits; Python's `int` reads no more than some thousands."""


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


def read_time_limit(headers: dict[bytes, bytes], longest: float) -> float:
    """The seconds that a request may take: the smallest of `longest` and its fields; NaN if one is malformed.

    `malformed_limit` says which one.
    """
    limit = longest
    asked = headers.get(REQUEST_TIMEOUT)
    if asked is not None:
        limit = _smaller(limit, read_timeout(asked))
    asked = headers.get(GRPC_TIMEOUT)
    if asked is not None:
        limit = _smaller(limit, read_grpc_timeout(asked))
    asked = headers.get(ENVOY_TIMEOUT)
    if asked is not None:
        limit = _smaller(limit, read_envoy_timeout(asked))
    return limit


def malformed_limit(headers: dict[bytes, bytes]) -> str:
    """A sentence that names the first malformed field of those that `read_time_limit` reads; "" where none is."""
    if math.isnan(read_timeout(headers.get(REQUEST_TIMEOUT, b"1"))):
        return "X-Request-Timeout must be a positive number of seconds"
    if math.isnan(read_grpc_timeout(headers.get(GRPC_TIMEOUT, b"1S"))):
        return "grpc-timeout must be a positive number of 1 to 8 digits and a unit, one of H M S m u n, such as 1500m"
    if math.isnan(read_envoy_timeout(headers.get(ENVOY_TIMEOUT, b"1"))):
        return "x-envoy-expected-rq-timeout-ms must be a whole number of milliseconds; 0 is no limit"
    return ""


def read_timeout(value: bytes) -> float:
    """The seconds that an `X-Request-Timeout` names, or NaN if it is no positive, finite number."""
    try:
        seconds = float(value)
    except ValueError:
        return math.nan
    return seconds if 0 < seconds < math.inf and b"_" not in value else math.nan


def read_grpc_timeout(value: bytes) -> float:
    """The seconds that a `grpc-timeout` names, or NaN if it is none.

    It is a positive integer of at most 8 digits, and a unit, with nothing between (gRPC's PROTOCOL-HTTP2.md).
    """
    digits = value[:-1]
    unit = GRPC_UNITS.get(value[-1:])
    if unit is None or len(digits) > GRPC_DIGITS or not digits.isdigit():
        return math.nan
    number = int(digits)
    return number * unit if number else math.nan


def read_envoy_timeout(value: bytes) -> float:
    """The seconds that an `x-envoy-expected-rq-timeout-ms` names, inf for 0, or NaN if it is no whole number."""
    if len(value) > ENVOY_DIGITS or not value.isdigit():
        return math.nan
    return int(value) / 1000 or math.inf


def _smaller(one: float, other: float) -> float:
    """The smaller number; NaN where one is NaN."""
    return other if other < one or math.isnan(other) else one
