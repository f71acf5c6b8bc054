"""A trained model as it answers rows: its features and its graph, behind one call.

Serving, the replay of the probes and the comparison of two versions all ask it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.artifact.opened_artifact import Artifact
from penstock.artifact.trusting import check_trust
from penstock.errors import InvalidItem
from penstock.features.feature_spec import Features
from penstock.features.values import shown_value
from penstock.graphs.graph import Graph
from penstock.graphs.refusals import Refusal, RowsRefused
from penstock.graphs.runtimes import open_graph


@dataclass(frozen=True, slots=True)
class Predictions:
    """Rows that were answered together: the answers, and the refusals."""

    values: Mapping[str, np.ndarray[Any, Any]]
    """Each output for the rows that were kept, in order; empty where no row was."""
    kept: Sequence[int]
    """The places of these rows."""
    invalid: Mapping[int, InvalidItem]
    """Why each other row is refused, by its place."""
    version: str
    """The digest of the artifact that answered."""


class ServedModel:
    """A model that is open, for a single thread at a time."""

    def __init__(self, features: Features, graph: Graph, *, format: str, version: str = "") -> None:  # noqa: A002  # the word users know
        self.features = features
        """The preprocessing of the rows."""
        self.outputs = tuple(graph.outputs)
        self.format = format
        """Format of the graph."""
        self.version = version
        """The digest of the artifact."""
        self._graph = graph

    def predict_rows(self, rows: Sequence[Any]) -> Predictions:
        """Answer raw rows.  A row that the features or the graph refuse is left out, and the others go on."""
        encoded = self.features.encode_rows(rows)
        kept, inputs, invalid = encoded.kept, encoded.inputs, encoded.invalid
        while kept:
            try:
                values = dict(zip([tensor.name for tensor in self.outputs], self.run(inputs), strict=True))
                return Predictions(values, kept, invalid, self.version)
            except RowsRefused as error:
                refused = {kept[place]: why for place, why in error.refusals.items()}
                invalid = invalid | {
                    kept[place]: _invalid_item(self.features, rows[kept[place]], inputs, place, why)
                    for place, why in error.refusals.items()
                }
                good = [place for place, row in enumerate(kept) if row not in refused]
                inputs = {name: array[good] for name, array in inputs.items()}
                kept = [kept[place] for place in good]
        return Predictions({}, kept, invalid, self.version)

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Each output for encoded rows, in order; raises RowsRefused where the graph refuses rows."""
        return self._graph.run(inputs)

    def close(self) -> None:
        """Release what it holds."""
        self._graph.close()


def open_model(artifact: Artifact, format: str | None = None, *, threads: int = 1) -> ServedModel:  # noqa: A002  # the word users know
    """The model of an artifact, ready to answer.

    Args:
        artifact: what `open_artifact` returned.
        format: of the graph; None: the first.
        threads: how many threads one run uses.

    Raises:
        ConfigError: there is no such graph, it can run code and is not trusted, or its library is not installed.
        ArtifactInvalid: the graph is not what the manifest says.
    """
    entry = artifact.graph(format)
    check_trust(entry.format, trusted=artifact.trusted)
    is_file = entry.path in artifact.manifest.files
    source = artifact.read(entry.path) if is_file else artifact.path / entry.path
    graph = open_graph(entry.format, source, inputs=entry.inputs, outputs=entry.outputs, threads=threads)
    return ServedModel(artifact.features, graph, format=entry.format, version=artifact.digest)


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
