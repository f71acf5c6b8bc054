"""A trained model as it answers rows: its features, its graphs and its rows of embeddings, behind one call.

Serving, the replay of the reference rows and the comparison of two versions all ask it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.artifact.lookups import Arrays, LookedUp, Lookups, WrongId, WrongIds
from penstock.artifact.manifest import GraphEntry
from penstock.artifact.opened_artifact import Artifact
from penstock.artifact.row_stores import mapped_rows
from penstock.artifact.trusting import check_trust
from penstock.codec.text import printable
from penstock.embeddings.row_store import RowStore
from penstock.errors import ArtifactInvalid, InvalidItem
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
    missing: Sequence[Mapping[str, int]] = ()
    """For each row that was kept how many of its distinct ids were not found, by table; empty unless that was asked."""


class ServedModel:
    """A model that is open, for a single thread at a time."""

    def __init__(
        self,
        features: Features,
        graph: Graph,
        *,
        format: str,  # noqa: A002  # the word users know
        version: str = "",
        lookups: Lookups | None = None,
    ) -> None:
        self.features = features
        """The preprocessing of the rows."""
        self.outputs = tuple(graph.outputs)
        self.format = format
        """Format of the graph."""
        self.version = version
        """The digest of the artifact."""
        self.lookups = lookups
        """Lookups in tables outside of the graph; None: there are none."""
        self._graph = graph

    def predict_rows(self, rows: Sequence[Any], *, explain: bool = False) -> Predictions:
        """Answer raw rows, and with `explain` count the ids that were not found.

        A row that the features, a table or the graph refuse is left out, and the others go on.

        Raises:
            InvalidItem: an id is none of its table's, and nothing says which row it is of.
        """
        encoded = self.features.encode_rows(rows)
        kept, inputs, invalid = encoded.kept, encoded.inputs, encoded.invalid
        while kept:
            try:
                looked_up = self.lookups.look_up(inputs) if self.lookups is not None else None
                answers = self.run(inputs, looked_up)
                values = dict(zip([tensor.name for tensor in self.outputs], answers, strict=True))
                missing: Sequence[Mapping[str, int]] = ()
                if explain and self.lookups is not None and looked_up is not None:
                    missing = self.lookups.missing(looked_up, len(kept))
                return Predictions(values, kept, invalid, self.version, missing)
            except RowsRefused as error:
                refused = {
                    place: _invalid_item(self.features, rows[kept[place]], inputs, place, why)
                    for place, why in error.refusals.items()
                }
            except WrongIds as error:
                refused = {place: _wrong_id(self.features, why) for place, why in error.rows.items()}
            invalid = invalid | {kept[place]: why for place, why in refused.items()}
            good = [place for place in range(len(kept)) if place not in refused]
            inputs = {name: array[good] for name, array in inputs.items()}
            kept = [kept[place] for place in good]
        return Predictions({}, kept, invalid, self.version)

    def run(self, inputs: Arrays, looked_up: LookedUp | None = None) -> list[np.ndarray[Any, Any]]:
        """Each output for encoded rows, in order.

        Args:
            inputs: as the features have encoded them.
            looked_up: the rows that they need, where that is known already.

        Raises:
            RowsRefused: the graph refuses rows.
            WrongIds: rows have ids that are none of their table's.
        """
        if looked_up is None and self.lookups is not None:
            looked_up = self.lookups.look_up(inputs)
        return self._graph.run(inputs if looked_up is None else {**inputs, **looked_up.inputs})

    def close(self) -> None:
        """Release what it holds."""
        self._graph.close()
        if self.lookups is not None:
            self.lookups.close()


def open_model(
    artifact: Artifact,
    format: str | None = None,  # noqa: A002  # the word users know
    *,
    threads: int = 1,
    rows: RowStore | None = None,
) -> ServedModel:
    """The model of an artifact, ready to answer.

    Args:
        artifact: what `open_artifact` returned.
        format: of the graph; None: the first.
        threads: how many threads one run uses.
        rows: the rows of the tables outside, which is closed with the model; None: those in the artifact's shards.

    Raises:
        ConfigError: there is no such graph, it can run code and is not trusted, or its library is not installed.
        ArtifactInvalid: a graph, or a shard of rows, is not what the manifest says.
    """
    program = artifact.program(format)
    ids, lookups = None, None
    if "ids" in program:
        ids = _opened(artifact, program["ids"], threads)
        lookups = Lookups(artifact.manifest.tables, ids, mapped_rows(artifact) if rows is None else rows)
    graph = _opened(artifact, program["model"], threads, beside=ids)
    return ServedModel(
        artifact.features, graph, format=program["model"].format, version=artifact.digest, lookups=lookups
    )


def _opened(artifact: Artifact, entry: GraphEntry, threads: int, *, beside: Graph | None = None) -> Graph:
    check_trust(entry.format, trusted=artifact.trusted)
    is_file = entry.path in artifact.manifest.files
    source = artifact.read(entry.path) if is_file else artifact.path / entry.path
    try:
        return open_graph(
            entry.format,
            source,
            inputs=entry.inputs,
            outputs=entry.outputs,
            threads=threads,
            role=entry.role,
            beside=beside,
        )
    except ArtifactInvalid as error:
        raise ArtifactInvalid(f"{printable(entry.path)}: {error}", file=entry.path) from error


def _invalid_item(
    features: Features, row: Any, inputs: Mapping[str, np.ndarray[Any, Any]], place: int, why: Refusal
) -> InvalidItem:
    """Why a row is refused, with the column and its value where they are known."""
    column = features.column_at(*((why.input, why.place) if why.input else _largest(inputs, place)))
    if column is None:
        return InvalidItem(f"the model rejects the row: it {why.reason}")
    (values,) = features.to_rows([row])
    return InvalidItem(f"{shown_value(values[column])} {why.reason}", path=f"$.{column}")


def _wrong_id(features: Features, why: WrongId) -> InvalidItem:
    """Why a row is refused, with the column where its values are the ids."""
    column = features.column_at(why.input, why.place) if why.input else None
    return InvalidItem(str(why), path="" if column is None else f"$.{column}")


def _largest(inputs: Mapping[str, np.ndarray[Any, Any]], place: int) -> tuple[str, int]:
    """The input with the number of the greatest size, and its place: most often it makes another too large."""
    found = [
        (abs(float(number)), name, at)
        for name, array in inputs.items()
        if array.dtype.kind == "f"
        for at, number in enumerate(np.atleast_1d(array[place]).ravel())
    ]
    return max(found, default=(0.0, "", 0))[1:]
