"""Three models of Keras, saved as artifacts, and the batches that each consumer is asked to answer.

Weights are drawn between -1 and 1, so that a wrong row of a table gives another answer by far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
from keras import layers

import penstock as ps
from penstock import features as f

RAW: Final = "serving_default"
ENCODED: Final = "model"
REFUSED: Final = "id -1 refused"
"""The batch that has no answer."""
ROWS_OF_TABLE: Final = 2**24 + 2**16
"""More than float32 counts."""
ROWS: Final = 40


@dataclass(frozen=True)
class Batch:
    """Rows, as both signatures take them."""

    model: str
    columns: Mapping[str, Mapping[str, Any]]
    """By signature: a list, or a list of lists, for each of its inputs; None is NaN."""
    expected: np.ndarray | None
    """What Keras answers, `(rows, 1)`; None where the batch is to be refused."""


@dataclass(frozen=True)
class Saved:
    """A model that was saved as an artifact."""

    name: str
    features: ps.Features
    model: Any

    def batch(self, table: Any, raw: Mapping[str, Any]) -> Batch:
        """Rows that the model answers; `raw` has them as its raw columns."""
        inputs = self.features.encode(table)
        encoded = {name: array.tolist() for name, array in inputs.items()}
        return Batch(self.name, {RAW: raw, ENCODED: encoded}, np.asarray(self.model(inputs)["score"]))


def save(folder: Path, name: str, model: Any, features: ps.Features, table: Any) -> Saved:
    """Give the model its weights, and save it."""
    draw = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(draw.uniform(-1, 1, weight.shape).astype("float32"))
    ps.export.save(model, folder / name, features=features, reference_rows=table)
    return Saved(name, features, model)


def scored(inputs: Mapping[str, Any], parts: Sequence[Any]) -> Any:
    """A functional model of these inputs."""
    hidden = layers.Dense(8, activation="relu")(layers.Concatenate()(parts))
    return keras.Model(dict(inputs), {"score": layers.Dense(1)(hidden)})


def inputs_of(features: ps.Features) -> dict[str, Any]:
    """An input for each tensor of the features."""
    dtypes = {"str": "string"}
    return {
        tensor.name: keras.Input(tensor.shape, dtype=dtypes.get(tensor.dtype, tensor.dtype), name=tensor.name)
        for tensor in features.inputs
    }


def of_ids(folder: Path) -> dict[str, Batch]:
    """A table with more rows than float32 counts, and ids of any size that the model itself divides."""
    features = ps.Features({"user": f.Ids(size=ROWS_OF_TABLE), "session": f.Ids()})
    given = inputs_of(features)
    session = layers.Embedding(1009, 3)(keras.ops.mod(given["session"], 1009))
    model = scored(given, [layers.Embedding(ROWS_OF_TABLE, 1)(given["user"]), session])
    draw = np.random.default_rng(1)

    def columns(first: int, last: int) -> dict[str, list[int]]:
        users = draw.integers(2**24, ROWS_OF_TABLE, ROWS)
        return {"user": users.tolist(), "session": draw.integers(first, last, ROWS).tolist()}

    asked = {"ids below 2^31": columns(0, 2**31), "ids from 2^31 on": columns(2**31, 2**63)}
    rows = [row for table in asked.values() for row in features.to_rows(table)]
    saved = save(folder, "ids", model, features, rows)
    wrong = {"user": [-1], "session": [5]}
    return {
        **{name: saved.batch(table, table) for name, table in asked.items()},
        REFUSED: Batch("ids", {RAW: wrong, ENCODED: wrong}, None),
    }


def of_strings(folder: Path) -> dict[str, Batch]:
    """A number, a vocabulary, and hashed strings, alone and in lists; values that are missing, and unknown ones."""
    rows: list[dict[str, Any]] = [
        {
            "age": None if row % 7 == 0 else 20.0 + row,
            "city": ("Ulm", "Köln", "北京", "Rome")[row % 4],
            "agent": ("", "Mozilla", f"agent {row}")[row % 3],
            "tags": [f"né {row - tag}" for tag in range(row % 5)],
        }
        for row in range(ROWS)
    ]
    features = ps.Features(
        {
            "age": f.Numeric(scale="standard", fill_value=f.MEAN),
            "city": f.Vocabulary(["Ulm", "Köln", "北京"]),
            "agent": f.Hashed(1000, missing_values=("",), fill_value="none"),
            "tags": f.Hashed(2**16, max_length=4),
        }
    ).fit(rows)
    given = inputs_of(features)
    weights = keras.ops.expand_dims(given["tags_weight"], -1)
    parts = [
        keras.ops.expand_dims(given["age"], -1),
        layers.Embedding(4, 3)(given["city"]),
        layers.Embedding(1000, 3)(given["agent"]),
        keras.ops.sum(layers.Embedding(2**16, 4)(given["tags"]) * weights, axis=1),
    ]
    saved = save(folder, "strings", scored(given, parts), features, rows)
    raw = {name: [row[name] for row in rows] for name in ("age", "city", "agent")}
    raw["tags"] = [row["tags"] + [""] * (4 - len(row["tags"])) for row in rows]
    raw["tags_length"] = [len(row["tags"]) for row in rows]
    return {"strings and numbers": saved.batch(rows, raw)}


def of_text(folder: Path) -> dict[str, Batch]:
    """A text that a layer of the model hashes."""
    table = {"note": [f"né 北京 {row}" for row in range(ROWS)]}
    features = ps.Features({"note": f.Text()})
    given = inputs_of(features)
    hashed = layers.Embedding(1000, 3)(layers.Hashing(1000)(given["note"]))
    saved = save(folder, "text", scored(given, [hashed]), features, table)
    return {"text that the model hashes": saved.batch(table, table)}


def save_all(folder: Path) -> dict[str, Batch]:
    """The batches by what they have in them; the artifacts lie in `folder` by the names of their models."""
    return {**of_ids(folder), **of_strings(folder), **of_text(folder)}
