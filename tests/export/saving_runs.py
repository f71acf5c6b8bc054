"""What the forked workers of a training run do: a task or two of each kind, and then a small model to save."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import skl2onnx  # noqa: F401  # what an export imports, before workers are forked
from forked_workers import PATIENCE_SECONDS, Order
from sklearn.linear_model import LogisticRegression
from waiting import until_now

import penstock as ps
import penstock.export.saving
import penstock.export.sklearn_model
from penstock import features as f

RANDOM = np.random.default_rng(7)
ROWS = [
    {"age": float(age), "rate": float(rate), "had": bool(age + rate / 2 > 0.1)}
    for age, rate in RANDOM.normal(size=(64, 2)).round(3)
]
INPUTS = [{"age": row["age"], "rate": row["rate"]} for row in ROWS]
TASKS = (3, 1, 4)
HOUR = 3600.0


def work(order: Order) -> int | None:
    """Take part in the run, and return what `work` returned."""
    if order.prepare:
        PREPARATIONS[order.prepare]()
    folder = Path(order.folder)
    run = ps.training.Run(folder / "run", publish_to=folder / "models", **order.run)
    run.plan(train=TASKS)
    if order.gate is not None:
        until_now(Path(order.gate).exists, "the gate to open", PATIENCE_SECONDS)

    def save() -> dict[str, Any]:
        (folder / "saving").touch()
        with (folder / "savers").open("a") as savers:
            print(order.name, file=savers)
        return SAVES[order.save](order)

    return run.work(train=lambda number: number * 2, save=save)


def model(order: Order) -> dict[str, Any]:
    """A small model; the artifact tells who saved it."""
    spec = ps.Features({"age": f.Numeric(), "rate": f.Numeric()}, concat_into="x").fit(ROWS)
    fitted = LogisticRegression().fit(spec.encode(INPUTS)["x"], [row["had"] for row in ROWS])
    metadata = {"saver": order.name}
    return {"model": fitted, "features": spec, "name": "small", "reference_rows": INPUTS, "metadata": metadata}


def raising(order: Order) -> dict[str, Any]:
    raise ZeroDivisionError(f"the save function of {order.name} is broken")


def unlike(order: Order) -> dict[str, Any]:
    """What no graph can be proved equal to: not one bit may differ, and scikit-learn computes in other steps."""
    return {**model(order), "tolerance": (0.0, 0.0)}


def large(order: Order) -> dict[str, Any]:
    """A manifest that is larger than the files that `small_files` allows."""
    return {**model(order), "metadata": {"saver": order.name, "note": "x" * 2 * LARGEST_FILE}}


def hung(order: Order) -> dict[str, Any]:
    """Return when somebody lets go of it."""
    until_now(Path(order.folder, "let go").exists, "to be let go", PATIENCE_SECONDS)
    return model(order)


SAVES = {"model": model, "raising": raising, "unlike": unlike, "large": large, "hung": hung}

LARGEST_FILE = 512 * 1024
"""More than the ledger of these runs has, and less than the artifact of `large`."""


def small_files() -> None:
    """Let no file grow beyond LARGEST_FILE, as on a disk that is full: the write fails (EFBIG)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def clock_set_back() -> None:
    """Have the wall clock say what it said an hour ago."""
    now = time.time
    time.time = lambda: now() - HOUR


PREPARATIONS = {"small_files": small_files, "clock_set_back": clock_set_back}

if "torch" in sys.modules or "tensorflow" in sys.modules:
    raise ImportError("workers are to start with what they need, and no other framework")
