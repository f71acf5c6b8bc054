"""Rows on each boundary of `Bucketized` features, and a step beside it: where two encoders differ first.

They are made of the reference rows, so all else in them is what the model knows.  They are compared like validation
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.codec.numpy_ import is_narrow
from penstock.features.columns import Column
from penstock.features.encoding import columns_of
from penstock.features.feature_spec import Features
from penstock.features.kinds import Bucketized
from penstock.features.lists import as_list
from penstock.features.tables import read_table

Table = dict[str, list[Any]]


def boundary_tables(features: Features, probes: Any) -> list[Table]:
    """Tables of such rows that the features take: in float64, and in float16 or float32 where a column is of that.

    Args:
        features: the fitted spec.
        probes: a table with a row at least.
    """
    rows = features.to_rows(probes)
    cuts = _boundaries(features)
    raw = read_table(probes, list(cuts))
    narrow = {column: dtype for column in cuts if (dtype := _narrow_dtype(raw.column(column))) is not None}
    steps = [{column: _beside(found, np.float64) for column, found in cuts.items()}]
    if narrow:
        steps.append({column: _beside(cuts[column], dtype) for column, dtype in narrow.items()})
    tables = [_taken(features, _table(features, rows, values)) for values in steps if any(values.values())]
    return [table for table in tables if next(iter(table.values()))]


def _boundaries(features: Features) -> dict[str, list[float]]:
    """The boundaries of all features that read a column."""
    found: dict[str, set[float]] = {}
    for name, kind in features.features.items():
        if isinstance(kind, Bucketized):
            learnt = features.statistics[name].boundaries
            found.setdefault(columns_of(name, kind)[0], set()).update(kind.boundaries or learnt or ())
    return {column: sorted(boundaries) for column, boundaries in found.items()}


def _narrow_dtype(column: Column) -> np.dtype[Any] | None:
    """float16 or float32, where a column has such numbers."""
    if isinstance(column, np.ndarray):
        return column.dtype if is_narrow(column.dtype) else None
    return next((one.dtype for one in _numbers(column) if isinstance(one, np.floating) and is_narrow(one.dtype)), None)


def _numbers(column: Iterable[Any]) -> Iterable[Any]:
    """The values of a column, and those of its lists."""
    for value in column:
        elements = as_list(value)
        yield from [value] if elements is None else elements


def _beside(boundaries: Sequence[float], dtype: Any) -> list[Any]:
    """Each boundary as a number of `dtype`, the number before it, and the number after it."""
    with np.errstate(over="ignore"):  # a float16 ends at 65504
        on = np.array(boundaries).astype(dtype)
        found = np.unique([np.nextafter(on, -on.dtype.type(np.inf)), on, np.nextafter(on, on.dtype.type(np.inf))])
    return list(found[np.isfinite(found)])


def _table(features: Features, rows: Sequence[Mapping[str, Any]], values: Mapping[str, list[Any]]) -> Table:
    """As many rows as the longest column of values has; those of a shorter one come again, and so do the rows."""
    size = max(map(len, values.values()))
    table = {column: [rows[place % len(rows)][column] for place in range(size)] for column in features.columns}
    for name, kind in features.features.items():
        if not isinstance(kind, Bucketized) or not values.get(columns_of(name, kind)[0]):
            continue
        column, *weights = columns_of(name, kind)
        cells = [values[column][place % len(values[column])] for place in range(size)]
        table[column] = cells if kind.max_length is None else [[cell] for cell in cells]
        table |= {weight: [[1.0]] * size for weight in weights}
    return table


def _taken(features: Features, table: Table) -> Table:
    """The rows that the features take: another feature may refuse a number in its column."""
    kept = features.encode_rows(features.to_rows(table)).kept
    return {column: [values[place] for place in kept] for column, values in table.items()}
