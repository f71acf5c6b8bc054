"""A small artifact with a graph in ONNX, written without any framework: what tests serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnx_bytes
from penstock import features as f
from penstock.artifact.drafting import new_artifact
from penstock.artifact.manifest import BatchEntry, GraphEntry, Lookup, TableEntry
from penstock.artifact.recorded import Recorded, RecordedRows
from penstock.embeddings.rules import init, zeros
from penstock.embeddings.shards import write_shards
from penstock.embeddings.training_store import TableShape
from penstock.features.tensors import TensorSpec

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
            "educ": f.Numeric(scale="minmax", fill_value=f.MEAN),
            "occupation": f.Vocabulary(values=("1", "2", "3", "4", "5")),
        },
        concat_into="x",
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


USERS = np.array([-(2**63), -1, 0, 5, 2**24 + 1, 2**31 + 5, 2**40 + 7, 2**63 - 1], np.int64)
"""The ids that have a row in the table `user`, which takes any id."""
USER = TableShape("user", 2, "any", None, init(7))
ITEM = TableShape("item", 2, "dense", 4, zeros())
"""The table of the ids `user % 5`, of which 4 is none of its."""
TABLE_ROWS = [{"user": user, "age": age} for user, age in zip([5, 2**31 + 5, 3, 2**24 + 1, 0], range(5), strict=True)]


def user_rows(ids: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """The rows of these ids: stored ones, or the rule's."""
    stored = np.stack([(ids % 1000) / 8, ids % 7 - 3], axis=1).astype(np.float32) * np.float32(scale)
    there = np.isin(ids, USERS)[:, None]
    return np.where(there, stored, USER.missing.rows(ids, 2, "user")).astype(np.float32)


def item_rows(scale: float = 1.0) -> np.ndarray:
    return np.arange(8, dtype=np.float32).reshape(4, 2) * np.float32(scale)


def table_model(user: np.ndarray, age: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """What the artifact of `write_tables` computes, by numpy."""
    return ((user_rows(user, scale) * item_rows(scale)[user % 5]).sum(axis=1) + age).astype(np.float32)


def write_tables(
    path: Path, *, scale: float = 1.0, shard_bytes: int = 500, created: str = "2026-11-23T00:00:00Z"
) -> str:
    """An artifact with two tables outside of its graph; its digest.  Every table and answer follows from `scale`."""
    spec = f.Features({"user": f.Ids(), "age": f.Numeric()})
    inputs = spec.encode(TABLE_ROWS)
    ids = onnx_bytes.model(
        [
            onnx_bytes.weights("five", np.array(5, np.int64)),
            onnx_bytes.node("Identity", ["user"], ["ids_0_0"]),
            onnx_bytes.node("Mod", ["user", "five"], ["ids_1_0"]),
        ],
        [("user", "int64", ("n",))],
        [("ids_0_0", "int64", ("n",)), ("ids_1_0", "int64", ("n",))],
    )
    model = onnx_bytes.model(
        [
            onnx_bytes.weights("ones", np.ones(2, np.float32)),
            onnx_bytes.node("Gather", ["rows_0", "places_0_0"], ["users"]),
            onnx_bytes.node("Gather", ["rows_1", "places_1_0"], ["items"]),
            onnx_bytes.node("Mul", ["users", "items"], ["product"]),
            onnx_bytes.node("MatMul", ["product", "ones"], ["sum"]),
            onnx_bytes.node("Add", ["sum", "age"], ["score"]),
        ],
        [
            ("age", "float32", ("n",)),
            ("rows_0", "float32", ("users", 2)),
            ("places_0_0", "int64", ("n",)),
            ("rows_1", "float32", ("items", 2)),
            ("places_1_0", "int64", ("n",)),
        ],
        [("score", "float32", ("n",))],
    )
    given = {tensor.name: tensor for tensor in spec.inputs}
    looked_up = [TensorSpec("ids_0_0", "int64"), TensorSpec("ids_1_0", "int64")]
    fed = [
        TensorSpec("rows_0", "float32", (2,)),
        TensorSpec("places_0_0", "int64"),
        TensorSpec("rows_1", "float32", (2,)),
        TensorSpec("places_1_0", "int64"),
    ]
    outputs = {"score": table_model(**inputs, scale=scale)}
    rows = [(USER, [(USERS, user_rows(USERS, scale))]), (ITEM, [(np.arange(4), item_rows(scale))])]
    graphs = [
        (ids, GraphEntry("onnx", "ids.onnx", (given["user"],), tuple(looked_up), "ids")),
        (model, GraphEntry("onnx", "model.onnx", (given["age"], *fed), (TensorSpec("score", "float32"),))),
    ]
    recorded = Recorded(
        spec.to_rows(TABLE_ROWS),
        inputs,
        outputs,
        {"ids_0_0": inputs["user"], "ids_1_0": inputs["user"] % 5},
        {shape.name: RecordedRows(*some) for shape, (some,) in rows},
    )
    return _write_with_tables(path, spec, recorded, rows, graphs, shard_bytes, created)


WIDE = 64
"""Numbers of a row of `write_wide`."""


def wide_rows(ids: np.ndarray) -> np.ndarray:
    """The rows of these ids: another number for each id and column, which float32 holds."""
    return ((ids[:, None] * 7 + np.arange(WIDE)) % 16_777_213).astype(np.float32)


def write_wide(path: Path, size: int, *, shard_bytes: int = 2**26) -> str:
    """An artifact that answers with the row of `user`, of a table of so many rows outside of its graph; its digest."""
    spec = f.Features({"user": f.Ids()})
    asked = [{"user": user} for user in (0, size // 2, size - 1)]
    inputs = spec.encode(asked)
    ids = onnx_bytes.model(
        [onnx_bytes.node("Identity", ["user"], ["ids_0_0"])],
        [("user", "int64", ("n",))],
        [("ids_0_0", "int64", ("n",))],
    )
    model = onnx_bytes.model(
        [onnx_bytes.node("Gather", ["rows_0", "places_0_0"], ["row"])],
        [("rows_0", "float32", ("rows", WIDE)), ("places_0_0", "int64", ("n",))],
        [("row", "float32", ("n", WIDE))],
    )
    fed = (TensorSpec("rows_0", "float32", (WIDE,)), TensorSpec("places_0_0", "int64"))
    graphs = [
        (ids, GraphEntry("onnx", "ids.onnx", spec.inputs, (TensorSpec("ids_0_0", "int64"),), "ids")),
        (model, GraphEntry("onnx", "model.onnx", fed, (TensorSpec("row", "float32", (WIDE,)),))),
    ]
    recorded = Recorded(
        asked,
        inputs,
        {"row": wide_rows(inputs["user"])},
        {"ids_0_0": inputs["user"]},
        {"user": RecordedRows(inputs["user"], wide_rows(inputs["user"]))},
    )
    parts = (np.arange(start, min(start + 65536, size)) for start in range(0, size, 65536))
    rows = ((some, wide_rows(some)) for some in parts)
    table = TableShape("user", WIDE, "dense", size, zeros())
    return _write_with_tables(path, spec, recorded, [(table, rows)], graphs, shard_bytes, "2026-11-23T00:00:00Z")


def _write_with_tables(
    path: Path,
    spec: f.Features,
    recorded: Recorded,
    rows: Sequence[tuple[TableShape, Iterable[tuple[np.ndarray, np.ndarray]]]],
    graphs: Sequence[tuple[bytes, GraphEntry]],
    shard_bytes: int,
    created: str,
) -> str:
    """Each table is looked up once, by ids called `ids_N_0`, N being its number."""
    with new_artifact(path, name="tables") as draft:
        for content, entry in graphs:
            (draft.folder / entry.path).write_bytes(content)
        tables = []
        for number, (shape, chunks) in enumerate(rows):
            expected = len(USERS) if shape.size is None else shape.size
            shards = write_shards(draft.folder, shape, chunks, rows=expected, saved=created, shard_bytes=shard_bytes)
            tables.append(
                TableEntry(
                    name=shape.name,
                    path=f"embed.{shape.name}",
                    ids=shape.ids,
                    size=shape.size,
                    width=shape.width,
                    rows=sum(shard.rows for shard in shards),
                    missing=shape.missing,
                    placed="outside",
                    input=f"rows_{number}",
                    shards=shards,
                    lookups=(Lookup(f"ids_{number}_0", f"places_{number}_0", by_row=True),),
                )
            )
        draft.finish(
            features=spec,
            probes=recorded,
            graphs=[entry for _, entry in graphs],
            batch=BatchEntry(max_size=32, max_wait=0.0, max_idle_gap=None),
            tolerance=(1e-5, 1e-5),
            classes=None,
            libraries={},
            created=created,
            git=None,
            metadata={},
            tables=tables,
        )
        draft.publish()
    return draft.digest


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
    tensors = tuple(TensorSpec(key, array.dtype.name, array.shape[1:]) for key, array in outputs.items())
    with new_artifact(path, name=name) as draft:
        (draft.folder / "model.onnx").write_bytes(content)
        draft.finish(
            features=spec,
            probes=Recorded(spec.to_rows(rows), spec.encode(rows), outputs),
            graphs=[GraphEntry("onnx", "model.onnx", spec.inputs, tensors)],
            batch=BatchEntry(max_size=max_size, max_wait=0.0, max_idle_gap=None),
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
