"""Answer rows as serving does: encode them, run the graph, and say which rows either of the two refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import InvalidItem
from penstock.features.feature_spec import Features
from penstock.features.values import shown_value
from penstock.graphs.graph import Graph
from penstock.graphs.refusals import Refusal, RowsRefused


@dataclass(frozen=True, slots=True)
class AnsweredRows:
    """Rows that were answered together: the answers, and the refusals."""

    outputs: list[np.ndarray[Any, Any]]
    """The graph's outputs for the rows that were kept; none where no row was."""
    kept: Sequence[int]
    """The places of these rows."""
    invalid: Mapping[int, InvalidItem]
    """Why each other row is refused, by its place."""


def answer_rows(features: Features, graph: Graph, rows: Sequence[Any]) -> AnsweredRows:
    """Answer raw rows.  A row that the features or the graph refuse is left out, and the others go on."""
    encoded = features.encode_rows(rows)
    kept, inputs, invalid = encoded.kept, encoded.inputs, encoded.invalid
    while kept:
        try:
            return AnsweredRows(graph.run(inputs), kept, invalid)
        except RowsRefused as error:
            refused = {kept[place]: why for place, why in error.refusals.items()}
            invalid = invalid | {
                kept[place]: _invalid_item(features, rows[kept[place]], inputs, place, why)
                for place, why in error.refusals.items()
            }
            good = [place for place, row in enumerate(kept) if row not in refused]
            inputs = {name: array[good] for name, array in inputs.items()}
            kept = [kept[place] for place in good]
    return AnsweredRows([], kept, invalid)


def _invalid_item(
    features: Features, row: Any, inputs: Mapping[str, np.ndarray[Any, Any]], place: int, why: Refusal
) -> InvalidItem:
    """Why a row is refused, with the column and its value where they are known."""
    column = features.column_at(*((why.input, why.place) if why.input else _largest(inputs, place)))
    if column is None:
        return InvalidItem(f"the model refuses the row: it {why.reason}")
    (values,) = features.rows_of([row])
    return InvalidItem(f"{shown_value(values[column])} {why.reason}", path=f"$.{column}")


def _largest(inputs: Mapping[str, np.ndarray[Any, Any]], place: int) -> tuple[str, int]:
    """The input with the number of the greatest size, and its place: most often it makes another too large."""
    found = [
        (abs(float(number)), name, at)
        for name, array in inputs.items()
        if array.dtype.kind == "f"
        for at, number in enumerate(np.atleast_1d(array[place]).ravel())
    ]
    return max(found, default=(0.0, "", 0))[1:]
