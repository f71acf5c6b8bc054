"""What `manifest.json` says of an artifact, as frozen objects; a schema or a field that is not known is refused."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.features.tensors import Tensor

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
DIGEST: Final = "DIGEST"
"""The file with the sha256 of the manifest: the digest of the artifact."""
FEATURES: Final = "features.json"

GraphFormat: TypeAlias = Literal["onnx", "pt2", "saved_model"]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of an artifact."""

    sha256: str
    bytes: int


class GraphEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model in one format."""

    format: GraphFormat
    path: str
    """A file, or a folder, below the artifact."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class BatchEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The batch policy that the model was saved with."""

    max_size: int
    max_wait: float | Literal["auto"] | None
    """None: no bound."""
    max_gap: float | None
    hold_after_idle: bool = True


class ProbesEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that ship in the artifact, and what the model answered to them."""

    rows: int
    path: str = "probes"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that `manifest.json` says; the last two fields are for later."""

    schema: Literal[1]
    name: str
    files: dict[str, FileEntry]
    graphs: tuple[GraphEntry, ...]
    batch: BatchEntry
    probes: ProbesEntry
    tolerance: tuple[float, float]
    """Absolute and relative."""
    classes: tuple[Any, ...] | None
    libraries: dict[str, str]
    created: str
    git: str | None
    metadata: dict[str, Any]
    run: str | None = None
    """The training run that made it; None where it was saved by itself."""
    tables: tuple[()] = ()
    """Embedding tables outside of the model."""
    base: None = None
    """The artifact that this one is a change of."""
