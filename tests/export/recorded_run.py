"""Run a training run of examples/affairs as its user does; the process that saves writes down what its model answers.

    python recorded_run.py SCRIPT RECORD RUN MODELS

The model is asked in the process that saves, with what it is called in its framework.  RECORD gets `rows.json`, the
held-out rows as a client would send them, and `PID/` with one .npy file for each output.

A process that finds DIES in its environment kills itself in its third task; the others begin their third when it has.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from recorded_training import EXAMPLE, sklearn_answers, torch_answers

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from waiting import until_now

import penstock as ps

PATIENCE_SECONDS = 60.0
ANSWERS = {"run_sklearn.py": sklearn_answers, "run_torch.py": torch_answers}


def recorded(saved: dict[str, Any], script: str, record: Path) -> None:
    """Write down what the model answers that is about to be saved."""
    from data import survey

    _, held_out = survey()
    features = saved["features"]
    (record / "rows.json").write_text(json.dumps(features.to_rows(held_out), allow_nan=False))
    own = record / str(os.getpid())
    own.mkdir()
    model = getattr(saved["model"], "module", saved["model"])  # DistributedDataParallel would wait for the others
    for name, array in ANSWERS[script](model, features.encode(held_out)).items():
        np.save(own / f"{name}.npy", array, allow_pickle=False)


def paced(train: Callable[[Any], Any], record: Path) -> Callable[[Any], Any]:
    """`train`, so that the process that is to die has a task in hand, and has done some, whoever started first."""
    died = record / "died"
    done = 0

    def train_at_pace(payload: Any) -> Any:
        nonlocal done
        if done == 2 and "DIES" in os.environ:
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if done == 2:
            until_now(died.exists, "a process to die", PATIENCE_SECONDS)
        result = train(payload)
        done += 1
        return result

    return train_at_pace


def main(script: str, record: Path, *arguments: str) -> None:
    sys.path.insert(0, str(EXAMPLE))
    work = ps.training.Run.work

    def recording(run: Any, *, save: Callable[[], dict[str, Any]], **functions: Any) -> int | None:
        def remembered() -> dict[str, Any]:
            saved = save()
            recorded(saved, script, record)
            return saved

        if "train" in functions:
            functions["train"] = paced(functions["train"], record)
        return work(run, save=remembered, **functions)

    ps.training.Run.work = recording
    sys.argv = [script, *arguments]
    runpy.run_path(str(EXAMPLE / script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
