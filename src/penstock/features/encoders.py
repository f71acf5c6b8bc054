"""One feature of a table as arrays of the model's inputs: one class for each form of output."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from penstock.features.columns import Array, Faults, Mask, read_numbers, read_tokens
from penstock.features.hashing import Hashes, bucket_of, concatenate_hashes
from penstock.features.id_columns import IS_MISSING, IdColumn, IdSource, fill_missing, number_fill_value
from penstock.features.kinds import EMPTY, Crossed, Numeric, Text, has_weights
from penstock.features.learnt import Statistics
from penstock.features.tables import RawTable
from penstock.features.tensors import TensorSpec
from penstock.features.values import NumberReader, TextReader

SMALLEST_FLOAT32: Final = 2.0**-126
"""A smaller float32 becomes 0 with its sign: TensorFlow makes it 0, and the spec is one and the same everywhere."""
FLOAT32_BEGIN: Final = 2.0**-126 - 2.0**-151
"""From here on a number is rounded to the smallest float32; TensorFlow rounds first, and then looks whether it is 0."""
FLOAT32_END: Final = 2.0**128 - 2.0**103
"""From here on a number becomes infinite when it is rounded to float32."""
TOO_LARGE: Final = "is not a finite number as float32"


class TableBatch:
    """One table on its way through the encoders."""

    def __init__(self, table: RawTable) -> None:
        self.table = table
        self.arrays: dict[str, Array] = {}
        self.id_columns: dict[str, IdColumn] = {}
        """Of the features that are keys of crosses."""
        self.faults: dict[int, tuple[str, str]] = {row: ("", reason) for row, reason in table.faults.items()}
        """Where in the row is what is refused, and why, by row; the first that was found."""

    def refuse(self, where: str, faults: Faults) -> None:
        """Note why values of a column are refused."""
        for row, reason in faults.items():
            self.faults.setdefault(row, (f".{where}", reason))


class FeatureEncoder(Protocol):
    """Encodes one feature."""

    outputs: tuple[TensorSpec, ...]

    def encode(self, batch: TableBatch) -> None:
        """Put the arrays of `outputs` into the batch."""
        ...


def round_once(numbers: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float32], Mask | None]:
    """Numbers as float32, without subnormal ones, and which of them are too large for it."""
    fit = np.abs(numbers) < FLOAT32_END
    too_large = None
    if not fit.all():
        too_large = ~fit
        numbers = np.where(fit, numbers, 0.0)
    rounded = numbers.astype(np.float32)
    small = np.abs(numbers) < FLOAT32_BEGIN
    if small.any():
        rounded = np.where(small, np.copysign(np.float32(0), rounded), rounded)
    return rounded, too_large


def without_small(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sums of float32 as TensorFlow adds them: a subnormal sum is 0 with its sign."""
    return np.where(np.abs(numbers) < SMALLEST_FLOAT32, np.copysign(np.float32(0), numbers), numbers)


class NumericEncoder:
    """A `Numeric` feature: one float32 a row."""

    def __init__(self, name: str, kind: Numeric, statistics: Statistics) -> None:
        self.outputs: tuple[TensorSpec, ...] = (TensorSpec(name, "float32"),)
        self._name = name
        self._column = kind.column or name
        self._reader = NumberReader(kind.missing_values)
        self._fill_value = number_fill_value(kind, statistics)
        self._offset = statistics.offset
        self._factor = 1.0 / statistics.divisor  # once, as TensorFlow's optimizer does with a constant

    def encode(self, batch: TableBatch) -> None:
        """Scale in float64, and round once."""
        numbers, _, faults = fill_missing(
            read_numbers(batch.table.column(self._column), self._reader), self._fill_value
        )
        with np.errstate(over="ignore"):  # what becomes infinite is refused
            scaled = (numbers - self._offset) * self._factor
        rounded, too_large = round_once(scaled)
        if too_large is not None:
            for row in np.flatnonzero(too_large).tolist():
                faults.setdefault(row, f"{float(numbers[row])!r} {TOO_LARGE}")
        batch.refuse(self._column, faults)
        batch.arrays[self._name] = rounded


class TextEncoder:
    """A `Text` feature: one string a row."""

    def __init__(self, name: str, kind: Text) -> None:
        self.outputs: tuple[TensorSpec, ...] = (TensorSpec(name, "str"),)
        self._name = name
        self._column = kind.column or name
        self._reader = TextReader(kind.missing_values)
        self._fill_value = kind.fill_value

    def encode(self, batch: TableBatch) -> None:
        """Take the strings as they are."""
        tokens = read_tokens(batch.table.column(self._column), self._reader)
        if tokens.missing is not None and self._fill_value is None:
            for row in np.flatnonzero(tokens.missing).tolist():
                tokens.faults.setdefault(row, IS_MISSING)
        batch.refuse(self._column, tokens.faults)
        batch.arrays[self._name] = np.array([*tokens.found, self._fill_value or ""], dtype=object)[tokens.codes]


class SingleEncoder:
    """A feature with one id a row, as the id or as a one-hot row; or only as a key of crosses."""

    def __init__(
        self, name: str, column: str, source: IdSource, *, one_hot: bool, weighed: bool, is_input: bool, is_key: bool
    ) -> None:
        outputs = single_outputs(name, source.size, one_hot=one_hot, weighed=weighed)
        self.outputs: tuple[TensorSpec, ...] = outputs if is_input else ()
        self._name = name
        self._column = column
        self._source = source
        self._is_key = is_key

    def encode(self, batch: TableBatch) -> None:
        """Find the id of each row."""
        found = self._source.read(batch.table.column(self._column))
        batch.refuse(self._column, found.faults)
        if self._is_key:
            batch.id_columns[self._name] = found
        if self.outputs:
            put_single(batch, self.outputs, found.ids, found.empty)


def single_outputs(name: str, size: int | None, *, one_hot: bool, weighed: bool) -> tuple[TensorSpec, ...]:
    """The inputs of the model that one id a row makes: a one-hot row, or the id, with its weight if it is `weighed`."""
    if one_hot:
        return (TensorSpec(name, "float32", (size,)),)
    ids = TensorSpec(name, "int64")
    return (ids, TensorSpec(f"{name}_weight", "float32")) if weighed else (ids,)


def put_single(batch: TableBatch, outputs: tuple[TensorSpec, ...], ids: Array, empty: Mask | None) -> None:
    """Put the arrays of `single_outputs` into the batch; the id of an empty value is 0."""
    first = outputs[0]
    if first.shape:
        (size,) = first.shape
        assert size is not None
        counts = np.zeros((len(ids), size), dtype=np.float32)
        counts[np.arange(len(ids)), ids] = 1 if empty is None else ~empty
        batch.arrays[first.name] = counts
    elif len(outputs) == 1:
        batch.arrays[first.name] = ids
    else:
        live = np.ones(len(ids), dtype=np.bool_) if empty is None else ~empty
        batch.arrays[first.name] = np.where(live, ids, 0)
        batch.arrays[outputs[1].name] = live.astype(np.float32)


class CrossEncoder:
    """A `Crossed` feature."""

    def __init__(self, name: str, kind: Crossed, columns: tuple[str, ...]) -> None:
        self.outputs = single_outputs(name, kind.buckets, one_hot=kind.one_hot, weighed=has_weights(kind))
        self._name = name
        self._kind = kind
        self._columns = columns
        """The column of each key."""

    def encode(self, batch: TableBatch) -> None:
        """Hash the keys of each row, one after the other, beginning with the hash key."""
        hashes: Hashes = np.full(batch.table.size, self._kind.hash_key, dtype=np.uint64)
        missing: Mask | None = None
        for key, column in zip(self._kind.keys, self._columns, strict=True):
            found = batch.id_columns[key]
            assert found.keys is not None
            hashes = concatenate_hashes(hashes, found.keys)
            if found.empty is not None:
                missing = found.empty if missing is None else missing | found.empty
                if self._kind.fill_value is not EMPTY:
                    rows = np.flatnonzero(found.empty).tolist()
                    batch.refuse(column, dict.fromkeys(rows, f"{IS_MISSING}, and {self._name!r} is crossed with it"))
        ids = bucket_of(hashes, self._kind.buckets)
        put_single(batch, self.outputs, ids, missing)
