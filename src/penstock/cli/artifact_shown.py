"""Artifacts, proofs and differences on a terminal, or as JSON.

Whoever wrote an artifact is not trusted: no text of it reaches the terminal with a character that cannot be printed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text

from penstock.artifact.changes import Changes
from penstock.artifact.manifest import TableEntry
from penstock.artifact.opened_artifact import Artifact
from penstock.artifact.proof import Proof
from penstock.cli.printing import Row, print_json, print_shown, print_table, printable_json, readable_path
from penstock.codec.text import printable
from penstock.embeddings.training_store import Fetched
from penstock.features.tensors import TensorSpec

if TYPE_CHECKING:
    from penstock.export.saving import ExportReport


def show_artifact(artifact: Artifact, *, as_json: bool) -> None:
    """What is in an artifact."""
    manifest = artifact.manifest
    if as_json:
        told = {"path": readable_path(artifact.path), "digest": artifact.digest, **msgspec.to_builtins(manifest)}
        print_json({**told, "features": msgspec.json.decode(artifact.features.to_json())})
        return
    size = sum(entry.bytes for entry in manifest.files.values())
    alone = "no raw features, because tables are outside of the graph" if manifest.outside else "raw features"
    batch = manifest.batch
    _print_pairs(
        f"{manifest.name}: {readable_path(artifact.path)}",
        [
            ("digest", artifact.digest),
            ("created", manifest.created),
            ("git", manifest.git or "not in a repository"),
            ("size", f"{size:,} bytes in {len(manifest.files)} files"),
            ("reference rows", f"{manifest.reference_rows.rows} rows, included in the artifact"),
            ("tolerance", f"{manifest.tolerance[0]:g} + {manifest.tolerance[1]:g} x |answer|"),
            ("batch", ", ".join(f"{name} {getattr(batch, name)}" for name in batch.__struct_fields__)),
            ("classes", "none" if manifest.classes is None else ", ".join(map(str, manifest.classes))),
            ("libraries", ", ".join(f"{name} {version}" for name, version in manifest.libraries.items())),
            ("metadata", printable_json(manifest.metadata)),
            *([("TensorFlow alone", f"serves {alone}")] if "saved_model" in manifest.formats else []),
        ],
    )
    features = artifact.features
    print_table(
        "features",
        ("name", "kind", "ids"),
        [(name, repr(kind), str(features.sizes.get(name, ""))) for name, kind in features.features.items()],
    )
    print_table(
        "graphs",
        ("graph", "inputs", "outputs"),
        [
            (f"{graph.format} {graph.role}", _tensors(graph.inputs), _tensors(graph.outputs))
            for graph in manifest.graphs
        ],
    )

    if manifest.tables:
        print_table(
            "tables",
            ("table", "placed", "rows", "shards", "lookups"),
            [
                (table.name, table.placed, f"{table.rows:,}", str(len(table.shards)), str(len(table.lookups)))
                for table in manifest.tables
            ],
        )


def show_tables(artifact: Artifact, *, as_json: bool) -> None:
    """Show the tables that the manifest tells of: those outside of the graph, and the inlined ones beside them."""
    manifest, path = artifact.manifest, readable_path(artifact.path)
    sizes = {table.name: sum(manifest.files[shard.file].bytes for shard in table.shards) for table in manifest.outside}
    if as_json:
        kept = ("name", "path", "placed", "ids", "size", "width", "rows", "missing")
        tables = [
            {name: field for name, field in msgspec.to_builtins(table).items() if name in kept}
            | {"bytes": sizes.get(table.name), "shards": len(table.shards), "lookups": len(table.lookups)}
            for table in manifest.tables
        ]
        print_json({"path": path, "digest": artifact.digest, "tables": tables})
        return
    if not manifest.tables:
        print_shown(Text(f"{printable(path)} has no table outside of its graph"))
        return
    print_table(
        f"{path}: tables",
        ("table", "placed", "rows", "bytes", "shards", "width", "ids", "missing rows"),
        [
            (
                table.name,
                table.placed,
                f"{table.rows:,}",
                f"{sizes[table.name]:,}" if table.name in sizes else "in the graph",
                str(len(table.shards)),
                str(table.width),
                "any" if table.size is None else f"0 to {table.size - 1}",
                str(table.missing),
            )
            for table in manifest.tables
        ],
    )


def show_rows(artifact: Artifact, table: TableEntry, ids: Sequence[int], fetched: Fetched, *, as_json: bool) -> None:
    """Show the rows of ids, and whether each is stored or made by the table's rule."""
    path = readable_path(artifact.path)
    each = list(zip(ids, fetched.found.tolist(), fetched.rows, strict=True))
    if as_json:
        told = [{"id": number, "found": there, "row": row.tolist()} for number, there, row in each]
        print_json({"path": path, "digest": artifact.digest, "table": table.name, "rows": told})
        return
    print_table(
        f"{path}: table {table.name}",
        ("id", "stored", "row"),
        [
            (str(number), "yes" if there else f"no: {table.missing}", " ".join(map(str, row)))
            for number, there, row in each
        ],
    )


def show_proof(path: str | os.PathLike[str], proof: Proof, *, hidden_from: Sequence[str] = (), as_json: bool) -> None:
    """Show what a proof has seen; `hidden_from` are those who can read the artifact's folder, and not the artifact."""
    if as_json:
        told = {"path": readable_path(path), "rows": proof.rows, "max_difference": dict(proof.worst)}
        print_json({**told, "hidden_from": list(hidden_from)})
        return
    if hidden_from:
        whom = " and ".join(hidden_from)
        print_shown(f"{readable_path(path)}: not readable by {whom}, although its directory is")
    _show_worst(f"{readable_path(path)}: every graph answered {proof.rows} rows as the model did", proof.worst)


def show_report(report: ExportReport, *, as_json: bool) -> None:
    """What `save` reports."""
    done = f"{readable_path(report.path)}: saved"
    if as_json:
        told = {"path": readable_path(report.path), "digest": report.digest, "rows": report.rows}
        print_json({**told, "max_difference": dict(report.max_difference)}, done=done)
        return
    _show_worst(f"{done}; {report.rows} rows were replayed", report.max_difference, done=done)
    # In no table, which could break it on a narrow terminal.
    print_shown(Text(f"digest {report.digest}"), done=done)


def _show_worst(title: str, worst: Mapping[str, float], *, done: str | None = None) -> None:
    rows = [(name, f"{difference:.3g}") for name, difference in worst.items()]
    print_table(title, ("output", "greatest difference"), rows, done=done)


def show_changes(changes: Changes, *, as_json: bool) -> None:
    """What differs between two artifacts."""
    if as_json:
        print_json({**msgspec.to_builtins(changes, str_keys=True), "same_answers": changes.same_answers})
        return
    described = [(change.what, change.before, change.after) for change in changes.descriptions]
    if described:
        print_table("description", ("", "A", "B"), described)
    rows = [
        (
            output.name,
            f"{output.differing} of {output.rows}",
            "" if output.largest is None else f"{output.largest:.3g}",
            "" if output.row is None else f"row {output.row}: {output.before} became {output.after}",
        )
        for output in changes.outputs
    ]
    rows += [(name, "not in B, or of another shape or kind", "", "") for name in changes.missing]
    if rows:
        print_table("answers of B to the reference rows of A", ("output", "differ", "most", "worst"), rows)
    refused = [(f"row {row}", reason) for row, reason in changes.refused.items()]
    if refused:
        print_table("rejected by B", ("", "why"), refused)
    words = "B answers like A" if changes.same_answers else "B answers differently from A"
    print_shown(Text(words, "green" if changes.same_answers else "red"))


def _tensors(tensors: Iterable[TensorSpec]) -> str:
    return "\n".join(f"{printable(tensor.name)}: {tensor.dtype} {['batch', *tensor.shape]}" for tensor in tensors)


def _print_pairs(title: str, pairs: Iterable[Row]) -> None:
    print_table(title, (), pairs)
