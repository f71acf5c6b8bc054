"""A table in any of its forms, as columns.

A table is a list of rows, a dict of columns, or a DataFrame.  A row is a dict, or a `msgspec.Struct` whose fields count
by the names that they have on the wire.  A DataFrame is what has `columns` and gives each by its name: that of pandas
or polars, and no library is imported for it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec
import numpy as np

from penstock.errors import ConfigError
from penstock.features.columns import Array, Column, column_values
from penstock.features.lists import as_list
from penstock.features.values import plain, shown_value
from penstock.spelling import nearest

NARROW: Final = re.compile(r"\b(float(?P<bits>16|32)|(?P<half>half)?float)\b", re.IGNORECASE)
"""A narrow float in the name of a dtype of pandas, polars or pyarrow, as `Float32`, `List(Float32)` or `halffloat`."""


class RawTable:
    """The columns that a spec reads, each once."""

    def __init__(self, size: int, columns: Mapping[str, Column], *, known: Sequence[str], faults: Mapping[int, str]):
        self.size = size
        self.known = known
        """The names of all columns that the table has; of rows, those that were asked for."""
        self.faults = faults
        """Why a row is none."""
        self._columns = columns

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def column(self, name: str) -> Column:
        """The column; one that the table has not is missing in every row."""
        found = self._columns.get(name)
        return [None] * self.size if found is None else found

    def check_has(self, name: str, feature: str) -> None:
        """That there is a column that a feature cannot do without.

        Raises:
            ConfigError: there is none; the message has the nearest name.
        """
        if name in self._columns:
            return
        near = nearest(name, [str(known) for known in self.known], 0.6)
        hint = f"did you mean {near!r}?" if near is not None else f"it has {shown_value(list(self.known))}"
        raise ConfigError(f"the table has no column {name!r}, which the feature {feature!r} needs; {hint}")


def read_table(table: Any, names: Sequence[str], *, strict: bool = False) -> RawTable:
    """The named columns of a table.

    Args:
        table: a list of rows, a dict of columns, or a DataFrame.
        names: the columns to take.
        strict: whether a row with another key is refused.

    Raises:
        ConfigError: it is no table, has two columns of one of the names, or its columns are of several lengths.
    """
    if isinstance(table, Mapping):
        return _from_columns({name: table[name] for name in names if name in table}, list(table), table)
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        known = list(table.columns)
        for name in names:
            if known.count(name) > 1:
                raise ConfigError(f"the table has {known.count(name)} columns of the name {name!r}: leave one of them")
        return _from_columns({name: table[name] for name in names if name in known}, known, table)
    if isinstance(table, (list, tuple)):
        return _from_rows(table, names, strict=strict)
    raise ConfigError(
        "a table must be a list of rows, a dict of columns, or a DataFrame, got "
        f"{type(table).__name__} {shown_value(table)}"
    )


def _from_columns(found: Mapping[str, Any], known: Sequence[Any], table: Any) -> RawTable:
    columns = {name: _as_column(name, column) for name, column in found.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"the columns of a table must have the same length, got {lengths}")
    if lengths:
        size = next(iter(lengths.values()))
    elif isinstance(table, Mapping):
        size = len(_as_column(known[0], table[known[0]])) if known else 0
    else:
        size = len(table)
    return RawTable(size, columns, known=known, faults={})


def _as_column(name: str, column: Any) -> Column:
    """A column in any of its forms as a list or an array."""
    if isinstance(column, list):
        return column
    if not _is_sequence(column):
        raise ConfigError(f"the column {name!r} must be a sequence, got {type(column).__name__} {shown_value(column)}")
    narrow = _narrow_dtype(column)
    try:
        if narrow is not None:
            return _narrow_values(column, narrow)
        exact = _exact_values(column)
        if exact is not None:
            return exact
        if isinstance(column, np.ma.MaskedArray):
            return [None if value is np.ma.masked else value for value in column]
        if isinstance(column, (np.ndarray, array, memoryview)) or hasattr(column, "__array__"):
            return _array_column(np.asarray(column))
    except (TypeError, RuntimeError) as error:  # a tensor of a dtype that numpy has not, or that is being trained
        raise ConfigError(f"the column {name!r} cannot be read as an array: {error}") from error
    return list(column)


def _array_column(values: Array) -> Column:
    if values.ndim == 1:
        # objects and texts are read faster from a list
        return column_values(values) if values.dtype.kind in "OU" else values
    return list(values)


def _is_sequence(column: Any) -> bool:
    """Whether the values have an order and a number; those of a set come in the order of their hashes."""
    if isinstance(column, np.ndarray):
        return column.ndim > 0
    if not isinstance(column, Iterable) or isinstance(column, (str, bytes, Mapping, AbstractSet)):
        return False
    return isinstance(column, Sized) or hasattr(column, "__array__")


def _narrow_dtype(column: Any) -> type[np.floating[Any]] | None:
    """float16 or float32, where a column has such numbers and its dtype is not numpy's: of pandas, polars, pyarrow."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if dtype is None or isinstance(dtype, np.dtype):
        return None
    categories = getattr(dtype, "categories", None)
    found = NARROW.search(str(getattr(categories, "dtype", dtype)))
    if found is None:
        return None
    return np.float16 if found["half"] or found["bits"] == "16" else np.float32


def _narrow_values(column: Any, dtype: type[np.floating[Any]]) -> Column:
    """A column of such numbers, or of lists of them, without their precision lost, as `_exact_values` would.

    Its array has NaN where a value is missing, and so has one list in a table of lists of one length.
    """
    values = np.asarray(column)
    if values.ndim == 1 and values.dtype != object:
        return values.astype(dtype)
    exact = _exact_values(column)
    if exact is None:
        return _array_column(values)
    return [None if value is None else cell for value, cell in zip(exact, values, strict=True)]


def _exact_values(column: Any) -> list[Any] | None:
    """The values of a column whose array has floats for integers where a value is missing; None of any other column."""
    if isinstance(getattr(column, "dtype", None), np.dtype):
        return None
    for name in ("to_list", "to_pylist"):  # a column of pandas' own dtypes or of polars; an array of pyarrow
        if hasattr(column, name):
            return list(getattr(column, name)())
    # What a column of pandas' own dtypes is made of; a tensor, whose dtype is not numpy's either, has no `isna`
    return list(column) if hasattr(column, "dtype") and hasattr(column, "isna") else None


def _from_rows(rows: Sequence[Any], names: Sequence[str], *, strict: bool) -> RawTable:
    faults: dict[int, str] = {}
    types = set(map(type, rows))
    if types != {dict}:
        kind = next(iter(types), None)
        if len(types) == 1 and kind is not None and issubclass(kind, msgspec.Struct):
            return RawTable(len(rows), _struct_columns(rows, kind, names), known=names, faults=faults)
        rows = [_row_as_mapping(row, place, faults) for place, row in enumerate(rows)]
    if strict:
        _find_unknown(rows, names, faults)
    return RawTable(len(rows), {name: [row.get(name) for row in rows] for name in names}, known=names, faults=faults)


def _struct_columns(rows: Sequence[Any], kind: type[msgspec.Struct], names: Sequence[str]) -> dict[str, Column]:
    """Columns from rows of one class: the usual case of a server, which reads every request as the same class."""
    fields = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    columns: dict[str, Column] = {}
    for name in names:
        field = fields.get(name)
        columns[name] = [None] * len(rows) if field is None else [getattr(row, field) for row in rows]
    return columns


def _row_as_mapping(row: Any, place: int, faults: dict[int, str]) -> Mapping[str, Any]:
    if isinstance(row, msgspec.Struct):
        fields = zip(row.__struct_encode_fields__, row.__struct_fields__, strict=True)
        return {name: getattr(row, field) for name, field in fields}
    if isinstance(row, Mapping):
        return row
    faults[place] = f"expected an object, got {type(row).__name__} {shown_value(row)}"
    return {}


def _find_unknown(rows: Iterable[Mapping[str, Any]], names: Sequence[str], faults: dict[int, str]) -> None:
    known = frozenset(names)
    for place, row in enumerate(rows):
        if not row.keys() <= known:
            faults.setdefault(place, _unknown_key(next(key for key in row if key not in known), names))


def _unknown_key(key: Any, names: Collection[str]) -> str:
    near = nearest(key, names, 0.6) if isinstance(key, str) else None
    return f"there is no feature column {shown_value(key)}" + ("" if near is None else f": did you mean {near!r}?")


def plain_rows(table: RawTable, names: Sequence[str]) -> list[dict[str, Any]]:
    """The table as rows of plain Python values, with None for what is missing."""
    columns = [[_plain_cell(value) for value in column_values(table.column(name))] for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else []


def _plain_cell(value: Any) -> Any:
    elements = as_list(value)
    return plain(value) if elements is None else [_plain_cell(element) for element in elements]
