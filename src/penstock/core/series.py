"""Counters with labels: which there may be, and what has been counted.  No clock, no lock.

Contract
--------
* A total never decreases, and a series that is there stays.
* At most MOST_SERIES series of one stage are those of its own counters, and as many those of Penstock's.
* Names and labels are such as Prometheus takes, so that one wrong name cannot make `/metrics` unreadable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from penstock.errors import ConfigError

MOST_SERIES: Final = 1000
"""Most series of a stage: each costs some hundred bytes here, and one sample at every scrape."""
MOST_LABELS: Final = 10
LONGEST_NAME: Final = 100
"""Most characters of a counter's name, and of a label's."""
LONGEST_VALUE: Final = 200
"""Most characters of a label's value; what is longer is cut there."""
LARGEST_AMOUNT: Final = float(1 << 53)
"""Most that is counted at once: above it a float is no exact count."""
USER: Final = "user_"
"""Begins the name of each counter of a user's stage, so that none of Penstock's can be meant by it."""
OWN: Final = {
    "rows_fetched": "Distinct rows requested by batches, by table, found or not.",
    "rows_missing": "Requested rows that the table does not have and that were filled by its rule for missing rows.",
    "rows_seconds": "Seconds spent on fetching rows, by table; a fetch from several tables counts for each of them.",
}
"""Penstock's own counters of a stage, and the help text of each."""

Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a counter, and its labels in the order of their names.

`penstock_NAME_total` is what `/metrics` calls it.
"""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TAKEN: Final = ("service", "stage")
_ENDINGS: Final = ("_total", "_created")
"""Endings that the samples of a counter get, so that its name has none of them."""


class SeriesCounts:
    """Totals of series, of which at most `most` are those of users."""

    def __init__(self, most: int = MOST_SERIES) -> None:
        self._most = most
        self._totals: dict[Series, float] = {}
        self._users = 0

    def __contains__(self, series: Series) -> bool:
        return series in self._totals

    def items(self) -> Iterator[tuple[Series, float]]:
        """Each series with its total, in the order in which they came."""
        return iter(self._totals.items())

    def add(self, series: Series, amount: float) -> bool:
        """Count `amount` more; False if there is no place for one more series.

        Raises:
            ConfigError: there can be no such series, or no such amount.
        """
        total = self._totals.get(series)
        if not 0.0 <= amount <= LARGEST_AMOUNT:
            raise ConfigError(f"a count must be a number from 0 to 2**53, got {amount}")
        if total is None:
            check_series(series)
            of_user = series[0].startswith(USER)
            there = self._users if of_user else len(self._totals) - self._users
            if there >= self._most:
                return False
            self._users += of_user
            total = 0.0
        self._totals[series] = total + amount
        return True


def check_series(series: Series) -> None:
    """Raise ConfigError where there can be no such series; one of a user begins with `USER`."""
    name, labels = series
    if name not in OWN:
        told = name.removeprefix(USER)
        if not name.startswith(USER) or not _NAME.fullmatch(told) or len(told) > LONGEST_NAME:
            raise ConfigError(
                f"{told!r:.120} is not a valid counter name: it must start with a letter from a to z, may have such "
                f"letters, digits and underscores, and at most {LONGEST_NAME} characters"
            )
        for ending in _ENDINGS:
            if told.endswith(ending):
                raise ConfigError(f"{told!r} is not a valid counter name: remove {ending!r} at its end")
    if len(labels) > MOST_LABELS:
        raise ConfigError(f"a counter has at most {MOST_LABELS} labels, {name.removeprefix(USER)!r} got {len(labels)}")
    for label, value in labels:
        if label in _TAKEN:
            raise ConfigError(f"{label!r} is reserved: every counter has this label")
        if not _LABEL.fullmatch(label) or label.startswith("__") or len(label) > LONGEST_NAME:
            raise ConfigError(
                f"{label!r:.120} is not a valid label: it must start with a letter or one underscore, may have "
                f"letters, digits and underscores, and at most {LONGEST_NAME} characters"
            )
        if len(value) > LONGEST_VALUE:
            raise ConfigError(f"the label {label!r} has a value of more than {LONGEST_VALUE} characters")


def series_of(name: str, labels: Mapping[str, str]) -> Series:
    """The series of `name` with these labels, in whatever order they are given."""
    return name, tuple(sorted(labels.items()))


def amount_of(n: Any) -> float:
    """The number that `n` is, of whatever library; ConfigError where it is none that can be counted."""
    try:
        # `float` reads texts too, and a text is no number that somebody has counted.
        amount = math.nan if isinstance(n, (str, bytes, bytearray)) else float(n)
    except (TypeError, ValueError, OverflowError):
        amount = math.nan
    if not 0.0 <= amount <= LARGEST_AMOUNT:
        raise ConfigError(f"a count must be a number from 0 to 2**53, got {n!r:.120}")
    return amount


def shown(series: Series) -> str:
    """The series as `/metrics` has it, but for the labels that every series of a stage has."""
    name, labels = series
    inner = ",".join([f"{label}={value!r}" for label, value in labels])
    return f"penstock_{name}_total{{{inner}}}" if inner else f"penstock_{name}_total"
