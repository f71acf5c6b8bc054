"""What a feature learns from the column that it is fitted on.

Missing values are left out.  A mean, a deviation and a quantile are taken in float64; the deviation is that of the
whole column, without Bessel's correction.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError
from penstock.features.kind_checks import checked_items, checked_value, store
from penstock.features.kinds import (
    MEAN,
    SMALLEST_NORMAL,
    Bucketized,
    Feature,
    Numeric,
    Vocabulary,
    checked_boundaries,
    checked_vocabulary,
)
from penstock.features.values import NumberReader, shown_value

LEAST_SPREAD: Final = 2.0**-500
GREATEST_SPREAD: Final = 2.0**500
"""Between them neither a divisor nor its reciprocal leaves the normal floats, where TensorFlow counts as numpy does."""

NOTHING_THERE: Final = "there is no value to fit on"


@dataclass(frozen=True, slots=True)
class Statistics:
    """What one feature has learnt; a feature that learns nothing has the values that change nothing."""

    offset: float = 0.0
    """What is subtracted from a number."""
    divisor: float = 1.0
    """What a number is divided by afterwards: it is multiplied with the reciprocal."""
    mean: float | None = None
    """What stands for a missing number, where that is `MEAN`."""
    boundaries: tuple[float, ...] | None = None
    """The boundaries that the quantiles gave."""
    values: tuple[str, ...] | None = None
    """The known values, in order."""

    def __post_init__(self) -> None:
        offset = _checked_number("offset", self.offset)
        divisor = _checked_number("divisor", self.divisor)
        if 0 < abs(offset) < SMALLEST_NORMAL:
            raise ConfigError(f"offset must be 0 or at least 2**-1022 from 0, got {offset!r}")
        if not LEAST_SPREAD <= divisor <= GREATEST_SPREAD:
            raise ConfigError(f"divisor must be between 2**-500 and 2**500, got {divisor!r}")
        store(
            self,
            offset=offset,
            divisor=divisor,
            mean=None if self.mean is None else _checked_number("mean", self.mean),
            boundaries=None if self.boundaries is None else checked_boundaries(self.boundaries),
            values=None if self.values is None else checked_learnt(self.values),
        )


def checked_learnt(values: Any) -> tuple[str, ...]:
    """Known values; there may be none where none was frequent enough."""
    found = checked_items("values", values)
    return checked_vocabulary(found) if found else ()


def _checked_number(what: str, value: Any) -> float:
    return checked_value(what, value, NumberReader())


def needs_fit(kind: Feature) -> bool:
    """Whether the kind has something to learn."""
    match kind:
        case Numeric():
            return kind.scale is not None or kind.fill_value is MEAN
        case Bucketized():
            return kind.quantiles is not None or kind.fill_value is MEAN
        case Vocabulary():
            return kind.values is None
        case _:
            return False


def check_statistics(kind: Feature, statistics: Statistics) -> None:
    """That the statistics are those that the kind needs, and no others.

    Raises:
        ConfigError: one is missing, or one is there that means nothing for the kind.
    """
    wanted = {
        "mean": isinstance(kind, (Numeric, Bucketized)) and kind.fill_value is MEAN,
        "boundaries": isinstance(kind, Bucketized) and kind.quantiles is not None,
        "values": isinstance(kind, Vocabulary) and kind.values is None,
    }
    for name, needed in wanted.items():
        if (getattr(statistics, name) is not None) != needed:
            raise ConfigError(f"{type(kind).__name__} {'needs' if needed else 'has no'} {name}")
    scaled = isinstance(kind, Numeric) and kind.scale is not None
    if not scaled and (statistics.offset, statistics.divisor) != (0.0, 1.0):
        raise ConfigError(f"a {type(kind).__name__} that is not scaled has no offset and no divisor")


def learn_numbers(kind: Numeric | Bucketized, numbers: npt.NDArray[np.float64]) -> Statistics:
    """The statistics of a column of numbers, without those that are missing.

    Raises:
        ConfigError: there is none, or they are too large.
    """
    if not numbers.size:
        raise ConfigError(NOTHING_THERE)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below, in words
        mean = float(np.mean(numbers)) if kind.fill_value is MEAN else None
        found: dict[str, Any] = {"mean": mean}
        if isinstance(kind, Numeric):
            found["offset"], found["divisor"] = _scale(kind, numbers)
        elif kind.quantiles is not None:
            found["boundaries"] = _quantiles(numbers, kind.quantiles)
    values = [mean or 0.0, found.get("offset", 0.0), found.get("divisor", 1.0), *found.get("boundaries", ())]
    if not all(map(math.isfinite, values)) or found.get("divisor", 1.0) > GREATEST_SPREAD:
        raise ConfigError("the numbers are too large: their mean or spread is not a finite number")
    return Statistics(**found)


def _scale(kind: Numeric, numbers: npt.NDArray[np.float64]) -> tuple[float, float]:
    """What to subtract, and what to divide by afterwards."""
    if kind.scale is None:
        return 0.0, 1.0
    if kind.scale == "standard":
        offset, spread = float(np.mean(numbers)), float(np.std(numbers))
        if numbers.min() == numbers.max():  # rounding may give a constant column a spread
            offset, spread = float(numbers[0]), 0.0
    else:
        offset = float(numbers.min())
        spread = float(numbers.max() - offset)
    return _normal(offset), 1.0 if spread < LEAST_SPREAD else spread


def _quantiles(numbers: npt.NDArray[np.float64], buckets: int) -> tuple[float, ...]:
    """The boundaries between so many buckets, each boundary once."""
    cuts = np.quantile(numbers, np.arange(1, buckets) / buckets)
    return tuple(sorted({_normal(float(cut)) for cut in cuts}))


def _normal(number: float) -> float:
    """The number, or 0 where it is too small for TensorFlow."""
    return 0.0 if abs(number) < SMALLEST_NORMAL else number


def learn_values(kind: Vocabulary, counts: Counter[str]) -> Statistics:
    """The most frequent values of a column, by count and then by value."""
    assert kind.max_size is not None
    if not counts:
        raise ConfigError(NOTHING_THERE)
    frequent = [(-count, value) for value, count in counts.items() if count >= kind.min_count]
    values = tuple(value for _, value in sorted(frequent)[: kind.max_size])
    if not values and not kind.num_oov_indices:
        raise ConfigError(
            f"no value occurs {kind.min_count} times, and with num_oov_indices=0 there would be no id: lower min_count"
        )
    if kind.unknown is not None and isinstance(kind.unknown, str) and kind.unknown not in values:
        raise ConfigError(f"unknown={shown_value(kind.unknown)} is not one of the {len(values)} fitted values")
    return Statistics(values=values)
