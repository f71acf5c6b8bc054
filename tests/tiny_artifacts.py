"""A small artifact with a graph in ONNX, written without any framework: what tests serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnx_bytes
from penstock import features as f
from penstock.artifact.drafting import new_artifact
from penstock.artifact.manifest import BatchEntry, GraphEntry
from penstock.artifact.recorded import Recorded
from penstock.features.tensors import Tensor

ROWS = [
    {"age": 32, "educ": 17, "occupation": 2},
    {"age": 27.5, "educ": 12, "occupation": 4},
    {"age": 41, "educ": None, "occupation": "5"},
    {"age": 22, "educ": 9, "occupation": 1},
]
TABLE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
SLOPE = np.array([0.5, -1.25], np.float32)


def features() -> f.Features:
    return f.Features(
        {
            "age": f.Numeric(scale="standard"),
            "educ": f.Numeric(scale="minmax", missing=f.MEAN),
            "occupation": f.Vocabulary(values=("1", "2", "3", "4", "5")),
        },
        join="x",
    ).fit(ROWS)


def model(x: np.ndarray, occupation: np.ndarray, slope: Sequence[float] | np.ndarray = SLOPE) -> np.ndarray:
    """What the graph computes, by numpy."""
    return 1 / (1 + np.exp(-((TABLE[occupation] * x) @ np.asarray(slope, np.float32))))


def graph(slope: Sequence[float] | np.ndarray = SLOPE) -> bytes:
    return onnx_bytes.model(
        [
            onnx_bytes.weights("table", TABLE),
            onnx_bytes.weights("slope", np.asarray(slope, np.float32)),
            onnx_bytes.node("Gather", ["table", "occupation"], ["row"]),
            onnx_bytes.node("Mul", ["row", "x"], ["scaled"]),
            onnx_bytes.node("MatMul", ["scaled", "slope"], ["sum"]),
            onnx_bytes.node("Sigmoid", ["sum"], ["squeezed"]),
        ],
        [("x", "float32", ("n", 2)), ("occupation", "int64", ("n",))],
        [("squeezed", "float32", ("n",))],
    )


def write_artifact(
    path: Path,
    *,
    name: str = "affairs",
    content: bytes | None = None,
    max_size: int = 32,
    shape: tuple[int, ...] = (),
    slope: Sequence[float] | np.ndarray = SLOPE,
    run: str | None = None,
) -> str:
    """An artifact at `path`, whose output is said to be of `shape`; its digest, another for each name, slope and run.

    With another `slope` it answers otherwise.
    """
    spec = features()
    answers = model(**spec.encode(ROWS), slope=slope).astype(np.float32)
    outputs = {"probability": np.broadcast_to(answers.reshape(-1, *[1] * len(shape)), (len(ROWS), *shape)).copy()}
    return _write(path, spec, ROWS, outputs, content or graph(slope), name=name, max_size=max_size, run=run)


def write_ids(path: Path, *, size: int | None = None) -> str:
    """An artifact whose model answers with the id `x` that it is sent, as `y`; its digest."""
    spec = f.Features({"x": f.Ids(size=size)})
    rows = [{"x": 1}, {"x": 2}]
    content = onnx_bytes.model(
        [onnx_bytes.node("Identity", ["x"], ["y"])], [("x", "int64", ("n",))], [("y", "int64", ("n",))]
    )
    return _write(path, spec, rows, {"y": spec.encode(rows)["x"]}, content, name="ids")


def _write(
    path: Path,
    spec: f.Features,
    rows: list[dict[str, Any]],
    outputs: dict[str, np.ndarray],
    content: bytes,
    *,
    name: str,
    max_size: int = 32,
    run: str | None = None,
) -> str:
    tensors = tuple(Tensor(key, array.dtype.name, array.shape[1:]) for key, array in outputs.items())
    with new_artifact(path, name=name) as draft:
        (draft.folder / "model.onnx").write_bytes(content)
        draft.finish(
            features=spec,
            probes=Recorded(spec.rows_of(rows), spec.encode(rows), outputs),
            graphs=[GraphEntry("onnx", "model.onnx", spec.inputs, tensors)],
            batch=BatchEntry(max_size=max_size, max_wait=0.0, max_gap=None),
            tolerance=(1e-5, 1e-5),
            classes=None,
            libraries={"numpy": np.__version__},
            created="2026-11-23T00:00:00Z",
            git=None,
            metadata={},
            run=run,
        )
        draft.publish()
    return draft.digest
