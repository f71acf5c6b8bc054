"""Artifacts, proofs and differences on a terminal, or as JSON.

Whoever wrote an artifact is not trusted: no text of it reaches the terminal with a character that cannot be printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.artifact.changes import Changes
from penstock.artifact.opened_artifact import Artifact
from penstock.artifact.proof import Proof
from penstock.codec.text import printable, printable_lines
from penstock.errors import PenstockError
from penstock.features.tensors import Tensor

if TYPE_CHECKING:
    from penstock.export.saving import ExportReport

Row = Sequence[str]


def show_artifact(artifact: Artifact, *, as_json: bool) -> None:
    """What is in an artifact."""
    manifest = artifact.manifest
    if as_json:
        told = {"path": _readable(artifact.path), "digest": artifact.digest, **msgspec.to_builtins(manifest)}
        _print_json({**told, "features": msgspec.json.decode(artifact.features.to_json())})
        return
    size = sum(entry.bytes for entry in manifest.files.values())
    batch = manifest.batch
    _print_pairs(
        f"{manifest.name}: {_readable(artifact.path)}",
        [
            ("digest", artifact.digest),
            ("created", manifest.created),
            ("git", manifest.git or "not in a repository"),
            ("size", f"{size:,} bytes in {len(manifest.files)} files"),
            ("probes", f"{manifest.probes.rows} rows, which ship in the artifact"),
            ("tolerance", f"{manifest.tolerance[0]:g} + {manifest.tolerance[1]:g} x |answer|"),
            ("batch", ", ".join(f"{name} {getattr(batch, name)}" for name in batch.__struct_fields__)),
            ("classes", "none" if manifest.classes is None else ", ".join(map(str, manifest.classes))),
            ("libraries", ", ".join(f"{name} {version}" for name, version in manifest.libraries.items())),
            ("metadata", _json_text(manifest.metadata)),
        ],
    )
    features = artifact.features
    _print_table(
        "features",
        ("name", "kind", "ids"),
        [(name, repr(kind), str(features.sizes.get(name, ""))) for name, kind in features.kinds.items()],
    )
    _print_table(
        "graphs",
        ("format", "inputs", "outputs"),
        [(graph.format, _tensors(graph.inputs), _tensors(graph.outputs)) for graph in manifest.graphs],
    )


def show_proof(path: str, proof: Proof, *, as_json: bool) -> None:
    """What a proof has seen."""
    if as_json:
        _print_json({"path": _readable(path), "rows": proof.rows, "worst": dict(proof.worst)})
        return
    _show_worst(f"{_readable(path)}: every graph answered {proof.rows} rows as the model did", proof.worst)


def show_report(report: ExportReport, *, as_json: bool) -> None:
    """What `save` reports."""
    if as_json:
        worst = dict(report.worst)
        _print_json({"path": _readable(report.path), "digest": report.digest, "rows": report.rows, "worst": worst})
        return
    _show_worst(f"{_readable(report.path)}: saved; {report.rows} rows were replayed", report.worst)
    _print(Text(f"digest {report.digest}"))  # in no table, which could break it on a narrow terminal


def _show_worst(title: str, worst: Mapping[str, float]) -> None:
    rows = [(name, f"{difference:.3g}") for name, difference in worst.items()]
    _print_table(title, ("output", "greatest difference"), rows)


def show_changes(changes: Changes, *, as_json: bool) -> None:
    """What differs between two artifacts."""
    if as_json:
        _print_json({**msgspec.to_builtins(changes, str_keys=True), "same_answers": changes.same_answers})
        return
    described = [(change.what, change.before, change.after) for change in changes.descriptions]
    if described:
        _print_table("what they say", ("", "A", "B"), described)
    rows = [
        (
            output.name,
            f"{output.differing} of {output.rows}",
            "" if output.largest is None else f"{output.largest:.3g}",
            "" if output.row is None else f"probe {output.row}: {output.before} became {output.after}",
        )
        for output in changes.outputs
    ]
    rows += [(name, "not in B, or of another shape or kind", "", "") for name in changes.missing]
    if rows:
        _print_table("what B answers to the probes of A", ("output", "differ", "most", "worst"), rows)
    refused = [(f"probe {row}", reason) for row, reason in changes.refused.items()]
    if refused:
        _print_table("what B refuses", ("", "why"), refused)
    words = "B answers as A" if changes.same_answers else "B answers otherwise than A"
    _print(Text(words, "green" if changes.same_answers else "red"))


def _readable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be written, whatever bytes it has."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _tensors(tensors: Iterable[Tensor]) -> str:
    return "\n".join(f"{printable(tensor.name)}: {tensor.dtype} {['batch', *tensor.shape]}" for tensor in tensors)


def _print_pairs(title: str, pairs: Iterable[Row]) -> None:
    _print_table(title, (), pairs)


def _print_table(title: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    # As `Text`: rich would read markup in a plain string, and a name may look like markup.
    table = Table(show_header=bool(columns))
    for column in columns or ("", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable_lines(cell)) for cell in row))
    _print(Text(printable(title), "bold"))
    _print(table)


def _json_text(value: Any) -> str:
    """`value` as JSON of printable characters; others can be in its strings alone, where JSON has escapes for them."""
    text = msgspec.json.encode(value).decode()
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _print_json(value: Any) -> None:
    _print(_json_text(value))


def _print(shown: Table | Text | str) -> None:
    if sys.stdout is None:  # somebody closed it before this process began
        raise PenstockError("what was found cannot be written: stdout is closed")
    try:
        if isinstance(shown, str):
            sys.stdout.write(f"{shown}\n")
            sys.stdout.flush()
        else:
            Console().print(shown, soft_wrap=isinstance(shown, Text))
    except OSError as error:
        raise PenstockError(f"what was found cannot be written: {error.strerror}") from None
