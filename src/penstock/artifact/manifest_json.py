"""The manifest as the bytes of `manifest.json`, and back.  Pure: it opens nothing.

Contract
--------
* `manifest_to_json` writes one manifest in one way: keys in order, two spaces, a newline at the end.
* What `manifest_to_json` returns, `manifest_from_json` reads; what cannot be read is never written.
* Only the newest schema is written.  Earlier ones are read.
* `manifest_from_json` trusts nothing: a field, a value or a schema that is not known, a key that is there twice, text
  that is not Unicode, a name that no service can have, or a path that could lead out of the artifact is an
  `ArtifactInvalid`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.artifact.manifest import (
    DIGEST,
    FEATURES,
    MANIFEST,
    OLD_REFERENCE_ROWS,
    SCHEMA,
    SCHEMAS,
    BatchEntry,
    GraphEntry,
    Manifest,
    Role,
    TableEntry,
)
from penstock.artifact.strict_json import read_strictly
from penstock.config import Batch, check_service_name
from penstock.embeddings.shards import TABLES
from penstock.errors import ArtifactInvalid, ConfigError
from penstock.features.tensors import TensorSpec

DTYPES: Final = frozenset(
    {"bool", "str", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""What a tensor may be of."""
SHA256 = re.compile(r"[0-9a-f]{64}")
LONGEST_NAME = 255
"""Bytes of one name in a path, on every file system that Linux has."""
DEEPEST_PATH = 100
"""Names in a path.  Each folder is open while what is below it is looked at."""
LONGEST_RUN = 200
MOST_AXES = 64
"""Of an array, in numpy."""


class _Wrong(ValueError):
    """What is said in a manifest cannot be."""


def manifest_to_json(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`.

    Raises:
        ConfigError: something in it cannot be written so that it is read as it was, as a number that is not finite.
    """
    assert manifest.schema == SCHEMA, "the words of earlier schemas are read alone"
    try:
        text = json.dumps(msgspec.to_builtins(manifest), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
        content = f"{text}\n".encode()
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise ConfigError(f"the manifest cannot be written as JSON: {error}; see metadata and classes") from error
    try:
        manifest_from_json(content)
    except ArtifactInvalid as error:
        raise ConfigError(f"the artifact cannot be opened: {error}") from error
    return content


def manifest_from_json(content: bytes) -> Manifest:
    """What `manifest.json` says.

    Raises:
        ArtifactInvalid: it says something that is not known here, or that cannot be.
    """
    return read_strictly(
        content,
        Manifest,
        file=MANIFEST,
        schemas=SCHEMAS,
        remedy="save the model again",
        upgrade=_upgraded,
        check=_check_manifest,
    )


def _upgraded(found: dict[str, Any]) -> dict[str, Any]:
    """A manifest of an earlier schema in the words of today.  The check finds a part that has another form."""
    schema = found.get("schema")
    if type(schema) is not int or schema == SCHEMA:
        return found
    found = _renamed(found, {OLD_REFERENCE_ROWS: "reference_rows"})
    if isinstance(found.get("batch"), dict):
        found["batch"] = _renamed(found["batch"], {"max_gap": "max_idle_gap", "hold_after_idle": "delay_when_idle"})
    if isinstance(found.get("reference_rows"), dict):
        found["reference_rows"] = {"path": OLD_REFERENCE_ROWS, **found["reference_rows"]}
    return found


def _renamed(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    for old, new in names.items():
        if new in found:
            raise _Wrong(f"it has {new!r}, which is {old!r} in its schema")
    return {names.get(key, key): value for key, value in found.items()}


def batch_from_entry(entry: BatchEntry) -> Batch:
    """The batch policy that a manifest tells of.

    Raises:
        ConfigError: there is no such policy.
    """
    return Batch(
        max_size=entry.max_size,
        max_wait=math.inf if entry.max_wait is None else entry.max_wait,
        max_idle_gap=entry.max_idle_gap,
        delay_when_idle=entry.delay_when_idle,
    )


def batch_to_entry(batch: Batch) -> BatchEntry:
    """A batch policy as a manifest tells of it: JSON has no infinity."""
    return BatchEntry(
        max_size=batch.max_size,
        max_wait=batch.max_wait if isinstance(batch.max_wait, str) else _finite(batch.max_wait),
        max_idle_gap=_finite(batch.max_idle_gap),
        delay_when_idle=batch.delay_when_idle,
    )


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else float(seconds)


def _check_manifest(manifest: Manifest) -> None:
    _check_files(manifest)
    _check_graphs(manifest)
    _check_tables(manifest)
    if manifest.reference_rows.rows < 1:
        raise _Wrong(f"reference_rows.rows is {manifest.reference_rows.rows}, but must be at least 1")
    if not any(path.startswith(f"{manifest.reference_rows.path}/") for path in manifest.files):
        raise _Wrong(f"no file is below the path of the reference rows, {manifest.reference_rows.path!r}")
    if not all(math.isfinite(bound) and bound >= 0 for bound in manifest.tolerance):
        raise _Wrong(f"tolerance is {manifest.tolerance}, but both numbers must be finite and at least 0")
    datetime.fromisoformat(manifest.created)
    if not is_run_id(manifest.run):
        raise _Wrong(f"run is {manifest.run!r}, but must have 1 to {LONGEST_RUN} printable characters")
    try:
        check_service_name(manifest.name)
    except ConfigError as error:
        raise _Wrong(f"name: {error}") from error
    try:
        batch_from_entry(manifest.batch)
    except ConfigError as error:
        raise _Wrong(f"batch: {error}") from error


def is_run_id(run: str | None) -> bool:
    """Whether a training run may be called so; None stands for no run."""
    return run is None or (1 <= len(run) <= LONGEST_RUN and run.isprintable())


def _check_files(manifest: Manifest) -> None:
    for path, entry in manifest.files.items():
        _check_path(path)
        if not SHA256.fullmatch(entry.sha256):
            raise _Wrong(f"the sha256 of {path!r} is not 64 hexadecimal digits")
        if entry.bytes < 0:
            raise _Wrong(f"{path!r} has {entry.bytes} bytes")
        if path in (MANIFEST, DIGEST):
            raise _Wrong(f"{path!r} must not be listed among the files")
        for folder in parents_of(path):
            if folder in manifest.files:
                raise _Wrong(f"{folder!r} is listed as a file and as a directory")
    if FEATURES not in manifest.files:
        raise _Wrong(f"{FEATURES!r} is not among the files")


def parents_of(path: str) -> list[str]:
    """The folders above a file, inside the artifact."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _check_path(path: str) -> None:
    parts = path.encode().split(b"/")
    if any(part in (b"", b".", b"..") or b"\0" in part or len(part) > LONGEST_NAME for part in parts):
        raise _Wrong(f"{path!r} is not a valid path inside the artifact")
    if len(parts) > DEEPEST_PATH:
        raise _Wrong(f"a path has {len(parts)} components, but the maximum is {DEEPEST_PATH}: {path[:60]!r}...")


def _check_graphs(manifest: Manifest) -> None:
    if not manifest.graphs:
        raise _Wrong("there is no graph")
    roles: set[Role] = {"model", "ids"} if manifest.outside else {"model"}
    there = [(graph.format, graph.role) for graph in manifest.graphs]
    if len(set(there)) < len(there):
        raise _Wrong(f"a graph is listed twice: {', '.join(' '.join(one) for one in there)}")
    firsts = manifest.program(manifest.formats[0])
    for format_ in manifest.formats:
        program = manifest.program(format_)
        if program.keys() != roles:
            raise _Wrong(f"the {format_} graphs are {' and '.join(program)}, but must be {' and '.join(sorted(roles))}")
        for role, graph in program.items():
            _check_graph(graph, manifest.files)
            if [(o.name, o.dtype) for o in graph.outputs] != [(o.name, o.dtype) for o in firsts[role].outputs]:
                raise _Wrong(f"the {role} graphs {manifest.formats[0]} and {format_} have different outputs")


def _check_graph(graph: GraphEntry, files: Iterable[str]) -> None:
    file = f"{graph.path}/saved_model.pb" if graph.format == "saved_model" else graph.path
    if file not in files:
        raise _Wrong(f"the {graph.format} graph needs {file!r}, which is not among the files")
    _check_tensors(f"inputs of {graph.format}", graph.inputs)
    _check_tensors(f"outputs of {graph.format}", graph.outputs)


def _check_tables(manifest: Manifest) -> None:
    outside = manifest.outside
    if manifest.schema not in (SCHEMA, 2 if outside else 1) or bool(manifest.tables) != bool(outside):
        raise _Wrong(f"it is of schema {manifest.schema}, and has {len(outside)} tables outside of the graph")
    if not outside:
        return
    ids, model = (manifest.program(manifest.formats[0])[role] for role in ("ids", "model"))
    names = [table.name for table in manifest.tables]
    if len(set(names)) < len(names):
        raise _Wrong(f"a table is listed twice: {names}")
    given = [tensor.name for tensor in ids.outputs]
    if sorted(lookup.ids for lookup in manifest.lookups) != sorted(given):
        raise _Wrong(f"the ids graph gives {given}, and the lookups of the tables need others")
    if any(tensor.dtype != "int64" for tensor in ids.outputs):
        raise _Wrong("an output of the ids graph is not int64")
    taken = {tensor.name for tensor in model.inputs}
    for table in manifest.tables:
        _check_table(table, taken)
        _check_shards(table, manifest)
    listed = {path for path in manifest.files if path.startswith(f"{TABLES}/")}
    unknown = listed - {shard.file for table in manifest.tables for shard in table.shards}
    if unknown:
        raise _Wrong(f"{min(unknown)!r} is a shard of no table")


def _check_table(table: TableEntry, taken: Collection[str]) -> None:
    """Hold a table to itself, and to the inputs that the model takes."""
    try:
        sharded = table.sharded
    except ConfigError as error:
        raise _Wrong(str(error)) from error
    if table.placed == "inlined":
        if table.shards or table.size is None or table.input or any(lookup.places for lookup in table.lookups):
            raise _Wrong(f"table {table.name!r} is in the graph, and has shards, inputs or ids without end")
        return
    sharded.check()
    for name in (table.input, *(lookup.places for lookup in table.lookups)):
        if name not in taken:
            raise _Wrong(f"table {table.name!r} fills an input {name!r}, which the model does not take")


def _check_shards(table: TableEntry, manifest: Manifest) -> None:
    sharded = table.sharded
    for number, shard in enumerate(table.shards, 1):
        entry, size = manifest.files.get(shard.file), sharded.layout(number, manifest.created).size
        if entry is None:
            raise _Wrong(f"table {table.name!r} needs {shard.file!r}, which is not among the files")
        if entry.bytes != size:
            raise _Wrong(f"{shard.file!r} has {entry.bytes} bytes, and its rows take {size}")


def _check_tensors(where: str, tensors: tuple[TensorSpec, ...]) -> None:
    names = [tensor.name for tensor in tensors]
    if not names or len(set(names)) < len(names):
        raise _Wrong(f"{where}: the names must be unique, and at least one; they are {names}")
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            raise _Wrong(f"{where}: {tensor.name!r} has the unknown dtype {tensor.dtype!r}")
        if len(tensor.shape) >= MOST_AXES:
            raise _Wrong(f"{where}: {tensor.name!r} has {len(tensor.shape)} axes besides the batch")
        if any(size is not None and size < 0 for size in tensor.shape):
            raise _Wrong(f"{where}: {tensor.name!r} has the shape {tensor.shape}")
