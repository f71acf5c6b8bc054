"""Read the values of a feature from the slots of its column, in TensorFlow.

Contract
--------
* A value is missing where `encode` calls it missing: NaN, and what equals one of `missing_values`.  A string or an id
  is missing by `missing_values` alone.
* What `encode` refuses fails an assertion that names the column.  A value that is missing, or that lies behind the end
  of a list, fails none.

TensorFlow's kernels take a number that is too small for a normal float as zero, on most machines.  So such numbers are
found by their bits here, and the answer is one and the same on every machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf

from penstock.features.encoders import FLOAT32_BEGIN, FLOAT32_END, SMALLEST_FLOAT32, TOO_LARGE
from penstock.features.kinds import SMALLEST_NORMAL, Bucketized, Ids, Numeric, Text
from penstock.features.learnt import Statistics
from penstock.features.tensorflow_raw import RawKind, refuse
from penstock.features.values import (
    LARGEST_WHOLE_FLOAT,
    CategoryReader,
    IdReader,
    NumberReader,
    TextReader,
    ValueReader,
)

LEAST_INT64: Final = -(2**63)
WITHOUT_SIGN: Final = 2**63 - 1
"""All bits of a float64 but its sign."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one feature: `(batch,)`, or `(batch, max_length)`."""

    tensor: Any
    live: Any
    """Which are there; the others may be anything."""
    missing: Any
    """Which are missing, in a slot that has a value."""


def read(kind: RawKind, column: str, slots: Any, present: Any) -> Values:
    """The values of a feature, in the dtype that it computes with; `present` says which slots have a value."""
    missing = tf.zeros_like(present)
    if slots.dtype != tf.string:
        missing |= _among(slots, [value for value in kind.missing_values if not isinstance(value, str)])
    if slots.dtype == tf.float64:
        missing |= tf.math.is_nan(slots)
    reader, tokens = _tokens(kind, column, slots, present & ~missing)
    missing |= _among(tokens, reader.ignored)
    return Values(tokens, present & ~missing, present & missing)


def _tokens(kind: RawKind, column: str, slots: Any, live: Any) -> tuple[ValueReader[Any], Any]:
    """What reads the kind's values in `encode`, and what these values stand for: numbers, integers, or strings."""
    if isinstance(kind, Numeric | Bucketized):
        refuse(live & tf.math.is_inf(slots), f"{column}: expected a finite number, got infinity")
        return NumberReader(kind.missing_values), slots
    if slots.dtype == tf.float64:
        slots = _integers(slots, live, column)
    if isinstance(kind, Ids):
        return IdReader(kind.missing_values), slots
    if slots.dtype == tf.int64:
        return CategoryReader(kind.missing_values), tf.strings.as_string(slots)
    # In `encode` a string is characters.  Bytes that are none are refused here too, instead of hashed.
    characters = tf.strings.unicode_transcode(slots, "UTF-8", "UTF-8", errors="replace")
    refuse(live & (characters != slots), f"{column}: a string is not UTF-8")
    return TextReader(kind.missing_values) if isinstance(kind, Text) else CategoryReader(kind.missing_values), slots


def _integers(slots: Any, live: Any, column: str) -> Any:
    fits = (tf.abs(slots) <= LARGEST_WHOLE_FLOAT) & (_ordered(tf.floor(slots)) == _ordered(slots))
    refuse(live & ~fits, f"{column}: expected a whole number of at most 2**53")
    return tf.cast(tf.where(fits, slots, tf.zeros_like(slots)), tf.int64)


def _among(slots: Any, values: Iterable[Any]) -> Any:
    """Where a tensor equals one of some values, as Python compares them."""
    found = tf.zeros_like(slots, tf.bool)
    for value in values:
        if slots.dtype == tf.string or (slots.dtype == tf.float64 and math.isinf(value)):
            found |= slots == value
        elif slots.dtype == tf.int64 and LEAST_INT64 <= value <= WITHOUT_SIGN and int(value) == value:
            found |= slots == int(value)
        elif slots.dtype == tf.float64 and abs(value) <= sys.float_info.max and float(value) == value:
            found |= _ordered(slots) == _ordered(tf.constant(float(value), tf.float64))
    return found


def _ordered(numbers: Any) -> Any:
    """Integers that are ordered as the float64 numbers are, and equal where these are."""
    bits = tf.bitcast(numbers, tf.int64)
    return tf.where(bits < 0, LEAST_INT64 - bits, bits)


def without_subnormals(numbers: Any) -> Any:
    """The numbers, with 0 for one that is no normal float64."""
    size = tf.bitwise.bitwise_and(tf.bitcast(numbers, tf.int64), WITHOUT_SIGN)
    return tf.where(size < _bits(SMALLEST_NORMAL), tf.zeros_like(numbers), numbers)


def rounded_to_float32(column: str, numbers: Any, learnt: Statistics, live: Any) -> Any:
    """The numbers scaled in float64, and rounded once to float32 without subnormals."""
    if (learnt.offset, learnt.divisor) != (0.0, 1.0):
        numbers = (numbers - learnt.offset) * (1.0 / learnt.divisor)
    refuse(live & ~(tf.abs(numbers) < FLOAT32_END), f"{column}: a number {TOO_LARGE}")
    bits = tf.bitcast(numbers, tf.int64)
    size = tf.bitwise.bitwise_and(bits, WITHOUT_SIGN)
    small = tf.where(size < _bits(FLOAT32_BEGIN), tf.constant(0, tf.int64), _bits(SMALLEST_FLOAT32))
    signed = tf.bitwise.bitwise_or(small, tf.bitwise.bitwise_and(bits, LEAST_INT64))
    return tf.cast(tf.bitcast(tf.where(size < _bits(SMALLEST_FLOAT32), signed, bits), tf.float64), tf.float32)


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))
