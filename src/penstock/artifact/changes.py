"""Differences of two artifacts: of what they say of themselves, and of answers to the first one's reference rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from penstock.artifact.comparing import compare_output, mismatch
from penstock.artifact.opened_artifact import Artifact
from penstock.artifact.replaying import graph_asked
from penstock.artifact.served_model import ServedModel


class DescriptionChange(msgspec.Struct, frozen=True):
    """Something that the two artifacts say of themselves, and say differently."""

    what: str
    before: str
    """What the first says of it; "" where it says nothing."""
    after: str
    """What the second says."""


class OutputChange(msgspec.Struct, frozen=True):
    """How one output of the second artifact differs from what the first one's model answered."""

    name: str
    rows: int
    """How many rows were compared."""
    differing: int
    """How many of them differ by more than the first artifact's tolerance."""
    largest: float | None
    """The greatest difference of numbers; None where what differs are no finite numbers."""
    row: int | None
    """The reference row that differs most."""
    before: Any = None
    after: Any = None
    """The two answers to that reference row, where they differ most."""


class Changes(msgspec.Struct, frozen=True):
    """What differs between two artifacts."""

    before: str
    """The digest of the first."""
    after: str
    """The digest of the second."""
    descriptions: Sequence[DescriptionChange]
    """What they say of themselves, where it is not the same."""
    refused: Mapping[int, str]
    """The reference rows that the second one's features refuse, and why."""
    outputs: Sequence[OutputChange]
    missing: Sequence[str]
    """Outputs of the first that the second does not have, or has in another shape or of another kind."""

    @property
    def same_answers(self) -> bool:
        """Whether the second answers every reference row of the first as its model did, within the tolerance."""
        return not self.refused and not self.missing and not any(output.differing for output in self.outputs)


def find_changes(first: Artifact, second: Artifact, model: ServedModel) -> Changes:
    """Replay the reference rows of `first` through `second`, whose model is open, and list what differs.

    Raises:
        ArtifactInvalid: the reference rows of `first` are not what its manifest says.
        ExportRefused: the graph cannot answer them at all.
    """
    recorded = first.probes()
    columns = set(second.features.columns)
    rows = [{name: value for name, value in row.items() if name in columns} for row in recorded.rows]
    with graph_asked(model.format, rows=len(rows)):
        found = model.predict_rows(rows)
    outputs, missing = [], []
    for name, values in recorded.outputs.items():
        before, after = values[found.kept], found.values.get(name)
        if found.kept and (after is None or mismatch(before, after)):
            missing.append(name)
        elif after is not None:
            outputs.append(_changed(name, before, after, found.kept, first.manifest.tolerance))
    return Changes(
        before=first.digest,
        after=second.digest,
        descriptions=_changed_descriptions(first, second),
        refused={place: str(error) for place, error in sorted(found.invalid.items())},
        outputs=outputs,
        missing=missing,
    )


def _changed(
    name: str,
    before: np.ndarray[Any, Any],
    after: np.ndarray[Any, Any],
    places: Sequence[int],
    tolerance: tuple[float, float],
) -> OutputChange:
    found = compare_output(name, before, after, tolerance=tolerance)
    changed = found.difference > 0
    return OutputChange(
        name=name,
        rows=len(places),
        differing=found.outside,
        largest=found.difference if math.isfinite(found.difference) else None,
        row=places[found.row] if changed else None,
        before=found.expected if changed else None,
        after=found.got if changed else None,
    )


def _changed_descriptions(first: Artifact, second: Artifact) -> list[DescriptionChange]:
    before, after = _described(first), _described(second)
    names = [*before, *(name for name in after if name not in before)]
    return [
        DescriptionChange(name, before.get(name, ""), after.get(name, ""))
        for name in names
        if before.get(name, "") != after.get(name, "")
    ]


def _described(artifact: Artifact) -> dict[str, str]:
    """What an artifact says of itself, piece by piece, as text."""
    manifest = artifact.manifest
    told: dict[str, Any] = {
        "name": manifest.name,
        "created": manifest.created,
        "git": manifest.git,
        "classes": manifest.classes,
        "batch": manifest.batch,
        "tolerance": manifest.tolerance,
        "reference rows": manifest.reference_rows.rows,
        "metadata": manifest.metadata,
    }
    told |= {f"library {name}": version for name, version in manifest.libraries.items()}
    features = json.loads(artifact.features.to_json())
    described = features.pop("features", {})
    told |= {f"features: {name}": value for name, value in features.items()}
    if isinstance(described, dict):
        told |= {f"feature {name}": value for name, value in described.items()}
    for graph in manifest.graphs:
        size = sum(
            entry.bytes
            for path, entry in manifest.files.items()
            if path == graph.path or path.startswith(f"{graph.path}/")
        )
        what = graph.format if graph.role == "model" else f"{graph.format} {graph.role}"
        told[f"graph {what}"] = f"{size} bytes"
        told[f"inputs of {what}"] = graph.inputs
        told[f"outputs of {what}"] = graph.outputs
    for table in manifest.tables:
        shards = [msgspec.structs.replace(shard, file="") for shard in table.shards]
        told[f"table {table.name}"] = msgspec.structs.replace(table, shards=tuple(shards))
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in told.items()
    }
