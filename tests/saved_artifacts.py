"""What tests of artifacts need besides `tiny_artifacts`: its rows as recorded, drafts in one call, other manifests."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from penstock.artifact.drafting import Draft
from penstock.artifact.manifest import BatchEntry, GraphEntry
from penstock.artifact.recorded import Recorded
from penstock.features.tensors import TensorSpec
from tiny_artifacts import ROWS, features, model

ANSWERED = (TensorSpec("probability", "float32"),)


def recorded(rows: list[dict[str, Any]] = ROWS, **outputs: np.ndarray) -> Recorded:
    """The rows, and what the model answers to them, or `outputs` in its place."""
    spec = features()
    inputs = spec.encode(rows)
    return Recorded(spec.to_rows(rows), inputs, {"probability": model(**inputs).astype(np.float32), **outputs})


def finish(draft: Draft, **changes: Any) -> str:
    """Finish the draft of an artifact with one ONNX graph, or with `changes`; its digest."""
    spec = features()
    given = {
        "features": spec,
        "probes": recorded(),
        "graphs": [GraphEntry("onnx", "model.onnx", spec.inputs, ANSWERED)],
        "batch": BatchEntry(8, 0.0, None),
        "tolerance": (1e-5, 1e-5),
        "classes": None,
        "libraries": {},
        "created": "2026-11-23T00:00:00Z",
        "git": None,
        "metadata": {},
    }
    return draft.finish(**{**given, **changes})


def edit_manifest(artifact: Path, edit: Callable[[dict[str, Any]], object]) -> str:
    """Change the manifest, and the digest with it, as somebody would who means to; the new digest."""
    found = json.loads((artifact / "manifest.json").read_bytes())
    edit(found)
    content = json.dumps(found).encode()
    digest = sha256(content).hexdigest()
    (artifact / "manifest.json").write_bytes(content)
    (artifact / "DIGEST").write_text(f"{digest}\n")
    return digest
