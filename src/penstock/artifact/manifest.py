"""What `manifest.json` says of an artifact, as frozen objects; a schema or a field that is not known is refused."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.embeddings.rules import MissingRule
from penstock.embeddings.shards import Shard, ShardedTable
from penstock.embeddings.training_store import TableShape
from penstock.features.tensors import TensorSpec

SCHEMA: Final = 3
"""The schema that is written."""
SCHEMAS: Final = (1, 2, SCHEMA)
"""Schema 1 has no tables, schema 2 has at least one outside of the graph, schema 3 has either.  The first two have
other words for `reference_rows`, `max_idle_gap` and `delay_when_idle`."""
OLD_REFERENCE_ROWS: Final = "probes"
"""The key of the reference rows in schemas 1 and 2, and their folder."""
MANIFEST: Final = "manifest.json"
DIGEST: Final = "DIGEST"
"""The file with the sha256 of the manifest: the digest of the artifact."""
FEATURES: Final = "features.json"

GraphFormat: TypeAlias = Literal["onnx", "pt2", "saved_model"]
Role: TypeAlias = Literal["model", "ids"]
"""`model`: to the outputs; `ids`: to the ids of each lookup in a table, where tables lie outside of the model."""


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of an artifact."""

    sha256: str
    bytes: int


class GraphEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A graph of the model in one format."""

    format: GraphFormat
    path: str
    """A file, or a folder, below the artifact."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    role: Role = "model"


class Lookup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place of the model where rows of a table are looked up."""

    ids: str
    """The output of the graph `ids` with the ids, int64."""
    places: str
    """The input of the graph `model` with the place of each id among the rows of its table; "" of an inlined table."""
    by_row: bool
    """Whether the first axis of the ids is the batch."""


class TableEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An embedding table of the model."""

    name: str
    path: str
    """The layer's path in the model."""
    ids: Literal["dense", "any"]
    size: int | None
    width: int
    rows: int
    """How many are stored; the others follow from `missing`."""
    missing: MissingRule
    placed: Literal["inlined", "outside"]
    """In the graph, or in shards."""
    input: str
    """The input of the graph `model` with the rows that a batch needs, float32; "" of an inlined table."""
    shards: tuple[Shard, ...]
    lookups: tuple[Lookup, ...]

    @property
    def shape(self) -> TableShape:
        """The table as a reader of rows sees it; ConfigError where there is no such table."""
        return TableShape(self.name, self.width, self.ids, self.size, self.missing)

    @property
    def sharded(self) -> ShardedTable:
        """The table with its shards."""
        return ShardedTable(self.shape, self.rows, self.shards)


class BatchEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The batch policy that the model was saved with."""

    max_size: int
    max_wait: float | Literal["auto"] | None
    """None: no bound."""
    max_idle_gap: float | None
    delay_when_idle: bool = True


class ReferenceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that ship in the artifact, and what the model answered to them."""

    rows: int
    path: str = "reference_rows"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that `manifest.json` says; the last field is for later."""

    schema: Literal[1, 2, 3]
    name: str
    files: dict[str, FileEntry]
    graphs: tuple[GraphEntry, ...]
    batch: BatchEntry
    reference_rows: ReferenceEntry
    tolerance: tuple[float, float]
    """Absolute and relative."""
    classes: tuple[Any, ...] | None
    libraries: dict[str, str]
    created: str
    git: str | None
    metadata: dict[str, Any]
    run: str | None = None
    """The training run that made it; None where it was saved by itself."""
    tables: tuple[TableEntry, ...] = ()
    """The embedding tables that were trained outside of the model, where one is still outside."""
    base: None = None
    """The artifact that this one is a change of."""

    @property
    def formats(self) -> tuple[GraphFormat, ...]:
        """The formats that the model was saved in, the default first."""
        return tuple(dict.fromkeys(graph.format for graph in self.graphs))

    def program(self, format: str) -> dict[Role, GraphEntry]:  # noqa: A002  # the word users know
        """The graphs of a format, by their roles; none of a format that is not there."""
        return {graph.role: graph for graph in self.graphs if graph.format == format}

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs of the model."""
        return self.program(self.formats[0])["model"].outputs

    @property
    def outside(self) -> tuple[TableEntry, ...]:
        """The tables that lie outside."""
        return tuple(table for table in self.tables if table.placed == "outside")

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """All lookups, in order of the tables."""
        return tuple(lookup for table in self.tables for lookup in table.lookups)

    @property
    def ids(self) -> tuple[tuple[TensorSpec, bool], ...]:
        """The ids of each lookup, and whether their first axis is the batch."""
        if not self.outside:
            return ()
        by_row = {lookup.ids: lookup.by_row for lookup in self.lookups}
        return tuple((tensor, by_row[tensor.name]) for tensor in self.program(self.formats[0])["ids"].outputs)
