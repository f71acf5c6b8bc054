"""Serve a SavedModel by TensorFlow alone: raw rows in, answers out.

    python plain_tensorflow.py SAVED_MODEL RECORD

It reads `rows.json` of RECORD, which `recorded_training.py` wrote, and writes `plain.npy` there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf


def category(value: float | None) -> str:
    """What stands in a tensor for a category of the survey; "" is in the feature's `missing_values`."""
    return "" if value is None else str(int(value))


def main(saved_model: str, record: Path) -> None:
    # Penstock is installed in the environment that runs this; from here on, as where it is not, an import of it fails.
    assert not any(name.partition(".")[0] == "penstock" for name in sys.modules)
    sys.modules["penstock"] = None  # type: ignore[assignment]
    rows = json.loads((record / "rows.json").read_text())
    model = tf.saved_model.load(saved_model)
    answers = model.signatures["serving_default"](
        age=tf.constant([float("nan") if row["age"] is None else row["age"] for row in rows], tf.float64),
        educ=tf.constant([category(row["educ"]) for row in rows]),
        occupation=tf.constant([category(row["occupation"]) for row in rows]),
    )
    np.save(record / "plain.npy", answers["probability"].numpy(), allow_pickle=False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
