"""What a model answered to some rows in the process that trained it: the rows, the encoded inputs, the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from penstock.embeddings.rules import Ids, Rows
from penstock.errors import ConfigError


@dataclass(frozen=True)
class RecordedRows:
    """Rows of an embedding table that a model has looked up."""

    ids: Ids
    """Distinct, ascending."""
    rows: Rows


@dataclass(frozen=True)
class Recorded:
    """Rows, and what became of them; checked at birth.

    Args:
        rows: raw rows, with plain Python values that JSON can carry (`Features.to_rows`).
        inputs: each input of the model by its name, as `Features.encode` gave it for these rows.
        outputs: each output by its name, as the model itself answered.
        ids: the ids of each lookup by its name, where tables lie outside of the graph.
        looked_up: the rows of each such table that the model has looked up.
    """

    rows: Sequence[Mapping[str, Any]]
    inputs: Mapping[str, np.ndarray[Any, Any]]
    outputs: Mapping[str, np.ndarray[Any, Any]]
    ids: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    looked_up: Mapping[str, RecordedRows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for word, arrays in (("input", self.inputs), ("output", self.outputs)):
            for name, array in arrays.items():
                rows = array.shape[0] if array.ndim else None
                if rows != len(self.rows):
                    found = "a single value" if rows is None else f"{rows} rows"
                    raise ConfigError(f"{word} {name!r} has {found}, but there are {len(self.rows)} rows")

    def of_rows(self, places: Sequence[int]) -> Recorded:
        """The rows at some places."""
        kept = np.array(places, dtype=np.intp)
        return Recorded(
            [self.rows[place] for place in places],
            {name: array[kept] for name, array in self.inputs.items()},
            {name: array[kept] for name, array in self.outputs.items()},
            {name: array[kept] for name, array in self.ids.items() if len(array) == len(self.rows)},
            self.looked_up,
        )


def joined(parts: Sequence[Recorded]) -> Recorded:
    """The rows of all parts, of which there is one at least; all have the same inputs and outputs.

    The ids of a lookup that is not by the row are left out.
    """
    by_row = [name for name in parts[0].ids if all(len(part.ids.get(name, ())) == len(part.rows) for part in parts)]
    return Recorded(
        [row for part in parts for row in part.rows],
        {name: np.concatenate([part.inputs[name] for part in parts]) for name in parts[0].inputs},
        {name: np.concatenate([part.outputs[name] for part in parts]) for name in parts[0].outputs},
        {name: np.concatenate([part.ids[name] for part in parts]) for name in by_row},
        {name: joined_rows([part.looked_up[name] for part in parts]) for name in parts[0].looked_up},
    )


def joined_rows(parts: Sequence[RecordedRows]) -> RecordedRows:
    """The rows of all parts, of which there is one at least."""
    ids, places = np.unique(np.concatenate([part.ids for part in parts]), return_index=True)
    return RecordedRows(ids, np.concatenate([part.rows for part in parts])[places])


class RefusedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row that the model refused."""

    row: dict[str, Any]
    """The raw row, with plain Python values that JSON can carry."""
    reason: str
    """The words of the model."""


@dataclass(frozen=True)
class MadeRows:
    """Rows that were made of those that were given, for the proof alone."""

    answered: Recorded | None
    """Rows that the model answered, and a graph has to answer alike; None where there are none."""
    refused: Sequence[RefusedRow]
    """Rows that it refused, and a graph has to refuse."""
    far: Recorded | None = None
    """Rows with ids that no float32 holds, for which a graph has to look up the same ids; None where there are none."""
