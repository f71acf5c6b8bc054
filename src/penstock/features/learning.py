"""Fit features on a table: read the columns that they learn from, and leave out what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.errors import ConfigError, InvalidItem
from penstock.features.columns import Column, Faults, read_numbers, read_tokens
from penstock.features.kinds import Bucketized, Feature, Numeric, Vocabulary
from penstock.features.learnt import Statistics, learn_numbers, learn_values, needs_fit
from penstock.features.lists import Lists, read_lists
from penstock.features.tables import RawTable, read_table
from penstock.features.values import CategoryReader, NumberReader


def learn(kinds: Mapping[str, Feature], table: Any) -> dict[str, Statistics]:
    """The statistics of each feature.

    Raises:
        ConfigError: a column is not there, or has no value to learn from.
        InvalidItem: a value is not of the feature's kind.
    """
    fitted = {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, (Numeric, Bucketized, Vocabulary)) and needs_fit(kind)
    }
    raw = read_table(table, [kind.column or name for name, kind in fitted.items()])
    for row, reason in raw.faults.items():
        raise InvalidItem(reason, path=f"$[{row}]")
    learnt = {name: _learn_feature(name, kind, raw) for name, kind in fitted.items()}
    return {name: learnt.get(name, Statistics()) for name in kinds}


def _learn_feature(name: str, kind: Numeric | Bucketized | Vocabulary, table: RawTable) -> Statistics:
    column = kind.column or name
    table.check_has(column, name)
    values: Column = table.column(column)
    lists = None
    if not isinstance(kind, Numeric) and kind.max_length is not None:
        lists = read_lists(values, kind.max_length)
        _raise_first(column, lists.faults, None)
        values = lists.flat
    try:
        if isinstance(kind, Vocabulary):
            return learn_values(kind, _count(column, kind, values, lists))
        numbers = read_numbers(values, NumberReader(kind.missing_values))
        _raise_first(column, numbers.faults, lists)
        found = numbers.array if numbers.missing is None else numbers.array[~numbers.missing]
        return learn_numbers(kind, found)
    except ConfigError as exc:
        raise ConfigError(f"the feature {name!r} cannot be fitted on the column {column!r}: {exc}") from None


def _count(column: str, kind: Vocabulary, values: Column, lists: Lists | None) -> Counter[str]:
    """How often each category is there."""
    tokens = read_tokens(values, CategoryReader(kind.missing_values))
    _raise_first(column, tokens.faults, lists)
    codes, counts = np.unique(tokens.codes[tokens.codes >= 0], return_counts=True)
    found: Counter[str] = Counter()
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        found[tokens.found[code]] += count
    return found


def _raise_first(column: str, faults: Faults, lists: Lists | None) -> None:
    """Raise for the first value that is refused."""
    if faults:
        place = min(faults)
        where = f"$[{place}].{column}" if lists is None else f"$[{lists.rows[place]}].{column}[{lists.places[place]}]"
        raise InvalidItem(faults[place], path=where)
