"""A feature with several values a row: a padded row of ids and one of weights, or one row of the sums of weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.features.columns import Array, Faults, read_numbers
from penstock.features.encoders import TOO_LARGE, TableBatch, round_once, without_small
from penstock.features.id_columns import IS_MISSING, IdSource
from penstock.features.kinds import EMPTY, Bucketized, Hashed, Ids, Vocabulary
from penstock.features.lists import Lists, read_lists, scatter
from penstock.features.tensors import TensorSpec
from penstock.features.values import NumberReader

Weights = npt.NDArray[np.float32]


class ListEncoder:
    """A feature with a list of ids a row."""

    def __init__(self, name: str, kind: Bucketized | Hashed | Vocabulary | Ids, source: IdSource) -> None:
        assert kind.max_length is not None
        ids, weight = (
            TensorSpec(name, "int64", (kind.max_length,)),
            TensorSpec(f"{name}_weight", "float32", (kind.max_length,)),
        )
        counts = TensorSpec(name, "float32", (source.size,))
        self.outputs: tuple[TensorSpec, ...] = (counts,) if kind.one_hot else (ids, weight)
        self._name = name
        self._column = kind.column or name
        self._weights = kind.weights
        self._source = source
        self._many = kind.max_length
        self._missing = kind.fill_value
        # A fill value makes a list of one missing value of a missing list, and the source puts it in its place.
        self._instead = () if kind.fill_value in (None, EMPTY) else (None,)

    def encode(self, batch: TableBatch) -> None:
        """Find the ids of each row, and what each weighs."""
        lists = read_lists(batch.table.column(self._column), self._many, instead=self._instead)
        if self._missing is None:
            lists.faults.update(dict.fromkeys(lists.missing, IS_MISSING))
        batch.refuse(self._column, lists.faults)
        found = self._source.read(lists.flat)
        refuse_elements(batch, self._column, lists, found.faults)
        weights = self._read_weights(batch, lists)
        if found.empty is not None:
            weights[found.empty] = 0
        if len(self.outputs) == 1:
            batch.arrays[self._name] = self._sums(batch, lists, found.ids, weights)
        else:
            batch.arrays[self._name] = scatter(lists, found.ids, self._many)
            batch.arrays[f"{self._name}_weight"] = scatter(lists, weights, self._many)

    def _read_weights(self, batch: TableBatch, lists: Lists) -> Weights:
        """The weight of each value of the lists."""
        weights = np.ones(len(lists.flat), dtype=np.float32)
        if self._weights is None:
            return weights
        given = read_lists(batch.table.column(self._weights), self._many)
        wanted = lists.lengths.copy()
        wanted[lists.missing] = 0  # a fill value weighs 1
        wrong = {
            row: f"has {given.lengths[row]} weights for {wanted[row]} values"
            for row in np.flatnonzero(given.lengths != wanted).tolist()
        }
        batch.refuse(self._weights, wrong | given.faults)
        right = given.lengths == wanted
        theirs = np.repeat(right & (wanted > 0), lists.lengths)
        weights[theirs] = self._read_flat(batch, given)[np.repeat(right, given.lengths)]
        return weights

    def _read_flat(self, batch: TableBatch, given: Lists) -> Weights:
        assert self._weights is not None
        numbers = read_numbers(given.flat, NumberReader())
        faults = numbers.faults
        rounded, too_large = round_once(numbers.array)
        for mask, reason in ((numbers.missing, IS_MISSING), (too_large, TOO_LARGE)):
            if mask is not None:
                faults |= dict.fromkeys(np.flatnonzero(mask).tolist(), reason)
        refuse_elements(batch, self._weights, given, faults)
        return rounded

    def _sums(self, batch: TableBatch, lists: Lists, ids: Array, weights: Weights) -> Array:
        """The sum of the weights of each id, added in float32 from the first of a list to its last."""
        sums = np.zeros((len(lists.lengths), self._source.size or 0), dtype=np.float32)
        rows, places = lists.rows, lists.places
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            for place in range(int(lists.lengths.max(initial=0))):
                here = places == place
                cells = rows[here], ids[here]
                sums[cells] = without_small(sums[cells] + weights[here])
        if self._weights is not None:
            bad = np.flatnonzero(~np.isfinite(sums).all(axis=1)).tolist()
            batch.refuse(self._weights, dict.fromkeys(bad, f"has a sum that {TOO_LARGE}"))
        return sums


def refuse_elements(batch: TableBatch, column: str, lists: Lists, faults: Faults) -> None:
    """Note why values of lists are refused, the first of each row."""
    if faults:
        rows, places = lists.rows, lists.places
        for element in sorted(faults):
            batch.refuse(f"{column}[{places[element]}]", {int(rows[element]): faults[element]})
