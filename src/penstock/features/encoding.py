"""A fitted spec, planned once: an encoder for each feature, and how their arrays become the inputs of the model.

One way leads through a table, whoever asks.  `encode_all` raises at the first bad row; `encode_good` leaves bad rows
out and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import InvalidItem
from penstock.features.columns import Array
from penstock.features.encoders import (
    CrossEncoder,
    FeatureEncoder,
    NumericEncoder,
    SingleEncoder,
    TableBatch,
    TextEncoder,
)
from penstock.features.id_columns import BucketSource, IdSource, IntegerSource, WordSource
from penstock.features.kinds import Bucketized, Crossed, Feature, Hashed, Ids, Numeric, Text, Vocabulary, has_weights
from penstock.features.learnt import Statistics
from penstock.features.list_encoder import ListEncoder
from penstock.features.tables import RawTable, read_table
from penstock.features.tensors import TensorSpec
from penstock.features.word_places import HashPlaces, KnownPlaces, WordPlaces


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """What became of rows that were encoded together."""

    inputs: dict[str, Array]
    """The arrays of the good rows, in the order of the rows."""
    kept: list[int]
    """The places of the good rows."""
    invalid: dict[int, InvalidItem]
    """Why each other row is refused, by its place."""


class EncodingPlan:
    """Encodes tables by one fitted spec."""

    def __init__(self, kinds: Mapping[str, Feature], statistics: Mapping[str, Statistics], join: str | None) -> None:
        self._encoders = {name: plan_feature(name, kinds, statistics[name]) for name in kinds}
        self._order = sorted(kinds, key=lambda name: isinstance(kinds[name], Crossed))  # a cross comes after its keys
        self._join = join
        self.joined = joined_names(self._encoders) if join is not None else []
        self._width = sum(width_of(self._encoders[name].outputs[0]) for name in self.joined)
        self.inputs = self._find_inputs()
        self.columns = raw_columns(kinds)
        self._needed = {column: name for name, kind in kinds.items() for column in needed_columns(name, kind)}

    def _find_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs in declared order; the joined one stands where its first part would."""
        found: dict[str, TensorSpec] = {}
        for name, encoder in self._encoders.items():
            if name in self.joined:
                assert self._join is not None
                found.setdefault(self._join, TensorSpec(self._join, "float32", (self._width,)))
            else:
                found |= {tensor.name: tensor for tensor in encoder.outputs}
        return tuple(found.values())

    def feature_at(self, name: str, place: int) -> str:
        """The feature that gives a value of the input `name`; `name` itself, where no other does."""
        if name == self._join:
            for feature in self.joined:
                place -= width_of(self._encoders[feature].outputs[0])
                if place < 0:
                    return feature
        return next((own for own, encoder in self._encoders.items() if name in _names(encoder)), name)

    def encode_all(self, table: Any) -> dict[str, Array]:
        """The inputs for every row of a table.

        Raises:
            InvalidItem: a row is refused; the first that is.
        """
        raw = read_table(table, self.columns)
        for column, name in self._needed.items():
            raw.check_has(column, name)
        batch = self._run(raw)
        if batch.faults:
            row = min(batch.faults)
            where, reason = batch.faults[row]
            raise InvalidItem(reason, path=f"$[{row}]{where}")
        return self._collect(batch)

    def encode_good(self, rows: Sequence[Any]) -> EncodedRows:
        """The inputs for the good rows, and why the others are refused."""
        batch = self._run(read_table(rows, self.columns, strict=True))
        inputs = self._collect(batch)
        if not batch.faults:
            return EncodedRows(inputs, list(range(len(rows))), {})
        kept = [row for row in range(len(rows)) if row not in batch.faults]
        good = {name: array[kept] for name, array in inputs.items()}
        invalid = {row: InvalidItem(batch.faults[row][1], path=_path(batch.faults[row][0])) for row in batch.faults}
        return EncodedRows(good, kept, dict(sorted(invalid.items())))

    def _run(self, table: RawTable) -> TableBatch:
        batch = TableBatch(table)
        for name in self._order:
            self._encoders[name].encode(batch)
        return batch

    def _collect(self, batch: TableBatch) -> dict[str, Array]:
        """The arrays under the names of the inputs, in their order."""
        if self.joined:
            assert self._join is not None
            batch.arrays[self._join] = self._side_by_side(batch)
        return {tensor.name: batch.arrays[tensor.name] for tensor in self.inputs}

    def _side_by_side(self, batch: TableBatch) -> Array:
        whole = np.empty((batch.table.size, self._width), dtype=np.float32)
        start = 0
        for name in self.joined:
            part = batch.arrays[name]
            if part.ndim == 1:
                whole[:, start] = part
                start += 1
            else:
                whole[:, start : start + part.shape[1]] = part
                start += part.shape[1]
        return whole


def _names(encoder: FeatureEncoder) -> list[str]:
    return [tensor.name for tensor in encoder.outputs]


def _path(where: str) -> str:
    return f"${where}" if where else ""


def joined_names(encoders: Mapping[str, FeatureEncoder]) -> list[str]:
    """The features that are one float32 input: numbers and one-hot rows.  Weights of lists stay with their ids."""
    return [
        name
        for name, encoder in encoders.items()
        if len(encoder.outputs) == 1 and encoder.outputs[0].dtype == "float32"
    ]


def width_of(tensor: TensorSpec) -> int:
    """How many columns of a joined input it fills."""
    return tensor.shape[0] or 0 if tensor.shape else 1


def raw_columns(kinds: Mapping[str, Feature]) -> tuple[str, ...]:
    """The columns that the features read, each once, in the order of the features."""
    found: dict[str, None] = {}
    for name, kind in kinds.items():
        found |= dict.fromkeys(columns_of(name, kind))
    return tuple(found)


def columns_of(name: str, kind: Feature) -> tuple[str, ...]:
    """The columns that one feature reads."""
    if isinstance(kind, Crossed):
        return ()
    own = kind.column or name
    weights = getattr(kind, "weights", None)
    return (own,) if weights is None else (own, weights)


def needed_columns(name: str, kind: Feature) -> tuple[str, ...]:
    """The columns without which every row of the feature is refused."""
    return () if getattr(kind, "fill_value", None) is not None else columns_of(name, kind)


def plan_feature(name: str, kinds: Mapping[str, Feature], statistics: Statistics) -> FeatureEncoder:
    """The encoder of one feature."""
    kind = kinds[name]
    match kind:
        case Numeric():
            return NumericEncoder(name, kind, statistics)
        case Text():
            return TextEncoder(name, kind)
        case Crossed():
            columns = tuple(columns_of(key, kinds[key])[0] for key in kind.keys)
            return CrossEncoder(name, kind, columns)
    is_key = any(name in other.keys for other in kinds.values() if isinstance(other, Crossed))
    source = id_source(kind, statistics, with_keys=is_key)
    if kind.max_length is not None:
        return ListEncoder(name, kind, source)
    return SingleEncoder(
        name,
        kind.column or name,
        source,
        one_hot=kind.one_hot,
        weighed=has_weights(kind),
        is_input=not kind.cross_only,
        is_key=is_key,
    )


def id_source(kind: Bucketized | Hashed | Vocabulary | Ids, statistics: Statistics, *, with_keys: bool) -> IdSource:
    """What gives the ids of a feature."""
    match kind:
        case Bucketized():
            return BucketSource(kind, statistics)
        case Ids():
            return IntegerSource(kind)
        case Hashed():
            places: WordPlaces = HashPlaces(kind)
        case _:
            values = kind.values if kind.values is not None else statistics.values
            assert values is not None
            places = KnownPlaces(kind, values)
    return WordSource(kind, places, with_keys=with_keys)


def id_count(name: str, kinds: Mapping[str, Feature], statistics: Mapping[str, Statistics]) -> int | None:
    """How many ids a feature has; None where it has none, or nobody knows."""
    kind = kinds[name]
    if isinstance(kind, Crossed):
        return kind.buckets
    return None if isinstance(kind, (Numeric, Text)) else id_source(kind, statistics[name], with_keys=False).size
