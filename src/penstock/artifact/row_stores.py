"""Open the store of rows that a URL names, or that an artifact has in itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from penstock.artifact.manifest import TableEntry
from penstock.artifact.model_directory import open_found
from penstock.artifact.opened_artifact import Artifact
from penstock.embeddings.mapped_rows import MappedRowStore
from penstock.embeddings.row_store import RowStore
from penstock.embeddings.training_store import Fetched
from penstock.errors import ConfigError


def open_row_store(url: str) -> RowStore:
    """The store of rows that a URL names.

    `mmap:DIR` has the tables that lie outside of the graph in an artifact, or in the current version of a model
    directory.  It stays that version.

    Raises:
        ConfigError: it is no such URL.
        ArtifactInvalid: the folder is no artifact, or not as it was saved.
    """
    kind, _, folder = url.partition(":") if isinstance(url, str) else ("", "", "")
    if kind == "mmap" and folder and not folder.startswith("//") and "\0" not in folder:
        return mapped_rows(open_found(folder)[1])
    raise ConfigError(f"{url!r} is not a store of rows: write mmap:DIR, such as mmap:models/ads")


def rows_of_table(artifact: Artifact, name: str, ids: Sequence[int]) -> tuple[TableEntry, Fetched]:
    """The table of this name, and the rows of ids, which may be there twice and in any order.

    Raises:
        ConfigError: no such table is outside of the graph, or it can have no such id.
        ArtifactInvalid: a shard is not as it was saved, by its size or its header.
    """
    tables = {table.name: table for table in artifact.manifest.tables}
    if name not in tables:
        named = ", ".join(map(repr, tables)) or "none"
        raise ConfigError(f"{artifact.path} has no table {name!r}; tables: {named}")
    table = tables[name]
    if table.placed == "inlined":
        raise ConfigError(f"table {name!r} is inlined: its rows are in the graph of {artifact.path}, and in no shard")
    least, most = (0, table.size - 1) if table.size is not None else (-(2**63), 2**63 - 1)
    for number in ids:
        if not least <= number <= most:
            raise ConfigError(f"table {name!r} has the ids from {least} to {most}, but {number} is not one of them")
    distinct, places = np.unique(np.array(ids, np.int64), return_inverse=True)
    with closing(mapped_rows(artifact)) as store:
        fetched = store.fetch({name: distinct})[name]
    return table, Fetched(fetched.rows[places], fetched.found[places])


def check_rows(artifact: Artifact, *, contents: bool) -> None:
    """Hold the header of every shard to the manifest, and with `contents` its ids and its index to each other.

    Sizes and sha256 are for `open_artifact`.

    Raises:
        ArtifactInvalid: a shard is not as it was saved, its ids do not ascend, or its index is not that of its ids.
    """
    with closing(mapped_rows(artifact)) as rows:
        if contents:
            rows.check_contents()


def mapped_rows(artifact: Artifact) -> MappedRowStore:
    """The rows in the shards of an artifact.

    Raises:
        ArtifactInvalid: a shard is not as it was saved, by its size or its header.
    """
    tables = {table.name: table.sharded for table in artifact.manifest.outside}
    return MappedRowStore(tables, artifact.open_file, artifact.manifest.created)
